"""Is a clipping style what the contract asks for? What it says, what real steps do with it, and the audits."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from hoarfrost.freezing import Freezer, Random
from hoarfrost.info import RunInfo
from hoarfrost.masks import Channels, Live, as_tensor
from hoarfrost.observers import Observer, Released, Sums
from hoarfrost.private import make_private
from hoarfrost.run import Private
from hoarfrost.testing import clipping_contract as contract
from hoarfrost.testing import oracle, settings
from hoarfrost.testing.findings import Findings

NOISY_STEPS = 60


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
      covers all parameters; rule and statistics treat every example on its own, keep to their bounds and do not jump
      (unless `Clipping.jumps` says so), whether one block's norm grows or all do; state comes back from a checkpoint;
      runs share nothing; the ``repr`` shows the settings, and nothing that changes.
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
                contract.check_contract(found, clipper, _run(clipper, model, inputs, noise_multiplier=1.0).info())
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
        if not contract.same_clipping(clipping, released.clipping):
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
    for _ in range(contract.STEPS // 2):
        next(taken)
    later = _run(clipper, model, inputs, noise_multiplier=1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        private.save(path)
        later.load(path)
    info, pair = private.info(), (private.optimizer.engine.clipper, later.optimizer.engine.clipper)
    for step in range(contract.STEPS // 2, contract.STEPS):
        one, two = (each.begin(step, info) for each in pair)
        if not contract.same_clipping(one, two):
            found.add(
                "a run that goes on from a checkpoint clips otherwise than the run that wrote it",
                "Put everything that observe() changes into state(), and take it back in load_state()",
            )
            return
        if one.statistics:
            for each in pair:
                each.observe(step, contract.made_up(one, step, info), info)


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
            for step in (0,) if quick else (0, contract.STEPS):
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
