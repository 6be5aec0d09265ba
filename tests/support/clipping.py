"""Private steps of any clipping style on small models of odd shapes, beside what the oracle says of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import hoarfrost
from hoarfrost.clipping import Clipper
from hoarfrost.masks import Channels, Mask, as_tensor
from tests import oracle
from tests.clipping.settings import Known, Style, local
from tests.gradients.settings import Tied, projected
from tests.support.freezing import Scripted

N = 11


class Odd(nn.Module):
    """A convolution with an odd window, a layer without a bias, a single output, and a number of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.2))
        self.conv, self.body, self.head = nn.Conv2d(2, 3, (2, 3)), nn.Linear(18, 5, bias=False), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.conv(x)).flatten(1) * self.temperature.exp()
        return self.head(torch.tanh(self.body(hidden)))


def odd_inputs() -> Tensor:
    return torch.randn(N, 2, 4, 4) * torch.linspace(0.2, 2.0, N).view(-1, 1, 1, 1)


def spread_losses(model: nn.Module, x: Tensor) -> Tensor:
    """A loss for every row, of sizes that are far apart: some gradients are long, and some are short."""
    own = x.float().flatten(1).nan_to_num(0, 0, 0).sum(1)
    return projected(model(x)) * torch.exp(1.2 * torch.sin(own))


