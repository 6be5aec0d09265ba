"""All programs, and those of which it is known that they do not come out as they must yet."""

from __future__ import annotations

from tests.programs import (  # noqa: F401 - their programs register themselves
    right_backwards,
    right_batches,
    right_corners,
    right_loops,
    right_losses,
    right_models,
    right_new,
    right_opacus,
    right_parts,
    wrong_account,
    wrong_crashes,
    wrong_loops,
    wrong_losses,
    wrong_models,
    wrong_state,
)
from tests.programs.corpus import RIGHT, WRONG, Program

PROGRAMS: dict[str, Program] = {**RIGHT, **WRONG}

# Right programs that are refused or wrong today, each with the reason. One that comes out right has to leave.
KNOWN_FAILURES: dict[str, str] = {
    "a_list_of_parameters": "the module above reads what a ParameterList holds, and the list itself never runs",
    "names_by_a_character_lstm_that_is_handed_its_hidden_state": "the probe takes examples along one dimension of all "
    "arguments alike, and runs the model on two rows of words with the hidden states of all",
    "pruned_weights": "torch.nn.utils.prune computes the weight in a hook before the module runs, outside of its rule",
}

# Programs that take seconds: what they import, or compile.
SLOW = {
    "a_model_compiled_afterwards",
    "a_transformers_model_with_its_own_loss",
    "empty_batches_of_a_transformers_model",
}

# Programs that do not come out yet as they must, because what they need is being written; the report says what must
# happen, and what does. One that comes out right leaves, and is then tested with the others.
EXPECTED_LATER: set[str] = {
    "one_loss_for_each_example",
    "weighted_classes_with_one_loss_for_each_example",
    "several_labels_with_one_loss_for_each_example",
    "padded_words_with_one_loss_for_each_text",
    "one_loss_for_each_example_in_chunks",
    "a_loss_that_make_private_is_told_of",
    "a_scheduler_that_asks_whether_a_step_was_taken",
    "left_out_batches_are_told_of",
    "model_and_optimizer_loaded_into_a_new_run",
    "a_copy_of_the_model_trained_further",
    "a_second_stage_after_the_first",
    "three_runs_on_one_data_set",
    "a_delta_of_one_half",
    "a_sampling_rate_of_almost_nothing",
    "one_cycle_over_the_length_of_the_loader",
    "lazy_layers",
    "layer_drop",
    "weight_norm_without_a_bias",
    "nested_tensors",
    "a_grad_scaler",
    "a_gradient_penalty",
    "a_model_compiled_before",
    "a_clipping_norm_that_is_a_number",
    "empty_batches_of_a_model_that_ends_in_squeeze",
    "empty_batches_of_a_transformers_model",
    "a_transformers_model_with_its_own_loss",
    "a_backward_pass_to_some_inputs_only",
    "weights_that_are_assigned",
    "a_functional_call_with_other_weights",
    "a_second_optimizer_for_other_layers",
    "distributed_data_parallel_around_the_model",
    "a_sum_loss_left_at_mean",
    "thirds_of_a_batch_whose_losses_are_divided_by_three",
    "a_scheduler_stepped_for_every_chunk",
    "the_batch_and_its_mirror_image_in_one_call",
    "a_generator_trained_through_a_private_discriminator",
    "an_l2_penalty_in_the_loss",
    "the_private_loader_handed_to_make_private",
    "class_weights_in_a_mean",
    "extreme_class_weights_in_a_mean",
    "a_column_against_a_row_of_targets",
    "a_mean_over_all_words_with_padding",
    "a_mean_over_all_words_that_are_not_ignored",
    "words_divided_by_how_many_the_batch_has",
    "a_tensor_hook_that_divides_by_the_batch_s_norm",
    "a_hook_inside_the_model_that_divides_by_the_batch_s_norm",
    "a_backward_hook_that_divides_by_the_batch_s_norm",
    "check_independence_on_focal_over_maximum",
    "check_independence_on_value_at_risk",
    "check_independence_on_a_mean_over_padded_words",
    "check_independence_on_a_collate_function_that_mixes",
    "the_batch_s_mean_handed_to_backward",
    "a_mixing_loss_named_to_make_private",
    "clip_logits_of_two_towers",
    "activations_divided_by_the_batch_s_maximum",
    "int8_quantisation_by_the_batch_s_maximum",
    "centred_logits_in_a_dataclass",
    "centred_logits_in_a_model_that_returns_its_loss",
    "a_gate_that_opens_later",
    "reentrant_checkpoints_on_parts_of_a_batch",
    "a_reentrant_checkpoint_in_the_middle_of_a_network",
    "views_and_a_collate_function_that_drops_rows",
    "views_and_a_collate_function_that_sorts",
    "what_make_compatible_returns_taken_for_the_model",
    "initialisation_by_the_first_batch",
    "what_a_refused_model_keeps",
    "a_buffer_registered_in_the_first_forward",
    "a_buffer_that_changes_when_gradients_are_on",
    "a_buffer_that_changes_after_twenty_calls",
    "a_plain_attribute_that_changes_when_gradients_are_on",
    "a_codebook_that_follows_the_data_when_gradients_are_on",
    "a_queue_of_earlier_examples",
    "a_public_step_counter",
}
