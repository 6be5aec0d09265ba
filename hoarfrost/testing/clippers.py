"""Is a clipping style what the contract asks for? What it says, what real steps do with it, and the audits."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.utils.data import Dataset

from hoarfrost import audit
from hoarfrost.audit.canaries import ByFreezer, Freezing, OneClipping
from hoarfrost.audit.result import ALPHA
from hoarfrost.clipping import Clipper, Clipping
from hoarfrost.clipping.base import check_clipping
from hoarfrost.freezing import Freezer, Random
from hoarfrost.info import RunInfo
from hoarfrost.masks import Channels, Live, as_tensor
from hoarfrost.observers import Observer, Released, Sums
from hoarfrost.private import make_private
from hoarfrost.run import Private
from hoarfrost.testing import oracle, settings
from hoarfrost.testing.findings import Findings

STEPS = 8  # of the runs that contract checks are about
NOISY_STEPS = 60
SIZES = (0.0, 1e-30, 1e-6, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 10.0, 1e3, 1e6, 1e18, 1e30, torch.inf, torch.nan)
"""Norms that rules and statistics are tried on, in units of the blocks' bounds."""


def check_clipper(
    clipper: Clipper, *, models: Sequence[tuple[nn.Module, Tensor]] | None = None, quick: bool = True
) -> None:
    """Checks a clipping style of your own, and raises `ContractBroken` with all that is wrong.

    Args:
        clipper: the style, with settings that truly clip.
        models: pairs of a model and a batch of its inputs, [examples, ...], if the style is made for certain models.
            By default small ones with linear, convolutional, normalization and embedding layers.
        quick: a few seconds. False takes longer audits, also with frozen coordinates and for every model.

    Checked are:

    - The contract: `begin` is a function of step and of what `observe` was told, and changes nothing; its clipping
      covers all parameters; rule and statistics treat every example on its own and keep to their bounds; state comes
      back from a checkpoint; runs share nothing; the ``repr`` shows the settings, and nothing that changes.
    - Real steps, also in chunks, with views and with frozen coordinates, against one example at a time: norms, clipped
      sums, and statistics with and without noise.
    - The audits of sensitivity, step and noise (`hoarfrost.audit`).

    Guarantees:
        A correct style is refused with probability below 1e-4, and everything but the noise is deterministic. A pass
        says that no fault was found in what was tried.

    >>> import hoarfrost
    >>> check_clipper(hoarfrost.clip.Local(0.5))
    >>> class Forgetful(Clipper):
    ...     def begin(self, step, info):
    ...         return Clipping.flat(list(info.shapes)[1:], bound=1.0, rule=torch.ones_like)
    >>> check_clipper(Forgetful())
    Traceback (most recent call last):
        ...
    hoarfrost.errors.ContractBroken: ...Forgetful... puts 0.weight in no block: it would be trained without clipping...
    """
    found = Findings(repr(clipper))
    if not isinstance(clipper, Clipper):
        found.add("it is no Clipper", "Derive it from hoarfrost.clip.Clipper")
        found.finish()
    tried = oracle.small_models() if models is None else tuple(models)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings.check_repr(found, clipper, "its state is restored from a checkpoint")
        for model, inputs in tried:
            with found.during("begin()"):
                _check_contract(found, clipper, model, inputs)
        if not found:  # or what follows says the same in other words
            with found.during("a private step"):
                for model, inputs in tried:
                    for options in ({}, {"max_physical_batch": 3}, {"views": 2}, {"freeze": _SomeFrozen()}):
                        _check_steps(found, clipper, model, inputs, 3 if quick else 8, options)
                _check_statistics(found, clipper, *tried[0])
            with found.during("a checkpoint"):
                _check_checkpoint(found, clipper, *tried[0])
        if not found:
            with found.during("an audit"):
                own = () if models is None and quick else tried
                for alarm in _audits(clipper, own, quick, on_linear_loss=models is None):
                    found.add(alarm, "hoarfrost.audit says what this test is about")
    found.finish()


