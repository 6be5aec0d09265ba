"""Is a layer's gradient rule right? Its norms and clipped sums, against one backward pass for each example."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.clipping import Local
from hoarfrost.gradients import Engine
from hoarfrost.gradients.rules import rule_for
from hoarfrost.gradients.rules.fallback import FallbackRule
from hoarfrost.groups import Groups
from hoarfrost.info import RunInfo
from hoarfrost.masks import Channels, Mask, as_tensor, resolve_mask
from hoarfrost.nested import map_tensors
from hoarfrost.observers import Observer, Sums
from hoarfrost.testing import oracle
from hoarfrost.testing.findings import Findings
from hoarfrost.tickets import Chunk

RULE = "Compare contributions() with the module's forward, one parameter at a time"


def check_rule(
    module: nn.Module, inputs: Any, *, loss: Callable[[Any], Tensor] | None = None, quick: bool = True
) -> None:
    """Checks the gradient rule of a module, and raises `ContractBroken` with all that is wrong.

    Args:
        module: with a rule of your own (`hoarfrost.register_rule`) or of the library.
        inputs: a batch of at least four examples, along the first dimension; a tuple is several arguments.
        loss: from the module's output to one loss for each row, [rows], each from that row alone. By default a
            polynomial of the output, or of the first of several.
        quick: one set of random masks. False tries ten.

    Checked are norms and clipped sums, with half of the examples clipped, in float32 and in float64, for one example
    and for several, for views, for people with different numbers of rows, for a module that is used twice in one
    forward pass, and with frozen elements, rows and parameters. In front of the module is a layer that is trained too,
    if the inputs are floating-point, so that the gradient that the rule passes on is compared as well. An example that
    is not finite must leave the others as they are.

    Guarantees:
        Deterministic. A pass says that norms and sums were right for this module, these inputs and these masks.

    >>> check_rule(nn.Linear(4, 3), torch.randn(6, 4))
    >>> check_rule(nn.Conv2d(2, 3, 2), torch.randn(6, 2, 4, 4))
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    found, rows = Findings(f"{type(module).__name__} by {type(rule_for(module)).__name__}"), oracle.rows_of(arguments)
    if rows < 4:
        found.add(f"the inputs have {rows} examples", "Give a batch of at least four")
        found.finish()
    if isinstance(rule_for(module), FallbackRule):
        found.add(
            f"{type(module).__name__} has no rule of its own, and gets the fallback",
            "Register one with hoarfrost.register_rule, for the class that defines its forward; LayerRule.parameters "
            "must name all parameters that it holds",
        )
    row_losses = loss or oracle.row_losses
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.float64):
            model = _Between(copy.deepcopy(module), arguments).to(dtype)
            batch = _as_dtype(arguments, dtype)
            check = _Check(found, model, row_losses)
            name = str(dtype).removeprefix("torch.")
            with found.during(f"a backward pass in {name}"):
                check.output(batch, name)
                check.compare(batch, name)
                check.compare(oracle.take_rows(batch, 0, 1), f"{name}, one example")
                check.compare(oracle.take_rows(batch, 0, rows // 2 * 2), f"{name}, two views", views=2)
                check.compare(batch, f"{name}, rows of people", people=[1, 2, rows - 3])
                for what, masks in _masks(model, 1 if quick else 10):
                    check.compare(batch, f"{name}, {what}", masks=masks)
                check.not_finite(batch, name)
                if check.fits_itself(batch):
                    _Check(found, _Twice(model), row_losses).compare(batch, f"{name}, used twice")
    found.finish()


class _Between(nn.Module):
    """The module behind a layer of its own, whose gradient has passed through the module."""

    def __init__(self, module: nn.Module, arguments: Sequence[Any]) -> None:
        super().__init__()
        x = arguments[0]
        fits = isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1
        self.front = nn.Linear(x.shape[-1], x.shape[-1], bias=False) if fits else None
        self.module = module

    def forward(self, x: Any, *others: Any) -> Any:
        return self.module(x if self.front is None else self.front(x), *others)


class _Twice(nn.Module):
    """The module on its own output."""

    def __init__(self, model: _Between) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.model.module(torch.tanh(self.model(x)))
        return output


class _Norms(Observer):
    def __init__(self) -> None:
        self.norms = torch.zeros(0, 1)

    def on_sums(self, sums: Sums) -> None:
        self.norms = sums.norms.clone()


class _Check:
    """One model, which is copied for every comparison."""

    def __init__(self, found: Findings, model: nn.Module, row_losses: oracle.RowLosses) -> None:
        self.found, self.model, self.row_losses = found, model, row_losses

    def private(
        self,
        batch: Sequence[Any],
        clip_norm: float,
        views: int = 1,
        masks: Mapping[str, Mask] | None = None,
        people: Sequence[int] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Norms and clipped sums by the rules; ``people`` have so many rows each."""
        model = copy.deepcopy(self.model)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        engine, seen = Engine(model, parameters, Local(clip_norm), loss_reduction="sum", views=views), _Norms()
        engine.observers.append(seen)
        engine.masks = {name: resolve_mask(mask, parameters[name]) for name, mask in (masks or {}).items()}
        groups = None if people is None else Groups(max(people) + 1, people)
        examples = oracle.rows_of(batch) // views if people is None else len(people)
        engine.sums.tickets.hand_over(Chunk(examples=examples, first=True, last=True, groups=groups))
        self.row_losses(model(*batch)).sum().backward()
        total = engine.release()
        return seen.norms, {} if total is None else total.sums

    def output(self, batch: Sequence[Any], name: str) -> None:
        """The rule returns what the module's own forward does."""
        model = copy.deepcopy(self.model)
        wanted = _first(model(*batch)).detach()
        engine = Engine(model, dict(model.named_parameters()), Local(1.0))
        engine.sums.tickets.hand_over(Chunk(examples=oracle.rows_of(batch), first=True, last=True))
        if not torch.allclose(_first(model(*batch)).detach(), wanted, rtol=1e-5, atol=1e-6):
            self.found.add(f"the output by the rule is not that of forward() ({name})", "Return what forward() does")

    def compare(
        self,
        batch: Sequence[Any],
        name: str,
        views: int = 1,
        masks: Mapping[str, Mask] | None = None,
        people: Sequence[int] | None = None,
    ) -> None:
        """Norms and clipped sums against one example at a time."""
        per_example = oracle.gradients(self.model, batch, self.row_losses, views)
        if people is not None:
            per_example = oracle.of_people(per_example, people)
        shapes = {name: p.shape for name, p in self.model.named_parameters()}
        written = {name: as_tensor(mask, shapes[name]) for name, mask in (masks or {}).items()}
        lengths = oracle.expected(per_example, written, Local(1.0).begin(0, RunInfo(shapes))).norms
        clip_norm = max(float(lengths.quantile(0.5)) * 0.99, 1e-6)
        wanted = oracle.expected(per_example, written, Local(clip_norm).begin(0, RunInfo(shapes)))
        norms, sums = self.private(batch, clip_norm, views, masks, people)
        if oracle.difference(norms, wanted.norms, clip_norm) > 1:
            self.found.add(f"norms are {_ratio(norms, wanted.norms)} ({name})", RULE)
        for parameter, total in wanted.sums.items():
            if oracle.difference(sums.get(parameter, torch.zeros_like(total)), total, clip_norm) > 1:
                blame = "Let the gradient of the input through" if parameter.endswith("front.weight") else RULE
                self.found.add(
                    f"the clipped sum of {_shown(parameter)} is not that of one example at a time ({name})", blame
                )

    def not_finite(self, batch: Sequence[Any], name: str) -> None:
        """An example that is not finite is left out, and nothing of it reaches the others."""
        if not isinstance(batch[0], Tensor) or not batch[0].is_floating_point():
            return
        spoiled = [batch[0].clone(), *batch[1:]]
        spoiled[0][-1] = torch.inf
        _, sums = self.private(spoiled, 1.0)
        _, wanted = self.private(oracle.take_rows(batch, 0, len(batch[0]) - 1), 1.0)
        for parameter, total in wanted.items():
            if oracle.difference(sums.get(parameter, torch.zeros_like(total)), total, 1.0) > 1:
                self.found.add(
                    f"an example that is not finite changes what others add to {_shown(parameter)} ({name})",
                    "Compute the contribution of each example from its own rows alone",
                )

    def fits_itself(self, batch: Sequence[Any]) -> bool:
        """Whether the module can be run on its own output."""
        with torch.no_grad():
            output = self.model(*batch)
        one = len(batch) == 1 and isinstance(batch[0], Tensor) and isinstance(output, Tensor)
        return one and batch[0].is_floating_point() and output.shape == batch[0].shape


def _masks(model: nn.Module, draws: int) -> Iterator[tuple[str, dict[str, Mask]]]:
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    own = {name: p for name, p in live.items() if name.startswith("module.") and p.dim() and p.numel() > 1}
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        yield "frozen elements", {n: torch.rand(p.shape, generator=generator) < 0.5 for n, p in own.items()}
        rows = {n: torch.randperm(len(p), generator=generator)[: (len(p) + 1) // 2].sort().values
                for n, p in own.items() if len(p) > 1}  # fmt: skip
        yield "frozen rows", {name: Channels(index) for name, index in rows.items()}
    for name in own if len(live) > 1 else ():  # with nothing live there is nothing to compare
        yield f"{_shown(name)} frozen", {name: False}


def _as_dtype(arguments: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    batch: list[Any] = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, list(arguments))
    return batch


def _first(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def _ratio(found: Tensor, wanted: Tensor) -> str:
    if found.shape != wanted.shape:
        return f"{len(found)} numbers, where there are {len(wanted)} examples"
    ratios = (found / wanted).flatten()
    return f"{float(ratios.min()):.4g} to {float(ratios.max()):.4g} times those of one example at a time"


def _shown(parameter: str) -> str:
    name = parameter.removeprefix("model.")
    return "what is in front of the module" if name == "front.weight" else name.removeprefix("module.")
