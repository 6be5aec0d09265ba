"""Where the examples come from: what a loader may be made of, and what is refused."""

from typing import Any, TypeGuard

from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from hoarfrost.epochs import rate_of
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.sampling.people import People
from hoarfrost.sampling.poisson import Poisson

_WITH_WORKERS_ONLY = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_KEPT = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "generator")


def size_of(data: Dataset | DataLoader) -> int:
    """The number of records, once it is sure that each of them can be drawn on its own."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset):
        raise NotPrivate(
            f"{type(dataset).__name__} is an IterableDataset: it hands out its records in its own order, so "
            "none can be drawn with a known probability. Use a map-style Dataset (__len__, __getitem__)"
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise NotPrivate(
            f"{type(dataset).__name__} lacks __len__ or __getitem__: to draw every record with a known "
            "probability, they must be countable and reachable by index. Use a map-style Dataset"
        )
    if len(dataset) == 0:
        raise InvalidValue(f"the {type(dataset).__name__} is empty: there is nothing to draw from")
    if isinstance(data, DataLoader):
        _refuse_own_sampling(data, len(dataset))
    return len(dataset)


def poisson_of(
    data: Dataset | DataLoader, batch_size: float | None, sample_rate: float | None, people: People | None = None
) -> Poisson:
    """Poisson sampling at the rate asked for; failing that, with a DataLoader's batch size expected."""
    size = size_of(data) if people is None else len(people)
    if batch_size is None and sample_rate is None and isinstance(data, DataLoader):
        batch_size = data.batch_size
    return Poisson(
        sample_rate=rate_of(size, batch_size, sample_rate, "examples" if people is None else "people"), size=size
    )


def people_of(data: Dataset | DataLoader, person: Any, per_person: int | None) -> People | None:
    """The people behind the rows, if the unit is a person."""
    if person is None and per_person is None:
        return None
    if person is None:
        raise InvalidValue("per_person is about the rows of a person: say whose each row is with person=")
    if per_person is None:
        raise InvalidValue("person= needs per_person=: the most rows of a drawn person that take part in a step")
    return People(person, size_of(data), per_person)


def loader_settings(data: Dataset | DataLoader) -> dict[str, Any]:
    """A DataLoader's settings that have nothing to do with which records are drawn."""
    if not isinstance(data, DataLoader):
        return {}
    names = _KEPT + (_WITH_WORKERS_ONLY if data.num_workers > 0 else ())
    kept = {name: getattr(data, name) for name in names}
    if data.pin_memory_device:
        kept["pin_memory_device"] = data.pin_memory_device
    return kept


def _refuse_own_sampling(loader: DataLoader, size: int) -> None:
    """A loader's own order is replaced, which is no loss if it only meant "every record once"."""
    if loader.batch_size is None:
        what = "no batches at all (batch_size=None)" if loader.batch_sampler is None else "a batch_sampler of its own"
        raise NotPrivate(
            f"the DataLoader has {what}, which Poisson sampling would have to replace. Give it a batch_size, "
            "or pass its dataset instead"
        )
    sampler: object = loader.sampler
    if _draws_each_record_once(sampler) and len(sampler) == size:
        return
    raise NotPrivate(
        f"the DataLoader draws with a {type(sampler).__name__}, which does not take every record once per "
        "epoch: its batches cannot become Poisson batches of equal probability. Leave out sampler= "
        "(use shuffle=True), or choose records beforehand with torch.utils.data.Subset"
    )


def _draws_each_record_once(sampler: object) -> TypeGuard[SequentialSampler | RandomSampler]:
    if type(sampler) is RandomSampler:  # exactly: a subclass may do anything
        return not sampler.replacement
    return type(sampler) is SequentialSampler