# What the style says.


def _check_contract(found: Findings, clipper: Clipper, model: nn.Module, inputs: Tensor) -> None:
    private = _run(clipper, model, inputs, noise_multiplier=1.0)
    info, own = private.info(), clipper.fresh()
    if not isinstance(own, Clipper):
        found.add(f"fresh() returns {own!r}", "Return the style itself, or a copy of it")
        return
    first = check_clipping(own.begin(0, info), own, info.shapes)
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in own.state().items()):
        found.add("state() holds something else than tensors by name", "Turn numbers into torch.tensor(...)")
        return
    for step in (0, 1, STEPS - 1):
        before = {name: value.clone() for name, value in own.state().items()}
        clipping = check_clipping(own.begin(step, info), own, info.shapes)
        own.begin(step + 1, info)
        if not _same(clipping, own.begin(step, info)):
            found.add(
                f"begin({step}, info) gives another clipping when it is asked again",
                "Let it depend on the step and on what observe() was told alone: no random numbers, no counting",
            )
        if not settings.same_tensors(before, own.state()):
            found.add("begin() changes state()", "Change what is kept in observe() alone")
        _check_rule(found, clipping)
    _check_observing(found, clipper, own, info, first)


def _check_rule(found: Findings, clipping: Clipping) -> None:
    norms, bounds = _norms(clipping), torch.tensor(clipping.bounds)
    finite = norms.isfinite().all(1) & (norms > 0).all(1) & (norms <= 1e18 * bounds).all(1)
    factors = _check_rows(found, "the rule", clipping.rule, norms, norms.shape)
    if factors is not None:
        kept = (factors * norms)[finite] / bounds
        if not bool(((kept >= 0) & (kept <= 1 + 1e-4)).all()):
            found.add(
                f"the rule keeps up to {float(kept.max()):.4g} and down to {float(kept.min()):.4g} times the bound",
                "Return factors for which 0 <= factor * norm <= bound, or state the bound that the rule keeps to. "
                "Nothing is lost for privacy, since the library cuts what exceeds it, but it is not what was meant",
            )
    kept = clipping.factors(norms)
    if kept.shape != norms.shape or not bool(kept.isfinite().all()):
        found.add("factors() of the clipping gives something that is not finite", "Do not override it")
    elif bool(((kept * norms)[finite] > bounds).any()):
        found.add("factors() of the clipping exceeds its bounds", "Do not override it")
    for statistic in clipping.statistics:
        values = _check_rows(found, f"statistic {statistic.name!r}", statistic.values, norms, norms.shape[:1])
        if values is not None and bool((values[finite].abs() > statistic.bound * (1 + 1e-6)).any()):
            found.add(
                f"statistic {statistic.name!r} is up to {float(values[finite].abs().max()):.4g}, above its bound "
                f"{statistic.bound:g}",
                "State a larger bound, or clamp the values: the library cuts them to the bound, and its sum is not "
                "the one that was meant",
            )


def _check_rows(
    found: Findings, what: str, function: Callable[[Tensor], Tensor], norms: Tensor, shape: torch.Size
) -> Tensor | None:
    """The function's values, if they have the right shape; it must treat every example on its own."""
    given = norms.clone()
    values = function(given)
    if not isinstance(values, Tensor) or values.shape != shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        found.add(f"{what} gives {got} for norms of shape {tuple(norms.shape)}", f"Return a tensor {tuple(shape)}")
        return None
    if not settings.same_tensors({"": given}, {"": norms}):
        found.add(f"{what} changes the norms that it is handed", "Compute with new tensors, not in place")
    # Once more without what is not finite, beside which other numbers may not show.
    for several in (norms, norms[norms.isfinite().all(1) & (norms < 1e6).all(1)]):
        alone = torch.cat([function(several[row : row + 1].clone()) for row in range(len(several))]).double()
        if torch.allclose(alone, function(several.clone()).double(), rtol=1e-5, atol=0.0, equal_nan=True):
            continue
        found.add(
            f"{what} gives an example another value when other examples are in the batch",
            "Compute every row from that row alone: with a mean or a maximum over the batch, one example changes what "
            "is kept of all others, and the bounds do not hold",
        )
    if function(norms[:0].clone()).shape != (0, *shape[1:]):
        found.add(f"{what} has a wrong shape for no examples at all", "Keep the first dimension, also if it is 0")
    return values.double()


