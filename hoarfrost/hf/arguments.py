"""Which `TrainingArguments` a private run cannot follow: each is refused by name, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hoarfrost.errors import NotPrivate
from hoarfrost.hf.lengths import BY_LENGTH


@dataclass(frozen=True)
class Refusal:
    """One argument, when it is refused, and why.

    Args:
        given: says of its value whether it asks for something. An argument that this version of transformers does not
            have asks for nothing.
    """

    name: str
    given: Callable[[Any], object]
    why: str


REFUSALS = (
    Refusal(
        "max_grad_norm", lambda norm: norm not in (None, 0, 1),  # 1 is what Trainer has by default
        "clips the gradient of the whole batch, which a private run does not have before its step: it would do "
        "nothing. Leave it out; clip= of PrivateTrainer clips the gradient of each example",
    ),
    Refusal(
        "fp16", bool,
        "scales the loss, so that gradients would be clipped to a bound that many times smaller. Set bf16=True "
        "instead; norms and sums are computed in float32",
    ),
    Refusal(
        "train_sampling_strategy", lambda strategy: getattr(strategy, "value", strategy) not in ("random", BY_LENGTH),
        "chooses the order of the examples, and the account is for batches that are drawn by chance alone. Leave it "
        'out, or say "group_by_length": examples of a batch are then cut into chunks of like length',
    ),
    Refusal(
        "dataloader_drop_last", bool,
        "drops a batch for its size. Leave it out: Poisson batches have every size, and none of them is dropped",
    ),
    Refusal(
        "auto_find_batch_size", bool,
        "begins anew with a smaller batch when memory runs out: the steps before would be spent for nothing. Leave it "
        "out, and set per_device_train_batch_size to what fits: it is the size of a chunk, and with more "
        "gradient_accumulation_steps the expected batch stays what it is",
    ),
    Refusal(
        "data_seed", lambda seed: seed is not None,
        "makes the batches predictable, and who can predict them learns more than epsilon says. Leave it out; for "
        "experiments, seed= of PrivateTrainer seeds batches and noise",
    ),
    Refusal(
        "include_num_input_tokens_seen", lambda what: what not in (False, None, "no"),
        "logs the number of tokens in private batches, which no epsilon covers. Leave it out",
    ),
    Refusal(
        "skip_memory_metrics", lambda skipped: not skipped,
        "logs how much memory was needed, which tells the size of private batches. Leave it out",
    ),
    Refusal(
        "neftune_noise_alpha", lambda alpha: alpha is not None,
        "scales noise on an example's embeddings by the length of the longest example in its batch. Leave it out: a "
        "private step has noise enough",
    ),
    Refusal(
        "save_only_model", bool,
        "leaves out of checkpoints what was spent on their weights. Leave it out; trainer.save_model() saves the "
        "weights alone, for use",
    ),
    Refusal(
        "torch_compile", bool,
        "compiles the model, and the gradients of single examples are taken in eager mode. Leave it out",
    ),
    Refusal(
        "use_liger_kernel", bool,
        "puts kernels in the place of layers, through which gradients of single examples cannot be taken. Leave it out",
    ),
    Refusal("deepspeed", bool, "trains in several processes, and a private run trains in one. Leave it out"),
    Refusal("fsdp", bool, "trains in several processes, and a private run trains in one. Leave it out"),
    Refusal(
        "parallelism_config", lambda config: config is not None,
        "trains in several processes, and a private run trains in one. Leave it out",
    ),
    Refusal(
        "debug", lambda options: any("underflow" in str(getattr(each, "value", each)) for each in options or ()),
        "prints figures of private batches. Leave it out",
    ),
)  # fmt: skip
# Optimizers that a step of noisy gradients cannot go through, by a part of their names.
OPTIMIZERS = {
    "lomo": "updates weights during the backward pass, where there is no private gradient yet",
    "layerwise": "updates weights during the backward pass, where there is no private gradient yet",
    "schedule_free": "keeps two sets of weights and exchanges them between training and evaluation",
}


def refuse_arguments(args: Any) -> None:
    """Refuses what a private run cannot follow, and sets `gradient_checkpointing` to what it can.

    Args:
        args: `transformers.TrainingArguments`, of whatever version.
    """
    for refusal in REFUSALS:
        if hasattr(args, refusal.name) and refusal.given(value := getattr(args, refusal.name)):
            raise NotPrivate(f"TrainingArguments({refusal.name}={_shown(value)}) {refusal.why}")
    name = str(getattr(args.optim, "value", args.optim))
    for part, why in OPTIMIZERS.items():
        if part in name:
            raise NotPrivate(f'TrainingArguments(optim="{name}") {why}. Choose another, such as "adamw_torch" or "sgd"')
    if args.world_size > 1 or args.n_gpu > 1:
        what = f"{args.world_size} processes" if args.world_size > 1 else f"{args.n_gpu} GPUs"
        raise NotPrivate(
            f"this Trainer would train on {what} at once, each with a part of the batch, and a private run trains in "
            "one process on one device. Start it without torchrun or accelerate launch, and show it one GPU "
            "(CUDA_VISIBLE_DEVICES=0)"
        )
    _set_checkpointing(args)


def _set_checkpointing(args: Any) -> None:
    """Both names of the setting are kept the same, as transformers does it since version 5."""
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        settings = getattr(args, f"{name}_kwargs", None)
        if not getattr(args, name, False):
            continue
        if settings is not None and settings.get("use_reentrant"):
            raise NotPrivate(
                f"TrainingArguments({name}_kwargs={{'use_reentrant': True}}) differentiates parts of the model in "
                "backward passes of their own, so that an example's gradient would be clipped in pieces. Write "
                "{'use_reentrant': False}, or leave it out"
            )
        setattr(args, f"{name}_kwargs", {**(settings or {}), "use_reentrant": False})


def _shown(value: Any) -> str:
    value = getattr(value, "value", value)
    return repr(sorted(value) if isinstance(value, set) else value if not isinstance(value, Mapping) else {**value})