class Redrawn(Dataset):
    """Examples that are a little different whenever they are drawn; words stay as they are."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.drawn = x, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        self.drawn += 1
        return self.x[i] + 0.01 * self.drawn if self.x.is_floating_point() else self.x[i]


@dataclass(frozen=True)
class Case:
    """How a step is taken.

    Args:
        frozen: what is frozen: elements, channels, layers, one parameter by its name, or nothing.
    """

    name: str
    model: Callable[[], nn.Module] = Odd
    inputs: Callable[[], Tensor] = odd_inputs
    dtype: torch.dtype = torch.float32
    reduction: str = "sum"
    views: int = 1
    chunk: int | None = None
    rate: float = 1.0
    frozen: str = ""
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.05)

    def __repr__(self) -> str:
        return self.name

    def new_model(self) -> nn.Module:
        torch.manual_seed(5)
        return self.model().to(self.dtype)

    def new_inputs(self) -> Tensor:
        torch.manual_seed(6)
        x = self.inputs()
        return x.to(self.dtype) if x.is_floating_point() else x

    def masks(self, model: nn.Module) -> dict[str, Mask]:
        torch.manual_seed(7)
        masks: dict[str, Mask] = {}
        for number, (name, p) in enumerate(model.named_parameters()):
            if self.frozen == name:
                masks[name] = False
            elif self.frozen == "layers":
                masks[name] = number % 3 != 1
            elif self.frozen == "channels" and p.dim():
                masks[name] = Channels(torch.arange(0, len(p), 2))
            elif self.frozen == "elements" and p.numel() > 1:
                masks[name] = torch.rand(p.shape) < 0.6
            else:
                masks[name] = True
        return masks


MOMENTUM: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
CASES = [
    Case("plain"),
    Case("mean", reduction="mean"),
    Case("float64", dtype=torch.float64),
    Case("bfloat16", dtype=torch.bfloat16),
    Case("tied weights", model=Tied, inputs=lambda: torch.randint(11, (N, 4))),
    Case("one layer, one output, no bias", model=lambda: nn.Linear(3, 1, bias=False), inputs=lambda: torch.randn(N, 3)),
    Case("chunks of one", chunk=1),
    Case("chunks, mean", chunk=4, reduction="mean"),
    Case("views", views=3, reduction="mean"),
    Case("views in chunks", views=2, chunk=5),
    Case("Poisson", rate=0.6),
    Case("Poisson chunks, mean", rate=0.6, chunk=2, reduction="mean"),
    Case("elements frozen", frozen="elements"),
    Case("elements frozen, float64, chunks", frozen="elements", dtype=torch.float64, chunk=3),
    Case("channels frozen", frozen="channels"),
    Case("layers frozen", frozen="layers"),
    Case("layers frozen, Adam", frozen="layers", optimizer=lambda p: torch.optim.Adam(p, lr=0.01)),
    Case("momentum", optimizer=MOMENTUM),
    Case("Adam", optimizer=lambda p: torch.optim.Adam(p, lr=0.01)),
]
PLAIN = CASES[0]


@dataclass(frozen=True)
class Step:
    """One step, and what the oracle says of it.

    Args:
        clipped: what the batch comes to.
        rule: how it is clipped.
        gradients: what the inner optimizer was handed, times the expected batch size; by name.
        noisy: what the mechanism released.
        sums: the clipped sums that it was handed, before noise.
    """

    clipped: oracle.Clipped
    rule: oracle.Rule
    gradients: dict[str, Tensor]
    noisy: Any
    sums: dict[str, Tensor]


class Run:
    """A private run of a style on a case; the loss is such that half of the gradients are longer than 1."""

    def __init__(self, style: Style, case: Case = PLAIN, clipper: Clipper | None = None, **options: Any) -> None:
        self.style, self.case = style, case
        self.model, inputs = case.new_model(), options.pop("inputs", case.new_inputs())
        self.masks = {name: as_tensor(m, self.shape(name)) for name, m in case.masks(self.model).items()}
        self.scale = options.pop("scale", None) or 1 / self._middle(case.new_inputs())
        given = {"sample_rate": case.rate, "noise_multiplier": 0.0, "delta": 1e-5, "seed": 3} | options
        self.private = hoarfrost.make_private(
            self.model, case.optimizer(self.model.parameters()), Redrawn(inputs), clip=clipper or style.clipper,
            freeze=Scripted(lambda _: case.masks(self.model)) if case.frozen else None, views=case.views,
            loss_reduction=case.reduction, max_physical_batch=case.chunk, **given,
        )  # fmt: skip
        self.seen: list[dict[str, float]] = []
        self._released: list[Any] = []
        self._around_release()

    def shape(self, name: str) -> torch.Size:
        return self.model.get_parameter(name).shape

    def _middle(self, inputs: Tensor) -> float:
        per_example = oracle.gradients(self.model, inputs, lambda m, x: spread_losses(m, x).sum())
        return oracle.halving_norm(oracle.masked(per_example, self.masks))

    def _around_release(self) -> None:
        mechanism = self.private.optimizer.mechanism
        release = mechanism.release

        def wrapped(total: Any, *args: Any) -> Any:
            sums = {name: t.clone() for name, t in total.sums.items()}
            self._released.append((sums, release(total, *args)))
            return self._released[-1][1]

        mechanism.release = wrapped

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        """Of every row."""
        return spread_losses(model, x) * self.scale

    def backward(self, x: Tensor) -> None:
        """One chunk, as the training loop does it. (The mean over no rows is no number, and nobody looks at it.)"""
        losses = self.loss(self.private.model, x)
        (losses.mean() if self.case.reduction == "mean" else losses.sum()).backward()

    def known(self) -> Known:
        names = [name for name, _ in self.model.named_parameters()]
        return Known(self.private.steps_taken, names, self.private.expected_batch, list(self.seen))

    def gradients(self, rows: Tensor) -> list[dict[str, Tensor]]:
        """Each example's gradient at the weights as they are, with zeros at what is frozen."""
        plain = copy.deepcopy(self.model)  # a copy computes plain gradients
        for p in plain.parameters():
            p.requires_grad_()
        found = oracle.gradients(plain, rows, lambda m, x: self.loss(m, x).sum(), views=self.case.views)
        return oracle.masked(found, self.masks)

    def expected(self, rows: Tensor, rule: oracle.Rule | None = None) -> tuple[oracle.Rule, oracle.Clipped]:
        """What the oracle makes of some rows at the weights as they are, by the style's rule unless by another."""
        rule = rule or self.style.rule(self.known())
        return rule, oracle.clip(self.gradients(rows), rule)

    def steps(self, number: int) -> Iterator[Step]:
        """Steps through the plain training loop, each with what the oracle says. Empty batches are left out."""
        optimizer, rows = self.private.optimizer, []
        while self.private.steps_taken < number:
            for x in self.private.loader:
                rows.append(x)
                taken = self.private.steps_taken
                optimizer.zero_grad()
                rule, clipped = self.expected(torch.cat(rows)) if sum(map(len, rows)) else (None, None)
                self.backward(x)
                optimizer.step()
                if self.private.steps_taken > taken:
                    rows = []
                    gradients = {
                        name: (torch.zeros_like(p) if p.grad is None else p.grad) * self.private.expected_batch
                        for name, p in self.model.named_parameters()
                    }
                    sums, noisy = self._released[-1]
                    if clipped is not None:
                        yield Step(clipped, rule, gradients, noisy, sums)
                    self.seen.append(noisy.statistics)
                if self.private.steps_taken == number:
                    break


def run_of(clipper: Clipper, case: Case = PLAIN, **options: Any) -> Run:
    """A run of any style, of which the oracle is not asked."""
    return Run(Style("any", clipper, local(1.0)), case, **options)


def take_steps(run: Run, number: int = 1) -> None:
    until = run.private.steps_taken + number
    while run.private.steps_taken < until:
        for x in run.private.loader:
            run.backward(x)
            run.private.optimizer.step()
            if run.private.steps_taken == until:
                break