def _check_observing(found: Findings, clipper: Clipper, own: Clipper, info: RunInfo, first: Clipping) -> None:
    """What it keeps of noisy statistics stays within a run, and leaves it with clippings that can be used."""
    other, words, said = clipper.fresh(), repr(clipper), _values(first)
    for step in range(STEPS):
        clipping = check_clipping(own.begin(step, info), own, info.shapes)
        if clipping.statistics:
            own.observe(step, _made_up(clipping, step, info), info)
    later = check_clipping(own.begin(STEPS, info), own, info.shapes)
    _check_rule(found, later)
    if not _alike(said, _values(first)):
        found.add(
            "the rule or a statistic of a clipping changes when later steps are observed",
            "Take the numbers that they use in begin(), as local variables, and not from self when they are called",
        )
    if not all(_same(first, each.begin(0, info)) for each in (other, clipper.fresh())):
        found.add(
            "what one run observes changes the clipping of another one",
            "Let fresh() return a copy that begins anew, such as copy.copy(self) with its state set back",
        )
    if repr(own) != words:
        found.add(
            f"its repr changes during a run, from {words} to {own!r}",
            "Show settings alone: a checkpoint gives its state to a style with the same repr, and to no other",
        )


def _made_up(clipping: Clipping, step: int, info: RunInfo) -> dict[str, float]:
    """Noisy sums that could be: noise may make them negative, or larger than all examples together."""
    generator = torch.Generator().manual_seed(step)
    stds = clipping.stds(info.noise_multiplier)[1]
    made = {}
    for statistic, std in zip(clipping.statistics, stds, strict=True):
        share, noise = torch.rand((), generator=generator), torch.randn((), generator=generator)
        made[statistic.name] = float(share * statistic.bound * info.expected_batch + 3 * std * noise)
    return made


def _norms(clipping: Clipping) -> Tensor:
    """[examples, blocks]: all blocks alike, and each of them on its own."""
    sizes, blocks = torch.tensor(SIZES), len(clipping.blocks)
    mixed = sizes[torch.randint(len(SIZES), (3 * len(SIZES), blocks), generator=torch.Generator().manual_seed(0))]
    return torch.cat([sizes[:, None].expand(-1, blocks), mixed]) * torch.tensor(clipping.bounds)


def _same(one: object, other: object) -> bool:
    """Whether two clippings do the same."""
    if not isinstance(one, Clipping) or not isinstance(other, Clipping) or one.blocks != other.blocks:
        return False
    stated = [[(each.name, each.bound, each.noise_weight) for each in c.statistics] for c in (one, other)]
    return stated[0] == stated[1] and _alike(_values(one), _values(other))


def _values(clipping: Clipping) -> list[Tensor]:
    """What rule and statistics say of `_norms`."""
    norms = _norms(clipping)
    functions = [clipping.rule, *(statistic.values for statistic in clipping.statistics)]
    return [function(norms.clone()).double() for function in functions]


