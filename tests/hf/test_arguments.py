"""Every argument of a Trainer that a private run cannot follow is refused by name, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hoarfrost.errors import NotPrivate
from hoarfrost.hf.arguments import OPTIMIZERS, REFUSALS, refuse_arguments
from tests.hf.small import arguments, bert, trainer, transformers

# What is given, and a part of what is said.
GIVEN: dict[str, tuple[Any, str]] = {
    "max_grad_norm": (0.5, r"clip= of PrivateTrainer"),
    "fp16": (True, "bf16=True"),
    "train_sampling_strategy": ("sequential", "drawn by chance alone.*group_by_length"),
    "dataloader_drop_last": (True, "none of them is dropped"),
    "auto_find_batch_size": (True, "per_device_train_batch_size"),
    "data_seed": (5, "seed= of PrivateTrainer"),
    "include_num_input_tokens_seen": (True, "number of tokens"),
    "skip_memory_metrics": (False, "size of private batches"),
    "neftune_noise_alpha": (5.0, "the longest example"),
    "save_only_model": (True, r"trainer\.save_model\(\)"),
    "torch_compile": (True, "eager mode"),
    "use_liger_kernel": (True, "kernels"),
    "deepspeed": ({"zero_optimization": {"stage": 2}}, "in several processes"),
    "fsdp": ("full_shard", "in several processes"),
    "parallelism_config": (object(), "in several processes"),
    "debug": ("underflow_overflow", "prints figures"),
}
NOT_CONSTRUCTED = {"fp16", "deepspeed", "fsdp", "parallelism_config"}  # they need hardware, or another package


def test_every_refusal_is_tried() -> None:
    assert set(GIVEN) == {refusal.name for refusal in REFUSALS}


@pytest.mark.parametrize("name", GIVEN)
def test_an_argument_is_refused_by_name(name: str, tmp_path: Path) -> None:
    value, why = GIVEN[name]
    plain = arguments(tmp_path)
    if not hasattr(plain, name):
        pytest.skip("this version of transformers does not have it")
    if name in NOT_CONSTRUCTED:
        args = plain
        setattr(args, name, value)
    else:
        args = arguments(tmp_path, **{name: value})
    with pytest.raises(NotPrivate, match=rf"TrainingArguments\({name}=.*{why}"):
        refuse_arguments(args)


def test_a_trainer_asks_before_it_does_anything(tmp_path: Path) -> None:
    with pytest.raises(NotPrivate, match=r"max_grad_norm=0\.1"):
        trainer(bert(), tmp_path / "out", max_grad_norm=0.1)
    assert not (tmp_path / "out").exists()


def test_what_was_changed_after_construction_is_seen(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path)
    run.args.max_grad_norm = 0.1
    with pytest.raises(NotPrivate, match=r"max_grad_norm=0\.1"):
        run.train()


FOLLOWED: list[dict[str, Any]] = [
    {},
    {"max_grad_norm": 0.0},
    {"max_grad_norm": 1.0},
    {"logging_nan_inf_filter": False},
    {"ignore_data_skip": True},
    {"torch_empty_cache_steps": 2},
    {"label_smoothing_factor": 0.1},
    {"average_tokens_across_devices": False},
    {"eval_accumulation_steps": 2},
    {"save_total_limit": 1},
    {"bf16": True},
    {"train_sampling_strategy": "group_by_length"} if hasattr(transformers.TrainingArguments, "train_sampling_strategy")
    else {"group_by_length": True},
]  # fmt: skip


@pytest.mark.parametrize("options", FOLLOWED, ids=str)
def test_arguments_that_a_private_run_follows(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    refuse_arguments(arguments(tmp_path, **options))


@pytest.mark.parametrize("optim", ["lomo", "adalomo", "galore_adamw_layerwise", "schedule_free_adamw"])
def test_optimizers_that_noisy_gradients_cannot_go_through(optim: str, tmp_path: Path) -> None:
    assert any(part in optim for part in OPTIMIZERS)
    with pytest.raises(NotPrivate, match=rf'optim="{optim}".*Choose another'):
        refuse_arguments(arguments(tmp_path, optim=optim))


@pytest.mark.parametrize(("processes", "devices", "what"), [(2, 1, "2 processes"), (1, 4, "4 GPUs")])
def test_several_processes_and_devices(processes: int, devices: int, what: str) -> None:
    class Several:
        optim, world_size, n_gpu = "sgd", processes, devices

    with pytest.raises(NotPrivate, match=rf"{what} at once.*CUDA_VISIBLE_DEVICES=0"):
        refuse_arguments(Several())


def test_reentrant_checkpointing(tmp_path: Path) -> None:
    plain = arguments(tmp_path)
    kind = "activation" if hasattr(plain, "activation_checkpointing") else "gradient"
    options: dict[str, Any] = {f"{kind}_checkpointing": True}
    args = arguments(tmp_path, **options)
    refuse_arguments(args)
    assert getattr(args, f"{kind}_checkpointing_kwargs") == {"use_reentrant": False}
    with pytest.raises(NotPrivate, match="differentiates parts of the model"):
        refuse_arguments(arguments(tmp_path, **options, **{f"{kind}_checkpointing_kwargs": {"use_reentrant": True}}))


def test_a_record_of_what_is_private_is_not_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.Trainer.init_hf_repo", lambda self: None)
    with pytest.raises(NotPrivate, match="push_to_hub=True"):
        trainer(bert(), tmp_path, push_to_hub=True, training_record=True)
