"""All programs, and those of which it is known that they do not come out as they must yet."""

from __future__ import annotations

from tests.programs import (  # noqa: F401 - their programs register themselves
    right_backwards,
    right_batches,
    right_corners,
    right_loops,
    right_losses,
    right_meetings,
    right_models,
    right_new,
    right_opacus,
    right_parts,
    wrong_account,
    wrong_crashes,
    wrong_loops,
    wrong_losses,
    wrong_meetings,
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

# Wrong programs that get through today, or get another message, each with the reason. One that comes out right has to
# leave.
KNOWN_GAPS: dict[str, str] = {
    "reentrant_checkpoints_on_parts_of_a_batch": "refused, but as a layer that is called with examples in different "
    "dimensions, without the word use_reentrant",
}
