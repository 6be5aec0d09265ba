"""The contract between gradients and noise: what a clipping style decides, and what travels with the clipped sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.info import RunInfo

# Clipped gradients are multiplied and added up in float32, whose rounding would overshoot a bound by parts in ten
# million. Clipping therefore aims this much below it. The one place for it: styles need not think about rounding.
MARGIN = 1e-5
# Squares of numbers around 1e-20 vanish in float32, so that a norm below this may be far too small: a factor above 1
# would carry such a gradient beyond the bound. Factors are limited as if no norm were smaller.
SHORTEST = 1e-10
# Float32 ends at 3e38, and squares of norms at 2e19. Whether a gradient of that size overflows can depend on how many
# other examples a mean loss divides it by. So an example fades out over these norms, well below: what overflows counted
# as nothing before it did.
FADES, GONE = 1e15, 1e17
# How fast what is kept of an example may change with its norm, in bounds per relative change of the norm. Another
# example in the batch changes how a norm is rounded, by parts in ten million; no kept length may follow that by more
# than this many times as much. It is looked for along norms that grow by this ratio.
STEEPEST, RATIO = 100.0, 1.001


@dataclass(frozen=True)
class Block:
    """A named set of parameters whose gradients are clipped together.

    Args:
        name: for people.
        parameters: by name.
        bound: the most by which one example moves the block's clipped sum, in Euclidean norm.
        noise_weight: how noisy this block is in relation to the others (see `Clipping.stds`).
    """

    name: str
    parameters: tuple[str, ...]
    bound: float
    noise_weight: float = 1.0

    def __post_init__(self) -> None:
        _check(self.name, self.bound, self.noise_weight)
        object.__setattr__(self, "parameters", tuple(self.parameters))


@dataclass(frozen=True)
class Statistic:
    """A bounded number per example, summed over the batch and released with noise together with the gradients.

    Args:
        name: under which the noisy sum is handed to `Clipper.observe`.
        values: from the norms, [examples, blocks], to a number for each example, [examples], which follows from that
            example's norms alone.
        bound: the most that one example's number may be in magnitude; what is larger is cut to it.
        noise_weight: as for a `Block`.
        block: the block that it is about, if it is about one: while that is frozen, `Clipper.observe` is not told of
            it. Norms of what is frozen are 0, which says nothing of what they will be.
    """

    name: str
    values: Callable[[Tensor], Tensor]
    bound: float
    noise_weight: float = 1.0
    block: str | None = None

    def __post_init__(self) -> None:
        _check(self.name, self.bound, self.noise_weight)

    def of(self, norms: Tensor) -> Tensor:
        """What each example adds, [examples], float64. A norm that is not a number counts as infinite, and so do those
        beside it.
        """
        # What is no number overflowed on the way: it counts as infinite, as it would have in another batch.
        norms = norms.nan_to_num(nan=torch.inf, posinf=torch.inf)
        values, left = self._cut(norms), _fade(norms).squeeze(1).double()
        if bool((left < 1).any()):
            # Where the longest block overflows, the others may be no numbers in one batch and short in its neighbour.
            values = left * values + (1 - left) * self._cut(torch.full_like(norms, torch.inf))
        return values

    def total(self, norms: Tensor) -> Tensor:
        """The sum over examples, float64."""
        return self.of(norms).sum()

    def _cut(self, norms: Tensor) -> Tensor:
        what = f"statistic {self.name!r}, one number per example,"
        values = _of_shape(norms.shape[:1], self.values(norms.clone()), what)
        return torch.where(values.isnan(), 0.0, values.double()).clamp(-self.bound, self.bound)


@dataclass(frozen=True)
class Shorten:
    """The rule min(1, bound / norm): whatever is longer than its block's bound is shortened to it.

    >>> Shorten((1.0,))(torch.tensor([[0.5], [4.0]]))
    tensor([[1.0000],
            [0.2500]])
    """

    bounds: tuple[float, ...]

    def __call__(self, norms: Tensor) -> Tensor:
        return (norms.new_tensor(self.bounds) / norms).clamp(max=1)


@dataclass(frozen=True)
class Clipping:
    """How one logical batch is clipped: fixed before its first chunk, and part of its clipped sum.

    Args:
        blocks: every parameter that the optimizer moves is in exactly one of them.
        rule: from norms, [examples, blocks], to factors of the same shape. A factor may exceed 1. An example's factors
            follow from its norms alone.
        statistics: further numbers that the same release contains.
        learning_rate: what the learning rate is multiplied by in this step.
        jumps: the rule jumps, and that is known. For analysis: see below.
        alike: clippings with the same one do the same in units of their bounds, so that `check_rule` is for the first
            of them alone. None: it is for each.

    Guarantees:
        Factors are such that factor × norm is at most the block's bound, whatever the rule says: what exceeds it is cut
        to it, a factor that is not a number is 0, and an example with a norm that is not finite, or not below `GONE`,
        gets 0 in every block. The blocks, bounds and noise weights that noise is computed from are those that the sum
        was clipped with, since they are one object.

        Factors are Lipschitz in the norm (`check_rule`): rounding, which changes when an example comes or goes, cannot
        move what others contribute by more than rounding. A rule that jumps breaks this: examples that lie at the jump
        may all be kept in one batch and dropped in its neighbour. It is refused, unless ``jumps`` says that it is
        known, and then the bounds hold only as far as no norm lies at the jump.

    >>> clipping = Clipping.flat(["weight", "bias"], bound=1.0, rule=lambda norms: torch.full_like(norms, 2.0))
    >>> clipping.factors(torch.tensor([[0.25], [4.0]])).round(decimals=3)
    tensor([[2.0000],
            [0.2500]])
    >>> clipping.stds(noise_multiplier=1.5)
    ((1.5,), ())
    """

    blocks: tuple[Block, ...]
    rule: Callable[[Tensor], Tensor]
    statistics: tuple[Statistic, ...] = ()
    learning_rate: float = 1.0
    jumps: bool = False
    alike: Hashable = None

    def __post_init__(self) -> None:
        validate.positive(learning_rate=self.learning_rate)
        validate.finite(learning_rate=self.learning_rate)
        object.__setattr__(self, "blocks", tuple(self.blocks))
        object.__setattr__(self, "statistics", tuple(self.statistics))
        names = [name for block in self.blocks for name in block.parameters]
        if not self.blocks or len(set(names)) != len(names):
            raise InvalidValue("a clipping needs one block or more, and each parameter belongs to one of them")
        labels = [each.name for each in self._components]
        if len(set(labels)) != len(labels):
            raise InvalidValue(f"blocks and statistics need different names, got {', '.join(labels)}")

    @classmethod
    def flat(
        cls,
        parameters: Iterable[str],
        bound: float,
        rule: Callable[[Tensor], Tensor],
        statistics: tuple[Statistic, ...] = (),
    ) -> Clipping:
        """All parameters together in one block."""
        return cls((Block("all parameters", tuple(parameters), bound),), rule, statistics)

    @property
    def _components(self) -> list[Block | Statistic]:
        return [*self.blocks, *self.statistics]

    @cached_property
    def block_of(self) -> Mapping[str, int]:
        """The number of the block that a parameter is in, by its name."""
        return {name: number for number, block in enumerate(self.blocks) for name in block.parameters}

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """For each block: how far one example moves its clipped sum at most."""
        return tuple(block.bound for block in self.blocks)

    @cached_property
    def _aims(self) -> Tensor:
        """[blocks]; of one block a single number, which torch takes for one of any device and precision."""
        aims = torch.tensor([bound * (1 - MARGIN) for bound in self.bounds], dtype=torch.float64)
        return aims[0] if len(aims) == 1 else aims

    @cached_property
    def _shortens(self) -> bool:
        return isinstance(self.rule, Shorten) and self.rule.bounds == self.bounds

    @property
    def sensitivity(self) -> float:
        """How far one example moves the sums of all blocks together at most."""
        return math.hypot(*self.bounds)

    def factors(self, norms: Tensor, *, short: bool = False) -> Tensor:
        """Factors for ``norms``, both [examples, blocks], float32; the bounds hold with a margin for rounding.

        Args:
            short: all norms are known to be below `FADES`, so that none fades out.
        """
        aims = self._aims if self._aims.dim() == 0 else self._aims.to(norms)
        most = aims / norms.clamp(SHORTEST)
        if short and self._shortens:
            return most.clamp_(max=1)  # what is below would come to the same
        # A copy: what a rule writes into its norms must not change what is finite.
        asked = _of_shape(norms.shape, self.rule(norms.clone()), "a clipping's rule, one factor per norm,")
        # What is not a number stays so in the minimum, and an infinite norm times nothing is none: both become 0.
        factors = torch.minimum(asked.to(norms.dtype), most)
        if not short:
            factors.mul_(_fade(norms))
        return factors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0)

    def __str__(self) -> str:
        """In what blocks, and with which noise.

        >>> two = Clipping((Block("a", ("a",), 3.0), Block("b", ("b",), 4.0)), rule=torch.ones_like)
        >>> print(two)
        2 blocks, noise of one level for all of them
        """
        words = ["one block"] if len(self.blocks) == 1 else [f"{len(self.blocks)} blocks", self._noise_levels()]
        if self.statistics:
            words.append(f"{len(self.statistics)} noisy count{'s' * (len(self.statistics) > 1)} in the same release")
        if self.jumps:
            words.append("a rule that jumps, so that all this holds in exact arithmetic alone")
        return ", ".join(words)

    def _noise_levels(self) -> str:
        weights = [block.noise_weight for block in self.blocks]
        if len(set(weights)) == 1:
            return "noise of one level for all of them"
        shares = [weight / block.bound for weight, block in zip(weights, self.blocks, strict=True)]
        same = math.isclose(min(shares), max(shares), rel_tol=1e-9)
        return "noise in proportion to the bound of each" if same else "noise by weights"

    def check_rule(self, norms: Tensor) -> None:
        """Refuses what breaks the contract of rules and statistics: other examples' norms, and jumps.

        Tried on the first, the last and the longest of these norms, each by itself; jumps, on a grid around the bounds.
        """
        self._check_rows(norms)
        if not self.jumps:
            self._check_jumps(norms)

    def _check_rows(self, norms: Tensor) -> None:
        for row in {0, len(norms) - 1, int(norms.sum(1).nan_to_num(0.0).argmax())}:
            one = norms[row : row + 1]
            pairs = [(self.rule, "a clipping's rule"), *((s.values, f"statistic {s.name!r}") for s in self.statistics)]
            for function, what in pairs:
                alone, together = function(one.clone())[0], function(norms.clone())[row]
                if not torch.allclose(alone, together, rtol=1e-4, atol=1e-6, equal_nan=True):
                    raise NotPrivate(
                        f"{what} gives an example another number in a batch than alone: it uses the other examples' "
                        "norms (a mean, a maximum), so that one example changes what is kept of all. Compute each row "
                        "from that row of norms; for a norm that follows the data, use noisy statistics (observe)"
                    )

    def _check_jumps(self, like: Tensor) -> None:
        """What is kept of an example, and what is counted, along norms that grow from a tenth of the bounds to ten."""
        lengths = torch.logspace(-1, 1, 4607, base=10.0, dtype=torch.float64)  # each `RATIO` times the one before
        norms = lengths[:, None] * torch.tensor(self.bounds, dtype=torch.float64)
        for what in self.jumps_along(norms.to(like)):
            raise NotPrivate(
                f"{what} jumps: a norm that differs by a thousandth changes what is kept or counted by more than "
                f"{STEEPEST * (RATIO - 1):g} of the bound. Other examples in the batch change how norms are "
                "rounded, so that one of them could move others across the jump. Let it fall over a width, as "
                "hoarfrost.clip.Global does, or state Clipping(jumps=True), for analysis"
            )

    def jumps_along(self, norms: Tensor) -> list[str]:
        """What jumps, of rule and statistics, along rows of which each is at most `RATIO` times the one before."""
        found = {"a clipping's rule": self.factors(norms) * norms / norms.new_tensor(self.bounds)}
        for statistic in self.statistics:
            found[f"statistic {statistic.name!r}"] = statistic.of(norms)[:, None] / statistic.bound
        most = STEEPEST * (RATIO - 1)
        return [what for what, values in found.items() if bool((values.double().diff(dim=0).abs() > most).any())]

    def heard(self, statistics: Mapping[str, float], live: Iterable[str]) -> dict[str, float]:
        """Those of the noisy ``statistics`` that are not about a block of which nothing is live."""
        blocks = {self.blocks[self.block_of[name]].name for name in live if name in self.block_of}
        about = {statistic.name: statistic.block for statistic in self.statistics}
        return {name: value for name, value in statistics.items() if about[name] is None or about[name] in blocks}

    def stds(
        self, noise_multiplier: float, live: Iterable[str] | None = None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Standard deviations of the noise: for each block, and for each statistic.

        σ · w_b · √(Σ_c (S_c / w_c)²), with bounds S and noise weights w. Whatever the weights, everything together is
        one Gaussian release with noise multiplier σ (`noise_multiplier`).

        Args:
            live: the parameters of which something is released; by default all. A block without any takes no share of
                the noise: its sum is not released.

        >>> two = Clipping((Block("a", ("a",), 3.0), Block("b", ("b",), 4.0)), rule=torch.ones_like)
        >>> two.stds(1.0)[0], two.stds(1.0, live=["b"])[0]
        ((5.0, 5.0), (4.0, 4.0))
        """
        released = self._released(live)
        scale = noise_multiplier * math.hypot(*(each.bound / each.noise_weight for each in released))
        stds = tuple(scale * each.noise_weight for each in self._components)
        return stds[: len(self.blocks)], stds[len(self.blocks) :]

    def noise_multiplier(
        self, block_stds: Iterable[float], statistic_stds: Iterable[float] = (), live: Iterable[str] | None = None
    ) -> float:
        """The noise multiplier of the joint release: (Σ_b (S_b / s_b)²)^(-1/2), with bounds S and deviations s.

        >>> two = Clipping((Block("a", ("a",), 3.0), Block("b", ("b",), 4.0)), rule=torch.ones_like)
        >>> round(two.noise_multiplier([10.0, 10.0]), 6)
        2.0
        """
        stds = dict(zip(self._components, (*block_stds, *statistic_stds), strict=True))
        released = self._released(live)
        if min(stds[each] for each in released) == 0:
            return 0.0
        moves = math.hypot(*(each.bound / stds[each] for each in released))
        return 1 / moves if moves else math.inf

    def _released(self, live: Iterable[str] | None) -> list[Block | Statistic]:
        """The blocks of which something is released, and all statistics."""
        if live is None:
            return self._components
        numbers = {self.block_of[name] for name in live}
        blocks = [block for number, block in enumerate(self.blocks) if number in numbers]
        return [*blocks, *self.statistics] or self._components  # nothing at all: any noise will do


