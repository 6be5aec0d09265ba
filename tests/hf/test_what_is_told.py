"""Nothing that is computed on the training data without noise gets into logs, callbacks or files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hoarfrost
from hoarfrost.hf.losses import ModelLosses
from tests.hf.small import bert, texts, trainer, transformers

NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+")


class Private(hoarfrost.Observer):
    """Everything un-noised that a run computes and that has many digits."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.sizes: list[int] = []

    def on_sums(self, sums: Any) -> None:
        self.numbers += sums.norms.flatten().tolist()
        self.sizes.append(len(sums.norms))

    def on_release(self, released: Any) -> None:
        self.numbers.append(math.sqrt(sum(float(t.square().sum()) for t in released.clipped.values())))


class Listener(transformers.TrainerCallback):
    """What an integration (a tracker, a progress bar, a printer) gets to see."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.names: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.heard.append(dict(logs))
        self.names |= set(logs)


for event in ("init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "pre_optimizer_step",
              "optimizer_step", "substep_end", "step_end", "evaluate", "save"):  # fmt: skip

    def hear(self: Listener, args: Any, state: Any, control: Any, **others: Any) -> None:
        seen = {key: value for key, value in others.items() if isinstance(value, int | float | dict)}
        self.heard.append([seen, json.loads(json.dumps(state.__dict__, default=str))])

    setattr(Listener, f"on_{event}", hear)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those of the examples, as they are computed."""
    seen: list[float] = []
    plain = ModelLosses.__call__

    def noted(self: Any, model: Any, inputs: Any) -> Any:
        found, outputs = plain(self, model, inputs)
        seen.extend(found.tolist())
        return found, outputs

    monkeypatch.setattr(ModelLosses, "__call__", noted)
    return seen


def observed(run: Any) -> Private:
    seen, begin = Private(), run.get_train_dataloader

    def begin_and_observe() -> Any:
        loader = begin()
        run.private.observe(seen)
        return loader

    run.get_train_dataloader = begin_and_observe
    return seen


def flat(value: Any) -> Iterator[float]:
    """The numbers in any structure, and in its texts."""
    if isinstance(value, Tensor):
        value = value.double().flatten().tolist() if value.is_floating_point() else []
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple | set):
        for each in value:
            yield from flat(each)
    elif isinstance(value, str):
        yield from (float(each) for each in NUMBER.findall(value))
    elif isinstance(value, float):
        yield value


def numbers_below(folder: Path) -> Iterator[float]:
    for file in sorted(folder.rglob("*")):
        if file.is_dir() or "not-private" in file.parts or file.name == "training_args.bin":
            continue
        if file.suffix in (".pt", ".pth"):
            yield from flat(torch.load(file, weights_only=True))
        elif file.suffix == ".safetensors":
            continue  # the weights
        else:
            yield from flat(file.read_text("utf-8"))


def told(private: list[float], public: list[float]) -> list[float]:
    """Which private numbers are there, to five digits. A number with three decimals or fewer says too little."""
    many = [x for x in public if math.isfinite(x) and abs(x * 1000 - round(x * 1000)) > 1e-9]
    shown = torch.tensor(sorted(many), dtype=torch.float64)
    wanted = [x for x in private if math.isfinite(x) and abs(x) > 1e-3]
    close = [bool(((shown - x).abs() < 1e-5 * abs(x)).any()) for x in wanted]
    return [x for x, found in zip(wanted, close, strict=True) if found]


def test_no_figure_of_the_training_data_is_told(
    losses: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listener, model = Listener(), bert()
    with torch.no_grad():
        model.classifier.weight.mul_(100)  # or all losses lie near ln 2, some so near to each other as to be confused
    run = trainer(
        model, tmp_path, callbacks=[listener], logging_steps=1, save_strategy="steps", save_steps=2,
        eval_dataset=texts(10), eval_strategy="steps", eval_steps=3, training_record=True, optim="sgd",
        disable_tqdm=True,
    )  # fmt: skip
    seen = observed(run)
    trained = run.train()
    run.save_model()
    run.save_state()
    run.save_metrics("train", trained.metrics)

    each_step = [json.loads(line) for line in (tmp_path / "not-private" / "training.jsonl").read_text().splitlines()]
    means = [line["loss"] for line in each_step if line["loss"] is not None]
    assert sum(line["examples"] for line in each_step) == len(losses)
    private = [*losses, *means, *seen.numbers, sum(losses) / len(losses), sum(losses)]
    public = [
        *numbers_below(tmp_path),
        *flat(listener.heard),
        *flat(capsys.readouterr().out),
        *flat(run.state.__dict__),
    ]
    public += [*flat(trained.metrics), trained.training_loss]
    assert len(private) > 100
    assert told([run.private.epsilon()], public), "the search itself finds nothing"
    assert told(private, public) == []
    assert math.isnan(trained.training_loss)
    assert run._total_loss_scalar == 0  # where a Trainer adds up what training_step returns
    assert run.state.total_flos == 0
    assert run.state.num_input_tokens_seen == 0
    assert not list(tmp_path.rglob("*rng*"))  # it would tell how much dropout has drawn


def test_what_is_logged(tmp_path: Path) -> None:
    """Of the training nothing but what is public; of the evaluation all."""
    listener = Listener()
    run = trainer(bert(), tmp_path, callbacks=[listener], eval_dataset=texts(10), eval_strategy="epoch")
    run.train()
    training = {name for name in listener.names if not name.startswith("eval_")}
    speed = {"train_runtime", "train_samples_per_second", "train_steps_per_second"}
    assert training == {"learning_rate", "epsilon", "delta", "epoch"} | speed
    assert "eval_loss" in listener.names
    spent = [line["epsilon"] for line in run.state.log_history if "learning_rate" in line]
    assert spent == sorted(spent)
    assert len(set(spent)) == 3
    assert run.state.log_history[-1]["epsilon"] == run.private.epsilon()
    assert not (tmp_path / "not-private").exists()


def test_what_is_private_is_marked_as_such(tmp_path: Path) -> None:
    trainer(bert(), tmp_path, training_record=True).train()
    assert "must not be released" in (tmp_path / "not-private" / "README.txt").read_text()


def test_the_statement_goes_with_the_weights(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, save_strategy="steps", save_steps=3)
    run.train()
    run.save_model(str(tmp_path / "final"))
    assert (tmp_path / "final" / "budget.txt").read_text() == f"{run.statement()}\n"
    assert "3 steps at sampling rate 0.25" in (tmp_path / "checkpoint-3" / "budget.txt").read_text()


def test_a_part_of_a_batch_shows_nothing(tmp_path: Path) -> None:
    """Who counts its tokens, labels or operations finds none, and draws nothing."""
    run = trainer(bert(), tmp_path)
    parts = list(run.get_train_dataloader())
    assert len(parts) == 4 * 3
    assert all(not part and "labels" not in part for part in parts)
    assert run.private.charged == 0
    assert {run.floating_point_ops(part) for part in parts} == {0}
