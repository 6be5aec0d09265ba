"""Poisson batches from a torch Dataset or DataLoader."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from hoarfrost import validate
from hoarfrost.epochs import first_step
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.nested import map_tensors
from hoarfrost.noise import Keystream
from hoarfrost.sampling.at_once import loader_of
from hoarfrost.sampling.draws import Draws, brought
from hoarfrost.sampling.empty import empty_batch_of
from hoarfrost.sampling.lengths import lengths_of
from hoarfrost.sampling.order import refuse_reordering
from hoarfrost.sampling.overlap import tell_of_repeats
from hoarfrost.sampling.poisson import Poisson
from hoarfrost.sampling.rows import Rows
from hoarfrost.sampling.source import loader_settings, people_of, poisson_of
from hoarfrost.tickets import Chunk, Tickets

_END = object()


class PoissonLoader:
    """Iterates like a DataLoader; every batch is a Poisson sample of the whole data set.

    An iteration is one epoch: the steps between two epoch boundaries (`hoarfrost.epochs.first_step`), so that the
    epochs of a run add up to the right number of steps although 1/q is seldom whole. Epochs count on from one
    iteration to the next, and the run ends at `steps` batches exactly, if need be within an epoch.

    **Batches may be empty.** They are yielded like any other, with zero rows: the step that follows releases
    noise and was paid for. **Batches may be large**: with `max_physical_batch` a logical batch comes as
    several chunks.

    **Breaking off.** A logical batch counts as drawn (`steps_drawn`) when its last chunk is handed over.
    `break` leaves nothing behind: what had been drawn ahead is forgotten, an incomplete batch does not count,
    no later batch has anything to do with it, and the next iteration is the next epoch, opening with a new
    batch. (What `on_batch` charged for it stays charged.) The broken epoch's missing steps stay unspent, so a
    run may take more epochs than planned, never more steps. Only one iteration is alive at a time: a new one
    ends the one before, whose iterator then refuses to go on.

    Args:
        data: a map-style Dataset, or a DataLoader, which lends its dataset, collate function and worker
            settings.
        batch_size: the expected batch. A DataLoader's own is taken if neither this nor `sample_rate` is
            given.
        sample_rate: q, instead of `batch_size`.
        poisson: what draws the batches, instead of either.
        steps: how many batches the whole run may have; None for no limit.
        max_physical_batch: the most rows in one chunk: as many examples (or people) as fit if each has all its rows.
        lengths: how long each row is, a number for each or a function of a row: chunks then hold examples of like
            length (`Lengths`).
        views: how often each drawn example is fetched, in neighbouring rows: random augmentation differs each
            time.
        person, per_person: an id for each row, and the most rows of a person: people are drawn, not rows (`People`).
            A drawn person's rows are neighbours.
        batch_first: where the examples lie in a batch's tensors; see `empty_batch`.
        seed: makes the batches repeatable, whatever the number of workers; for experiments only.
        on_chunk: called with a `Chunk` in this process, right before that chunk is yielded.
        on_batch: called once for every logical batch, before it is drawn; where workers draw ahead, before anything of
            it is handed over. If it raises, the batch is not handed over.

    Guarantees:
        Each record (with ``person``, each person) is in each batch with probability q, independently. At most `steps`
        logical batches are ever completed. No batch is dropped for being empty, none is cut short for being large, and
        workers that run ahead change nothing.

    >>> from torch.utils.data import TensorDataset
    >>> loader = PoissonLoader(TensorDataset(torch.arange(100)), batch_size=20, steps=8, seed=1)
    >>> [len(rows) for (rows,) in loader]
    [15, 23, 13, 19, 24]
    >>> len(loader)
    3
    """

    def __init__(
        self,
        data: Dataset | DataLoader,
        *,
        batch_size: float | None = None,
        sample_rate: float | None = None,
        poisson: Poisson | None = None,
        steps: int | None = None,
        max_physical_batch: int | None = None,
        lengths: Any = None,
        views: int = 1,
        person: Any = None,
        per_person: int | None = None,
        batch_first: bool = True,
        seed: int | None = None,
        on_chunk: Callable[[Chunk], None] | None = None,
        on_batch: Callable[[], None] | None = None,
    ) -> None:
        if isinstance(data, PoissonLoader):
            raise NotPrivate(
                "this loader is private already: hand make_private what it was made from, the data set "
                "(loader.dataset) or the plain DataLoader"
            )
        validate.whole(views=views)
        if steps is not None:
            validate.whole(steps=steps)
        if max_physical_batch is not None:
            validate.whole(max_physical_batch=max_physical_batch)
        self.people = people_of(data, person, per_person)
        together = views if self.people is None else views * self.people.per_person
        if max_physical_batch is not None and max_physical_batch < together:
            whose = "views of one example" if self.people is None else "rows of one person"
            raise InvalidValue(
                f"max_physical_batch={max_physical_batch} cannot hold the {together} {whose}, which stay together: "
                f"allow at least {together}"
            )
        self.poisson = poisson or poisson_of(data, batch_size, sample_rate, self.people)
        self.dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        if self.people is None:
            tell_of_repeats(self.dataset)
        self.steps = steps
        self.steps_drawn = 0
        self.max_physical_batch = max_physical_batch
        self._lengths = lengths_of(lengths, self.dataset, max_physical_batch)
        self.views = views
        self._together = together  # the most rows that an example, or a person, has
        self.batch_first = batch_first
        self.on_chunk = on_chunk
        self.on_batch = on_batch
        self.epoch = 0  # how many have begun
        self._rest = 0  # steps of the last one that are still to come, after a restart in its middle
        self._iterations = 0
        # Sees what is about to be handed over: the batch, its chunk, and the numbers of its rows.
        self.inspect: Callable[[Any, Chunk, list[int]], None] | None = None
        self._paid = False  # on_batch was called for a batch that is not handed over yet
        self.tickets = Tickets()  # which of the chunks that were handed over the loop works on
        self._stream, self._seed = Keystream("sampling", seed), seed
        self._order_known = False  # whether the collate function keeps examples in order
        self._other_draws = 0  # Poisson batches besides those of the steps
        # One DataLoader for the whole run, so that persistent workers persist; each iteration has its own draws.
        self._batches = _Batches()
        settings = loader_settings(data)
        self._collate: Callable[[list[Any]], Any] = settings.get("collate_fn", default_collate)
        self._loader = loader_of(self.dataset, batch_sampler=self._batches, **settings)
        self._rows = Rows(self.collate, self.dataset, together, batch_first)

    def __len__(self) -> int:
        """The coming epoch's number of batches; unknown, and a TypeError, if batches are cut into chunks.

        After a restart within an epoch, the number of that whole epoch, as of any DataLoader: trainers go on counting
        where they were. Epochs differ by one batch where 1/q is not whole: how many steps a run has in all is
        `Private.steps`.
        """
        if self.max_physical_batch is not None:
            raise TypeError(
                "how many chunks an epoch has is not known before its batches are drawn (max_physical_batch=). A "
                "schedule counts steps, not chunks: private.steps says how many a run has, private.stepped whether the "
                "last optimizer.step() was one"
            )
        before = self._steps_of(self.epoch - 1) - self._rest if self._rest else 0
        return before + self._coming_steps()

    def __iter__(self) -> Iterator[Any]:
        self._refuse_if_spent()
        return self._one_epoch()

    def __repr__(self) -> str:
        chunks = "" if self.max_physical_batch is None else f", max_physical_batch={self.max_physical_batch}"
        views = "" if self.views == 1 else f", views={self.views}"
        steps = f"{self.steps_drawn} steps drawn" + ("" if self.steps is None else f" of {self.steps}")
        of = self.poisson.size if self.people is None else f"{len(self.dataset)} rows of {len(self.people)} people"
        name = type(self.dataset).__name__
        return f"PoissonLoader({name} of {of}, batch_size={self.batch_size:g}{views}{chunks}; {steps})"

    @property
    def batch_size(self) -> float:
        """The expected number of examples, or people, in a step, q·N: a whole number where one was asked for."""
        expected = self.poisson.expected_batch
        return round(expected) if math.isclose(expected, round(expected), rel_tol=1e-9) else expected

    @property
    def collate(self) -> Callable[[list[Any]], Any]:
        """What makes a batch of examples."""
        return self._collate

    @property
    def seeded(self) -> bool:
        """Whether the batches can be repeated by whoever knows the seed."""
        return self._stream.seeded

    @property
    def batch_sampler(self) -> Any:
        """What wrappers around a DataLoader look for."""
        return self._loader.batch_sampler

    def state_dict(self) -> dict[str, int]:
        """Where the run is; what was drawn is not in it, nor what will be."""
        return {"epoch": self.epoch, "steps_drawn": self.steps_drawn, "iterations": self._iterations}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another process was, forwards or back; the next iteration ends where its epoch would have.

        The batches are new ones in any case: a seeded stream goes on with numbers that neither has used. An iteration
        that is under way goes on to the end of its epoch.
        """
        for name in ("epoch", "steps_drawn", "iterations"):
            validate.count(**{name: state[name]})
        self.epoch, self.steps_drawn = state["epoch"], state["steps_drawn"]
        self._iterations = max(self._iterations, state["iterations"])
        until = self._first_step(self.epoch)
        self._rest = min(max(0, until - self.steps_drawn), self._steps_of(max(0, self.epoch - 1)))
        self._paid = False  # what was charged for a batch that was not handed over is lost
        self.tickets.clear()

    @property
    def unit(self) -> str:
        """What is drawn, and what a guarantee about the batches is for."""
        return "one example" if self.people is None else "one person"

    def one_by_one(self, poisson: Poisson) -> Iterator[list[Any]]:
        """A Poisson batch of its own; no part of any epoch, and it counts as no step.

        For each example one row, for each person theirs, every row collated alone.
        """
        self._other_draws += 1
        stream = Keystream(f"sampling besides the steps {self._other_draws}", self._seed)
        for rows in brought(poisson, self.people, stream):
            yield [self.collate([self.dataset[row]]) for row in rows]

    def _first_step(self, epoch: int) -> int:
        return first_step(epoch, self.poisson.sample_rate)

    def _steps_of(self, epoch: int) -> int:
        return self._first_step(epoch + 1) - self._first_step(epoch)

    def _coming_steps(self) -> int:
        coming = self._rest or self._steps_of(self.epoch)
        return coming if self.steps is None else min(coming, self.steps - self.steps_drawn)

    def _refuse_if_spent(self) -> None:
        if self.steps is not None and self.steps_drawn >= self.steps:
            raise BudgetSpent(
                f"all {self.steps} steps of this run are drawn: further batches would cost privacy that was "
                "not planned for. Stop the loop here, or plan the run with more steps at the start"
            )

    def _one_epoch(self) -> Iterator[Any]:
        self._refuse_if_spent()
        draws = Draws(
            poisson=self.poisson,
            stream=self._stream,
            steps=self._coming_steps(),
            chunk_examples=self.max_physical_batch and self.max_physical_batch // self._together,
            views=self.views,
            people=self.people,
            lengths=self._lengths,
        )
        # An iteration has draw numbers of its own: how far workers ran ahead in the one before must not matter.
        self._stream.skip_to(self._iterations << 32)
        self._iterations += 1
        self.epoch += self._rest == 0
        self._rest = 0
        self._batches.draws = draws
        self.tickets.begin()
        batches = iter(self._loader)
        while True:
            self._refuse_if_superseded(draws)
            if draws.between_batches and draws.handed_over < draws.steps:
                if self.steps is not None and self.steps_drawn >= self.steps:  # another state was loaded meanwhile
                    self.tickets.end()
                    return
                self._pay()
            if self._together > 1 and not self._order_known:
                refuse_reordering(self.collate, self.dataset, len(self.dataset), self.batch_first)
                self._order_known = True
            batch = next(batches, _END)
            while draws.waiting and draws.waiting[0][0].examples == 0:
                empty = map_tensors(torch.clone, self._empty)
                self._hand_over(draws, empty)
                yield empty
            if batch is _END:
                self.tickets.end()
                return
            self._hand_over(draws, batch)
            yield batch

    def _hand_over(self, draws: Draws, batch: Any) -> None:
        self._refuse_if_superseded(draws)
        chunk, rows = draws.waiting[0]
        if chunk.first:
            self._pay()
            self._paid = False
        if chunk.examples:
            self._rows.check(batch, rows)
        if self.inspect is not None:
            self.inspect(batch, chunk, rows)
        draws.waiting.popleft()
        if self.on_chunk is not None:
            self.on_chunk(chunk)
        self.tickets.hand_over(chunk, batch)
        draws.between_batches = chunk.last
        draws.handed_over += chunk.last
        self.steps_drawn += chunk.last

    def _pay(self) -> None:
        if not self._paid and self.on_batch is not None:
            self.on_batch()
        self._paid = True

    def _refuse_if_superseded(self, draws: Draws) -> None:
        if self._batches.draws is not draws:
            raise NotPrivate(
                "this iteration of the loader was ended by a later one: the chunks of two batches would mix. "
                "Iterate over a PoissonLoader once at a time"
            )

    @cached_property
    def _empty(self) -> Any:
        return empty_batch_of(self.dataset, self.collate, self.batch_first)


class _Batches:
    """The DataLoader's batch sampler: the draws of the iteration that is alive."""

    draws: Draws | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.draws or ())