class Clipper(ABC):
    """A clipping style: says before every logical batch how that batch is clipped.

    One of your own needs `begin` alone, and, if it has settings, a ``repr`` that shows them (a dataclass has one).

    >>> class Dropping(Clipper):
    ...     '''Keeps gradients up to norm 0.9 whole, and of longer ones ever less: nothing from norm 1 on.'''
    ...     def begin(self, step, info):
    ...         return Clipping.flat(info.shapes, bound=1.0, rule=lambda norms: ((1 - norms) / 0.1).clamp(0, 1))

    Guarantees:
        A style sees step numbers, names and shapes, and noisy statistics that were paid for (`observe`); per-example
        norms only inside of a `Clipping`'s rule and statistics, whose results are bounded. What it decides from these
        costs no privacy beyond the step's.
    """

    def __repr__(self) -> str:
        """In words; a checkpoint gives its state to a style of the same ones."""
        return f"{type(self).__name__}()"

    @abstractmethod
    def begin(self, step: int, info: RunInfo) -> Clipping:
        """How the logical batch of step ``step`` (from 0) is clipped; asked once for every batch."""

    def check(self, info: RunInfo) -> None:  # noqa: B027 - most need not
        """Refuses what cannot be in this run. Called once, before the first batch."""

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:  # noqa: B027 - most need not
        """Sees the noisy sums of the step's statistics, by name. What a style keeps across steps comes from here."""

    def state(self) -> dict[str, Tensor]:
        """What must be kept in a checkpoint; most styles keep nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need not
        """Takes back what `state` gave."""

    def fresh(self) -> Clipper:
        """For a run of its own: itself, or a copy that forgets if it keeps something."""
        return self


def check_clipper(clipper: object) -> Clipper:
    """Refuses what is no clipping style."""
    if not isinstance(clipper, Clipper):
        raise InvalidValue(f"clip= takes a clipping style, such as hoarfrost.clip.Local(1.0), not {clipper!r}")
    return clipper


def check_clipping(clipping: object, clipper: Clipper, parameters: Iterable[str]) -> Clipping:
    """Refuses what `begin` must not return; ``parameters`` are the names of all that is clipped."""
    if not isinstance(clipping, Clipping):
        raise InvalidValue(f"begin() of {clipper!r} returned {clipping!r}, not a Clipping")
    missing = [name for name in parameters if name not in clipping.block_of]
    if missing:
        raise InvalidValue(f"{clipper!r} puts {', '.join(missing)} in no block: it would be trained without clipping")
    return clipping


def _check(name: object, bound: float, noise_weight: float) -> None:
    if not isinstance(name, str):
        raise InvalidValue(f"a block or statistic has a name, got {name!r}")
    validate.positive(bound=bound, noise_weight=noise_weight)
    validate.finite(bound=bound, noise_weight=noise_weight)
    if bound > FADES:  # sums of such numbers overflow
        raise InvalidValue(f"a clipping norm must be at most {FADES:g}, beyond which gradients fade out, got {bound:g}")


def _fade(norms: Tensor) -> Tensor:
    """What is left of an example, [examples, 1]: from 1 up to `FADES` down to 0 at `GONE`."""
    # By the longest block: where that overflows, others may be finite in one batch and not in its neighbour.
    slope = 1 / math.log(GONE / FADES)
    return (math.log(GONE) * slope - norms.amax(1, keepdim=True).log_().mul_(slope)).clamp_(0, 1)


def _of_shape(shape: torch.Size, found: object, what: str) -> Tensor:
    """Refuses another shape. It would be broadcast, and one example's number would become another one's."""
    if not isinstance(found, Tensor) or found.shape != shape:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise InvalidValue(f"{what} returned {got}, not a tensor of shape {tuple(shape)}")
    return found