def _alike(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return settings.same_tensors(dict(enumerate(one)), dict(enumerate(other)))


# What real steps do.


class _SomeFrozen(Freezer):
    """Elements of one parameter, rows of another, and all of a third are frozen."""

    def key(self, step: int, info: RunInfo) -> None:
        return None

    def live(self, step: int, info: RunInfo) -> Live:
        masks: dict[str, Any] = dict.fromkeys(info.shapes, True)
        for number, (name, shape) in enumerate(info.shapes.items()):
            if number % 4 == 0 and len(shape):
                masks[name] = torch.rand(shape, generator=torch.Generator().manual_seed(number)) < 0.5
            elif number % 4 == 2 and len(shape):
                masks[name] = Channels(torch.arange((shape[0] + 1) // 2))
            elif number % 4 == 3:
                masks[name] = number == len(info.shapes) - 1
        return masks


class _Drawn(Dataset):
    """The inputs with a little chance in each draw, so that the views of an example differ."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Tensor:
        x = self.inputs[index]
        return x + 0.3 * torch.randn_like(x) if x.is_floating_point() else x.roll(int(torch.randint(2, ())), -1)


class _Recorder(Observer):
    """Keeps what one step shows."""

    def __init__(self) -> None:
        self.norms: list[Tensor] = []
        self.released: Released

    def on_sums(self, sums: Sums) -> None:
        self.norms.append(sums.norms.clone())

    def on_release(self, released: Released) -> None:
        self.released = released


def _run(clipper: Clipper, model: nn.Module, inputs: Tensor, **options: Any) -> Private:
    model = copy.deepcopy(model)
    given: dict[str, Any] = {"noise_multiplier": 0.0, "steps": NOISY_STEPS, "accountant": "rdp"} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return make_private(model, optimizer, _Drawn(inputs), sample_rate=1.0, delta=1e-5, clip=clipper, **given)


def _steps(private: Private, scale: float) -> Iterator[Tensor]:
    """Takes a step with every pass over the loader, and says what it was taken on."""
    while True:
        chunks = []
        for x in private.loader:
            private.optimizer.zero_grad()
            (scale * oracle.row_losses(private.model(x))).mean().backward()
            private.optimizer.step()
            chunks.append(x)
        yield torch.cat(chunks)


def _scale(model: nn.Module, inputs: Tensor, clipping: Clipping) -> float:
    """What losses are multiplied by so that about half of the examples are clipped."""
    norms = oracle.expected(oracle.gradients(model, [inputs], oracle.row_losses), {}, clipping).norms
    middle = float((norms / torch.tensor(clipping.bounds)).amax(1).quantile(0.5))
    return 1 / middle if middle > 0 else 1.0


def _check_steps(
    found: Findings, clipper: Clipper, model: nn.Module, inputs: Tensor, steps: int, options: Mapping[str, Any]
) -> None:
    """Norms, sums and statistics of real steps without noise, against one example at a time."""
    private, seen, shadow = _run(clipper, model, inputs, **options), _Recorder(), clipper.fresh()
    private.observe(seen)
    plain = copy.deepcopy(model)
    scale = _scale(plain, inputs, shadow.begin(0, private.info()))
    taken = _steps(private, scale)
    where = "".join(f", {name}={value!r}" for name, value in options.items() if name != "freeze")
    where = f"in {type(model).__name__} with {', '.join(private.info().shapes)}{where}"
    for step in range(steps):
        plain.load_state_dict(private.model.state_dict())
        seen.norms.clear()
        x = next(taken)
        released, info = seen.released, private.info()
        clipping = shadow.begin(step, info)
        if not _same(clipping, released.clipping):
            found.add(
                f"step {step} was not clipped as begin() says after the same observations, {where}",
                "Decide from the step, from info and from what observe() was told alone",
            )
            return
        masks = {}
        if "freeze" in options:
            live = options["freeze"].live(step, info)
            masks = {name: as_tensor(mask, info.shapes[name]) for name, mask in live.items()}
        per_example = oracle.gradients(
            plain, [x], lambda output: scale * oracle.row_losses(output), options.get("views", 1)
        )
        norms = torch.cat(seen.norms)
        wanted = oracle.expected(per_example, masks, clipping, norms if len(norms) == len(per_example) else None)
        pairs = {"the norms": (norms, wanted.norms, max(clipping.bounds))}
        for name, total in wanted.sums.items():
            bound = clipping.bounds[clipping.block_of[name]]
            pairs[f"the clipped sum of {name}"] = (released.clipped.get(name, torch.zeros_like(total)), total, bound)
        for statistic in clipping.statistics:
            one, two = released.statistics[statistic.name], wanted.statistics[statistic.name]
            pairs[f"statistic {statistic.name!r}"] = (torch.tensor(one), torch.tensor(two), statistic.bound)
        for what, (is_, should, bound) in pairs.items():
            if oracle.difference(is_, should, bound) > 1:
                found.add(
                    f"{what} in step {step}: not what one example at a time gives, {where}",
                    "See that rule and statistics compute every example from its own norms",
                )
        if clipping.statistics:
            shadow.observe(step, released.statistics, info)


def _check_statistics(found: Findings, clipper: Clipper, model: nn.Module, inputs: Tensor) -> None:
    """The noise on statistics and blocks is the stated one."""
    private, seen = _run(clipper, model, inputs, noise_multiplier=1.5), _Recorder()
    private.observe(seen)
    taken = _steps(private, _scale(model, inputs, clipper.fresh().begin(0, private.info())))
    squares: dict[str, list[float]] = {}
    for _ in range(NOISY_STEPS):
        seen.norms.clear()
        next(taken)
        clipping, norms = seen.released.clipping, torch.cat(seen.norms)
        block_stds, stds = clipping.stds(1.5)
        if any(seen.released.stds[name] != block_stds[block] for name, block in clipping.block_of.items()):
            found.add("the noise does not follow from the clipping", "Do not override stds() of the clipping")
        for statistic, std in zip(clipping.statistics, stds, strict=True):
            noise = (seen.released.statistics[statistic.name] - float(statistic.total(norms))) / std
            squares.setdefault(statistic.name, []).append(noise**2)
    for name, each in squares.items():
        low, high = chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], len(each))
        if not low <= sum(each) <= high:
            found.add(
                f"the noise on statistic {name!r} has {(sum(each) / len(each)) ** 0.5:.3g} times the stated size",
                "Let its values depend on the norms alone",
            )


def _check_checkpoint(found: Findings, clipper: Clipper, model: nn.Module, inputs: Tensor) -> None:
    """A run that goes on from a checkpoint clips as the one that wrote it would have."""
    private = _run(clipper, model, inputs, noise_multiplier=1.0)
    taken = _steps(private, _scale(model, inputs, clipper.fresh().begin(0, private.info())))
    for _ in range(STEPS // 2):
        next(taken)
    later = _run(clipper, model, inputs, noise_multiplier=1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        private.save(path)
        later.load(path)
    info, pair = private.info(), (private.optimizer.engine.clipper, later.optimizer.engine.clipper)
    for step in range(STEPS // 2, STEPS):
        one, two = (each.begin(step, info) for each in pair)
        if not _same(one, two):
            found.add(
                "a run that goes on from a checkpoint clips otherwise than the run that wrote it",
                "Put everything that observe() changes into state(), and take it back in load_state()",
            )
            return
        if one.statistics:
            for each in pair:
                each.observe(step, _made_up(one, step, info), info)


# The audits.


def _audits(
    clipper: Clipper, models: Iterable[tuple[nn.Module, Tensor]], quick: bool, on_linear_loss: bool
) -> Iterator[str]:
    freezing: list[Freezing] = [Freezing()]
    if not quick:
        freezing.append(ByFreezer(Random(rate=0.5, redraw="never"), share=0.4))
    canaries, rounds = (64, 30) if quick else (512, 100)
    if on_linear_loss:
        for freeze in freezing:
            for step in (0,) if quick else (0, STEPS):
                one = OneClipping(clipper, step)
                yield from audit.sensitivity(clip=one, freeze=freeze, rounds=1 if quick else 2).alarms
            yield from audit.step(
                noise_multiplier=1.0, clip=clipper, freeze=freeze, canaries=canaries, rounds=rounds
            ).alarms
    for model, inputs in models:
        shape = tuple(inputs.shape[1:])
        if inputs.is_floating_point():
            yield from audit.sensitivity(clip=clipper, model=model, shape=shape, rounds=1).alarms
        yield from audit.noise(clip=clipper, model=model, shape=shape, dtype=inputs.dtype).alarms
