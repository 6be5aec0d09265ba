"""The Python blocks of docs/hugging-face.md run, one after the other."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost.hf import arguments as refused
from tests.hf.small import bert, padded, texts, transformers

lightning = pytest.importorskip("lightning")
PAGE = (Path(__file__).parents[2] / "docs" / "hugging-face.md").read_text("utf-8")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def training_step(self, batch: Any, number: int) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    plain = transformers.TrainingArguments.__init__

    def here(self: Any, *args: Any, **settings: Any) -> None:
        plain(self, *args, **(settings | small))

    monkeypatch.setattr(transformers.TrainingArguments, "__init__", here)
    monkeypatch.setattr(transformers.Trainer, "__init__", _collating(transformers.Trainer.__init__))
    dataset = TensorDataset(torch.randn(200, 4), torch.randint(3, (200,)))
    network = nn.Linear(4, 3)
    given: dict[str, Any] = {
        "model": bert(),
        "train_dataset": texts(300),
        "eval_dataset": texts(20),
        "class_weights": torch.tensor([1.0, 2.0]),
        "network": network,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "dataset": dataset,
        "module": Classifier(),
        "train_loader": DataLoader(dataset, batch_size=8),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, block in enumerate(blocks):
            exec(block, given)
            if number == 0:
                assert 2.9 < given["trainer"].private.epsilon() <= 3
                given["model"] = bert()  # the next block builds another trainer
            elif number == 1:
                given["trainer"].train()
    assert 2.9 < given["private"].run.epsilon() <= 3
    assert "epsilon" in capsys.readouterr().out


def _collating(init: Any) -> Any:
    def collating(self: Any, *args: Any, **settings: Any) -> None:
        init(self, *args, **{"data_collator": padded, **settings})

    return collating


def test_every_refused_argument_is_on_the_page() -> None:
    missing = [refusal.name for refusal in refused.REFUSALS if f"`{refusal.name}" not in PAGE]
    assert missing == []
