"""Two real processes in one gloo group, each of which tries what users write there, and says what came of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hoarfrost.errors import HoarfrostError
from hoarfrost.freeze import Frost
from tests.usage.small import private, small, train


def run(folder: Path) -> list[dict[str, str]]:
    """What each program came to, by its name, for each of the two processes."""
    mp.spawn(_process, args=(folder,), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def _process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps({each.__name__: _outcome(each) for each in PROGRAMS}))
    dist.barrier()
    dist.destroy_process_group()


def _outcome(program: Callable[[], Any]) -> str:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            program()
        except HoarfrostError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"crashed: {type(error).__name__}: {error}"
    return "ran" + "".join(f"; told: {each.message}" for each in said)


def _through(wrapped: Any, run: Any) -> None:
    for x, y in run.loader:
        run.optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        run.optimizer.step()


def ddp_before() -> None:
    train(private(DistributedDataParallel(small())))


def ddp_after() -> None:
    model = small()
    run = private(model)
    _through(DistributedDataParallel(model), run)


def ddp_with_several_forwards_before_a_step() -> None:
    """`no_sync`, as loops that accumulate gradients have it."""
    model = small()
    run = private(model)
    wrapped = DistributedDataParallel(model)
    with wrapped.no_sync():
        _through(wrapped, run)


def fsdp_before() -> None:
    train(private(FullyShardedDataParallel(small(), device_id=torch.device("cpu"))))


def fsdp_after() -> None:
    model = small()
    run = private(model)
    _through(FullyShardedDataParallel(model, device_id=torch.device("cpu")), run)


def fully_shard_before() -> None:
    model = small()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    train(private(model))


def fully_shard_after() -> None:
    model = small()
    run = private(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    train(run)


def fully_shard_after_on_a_layer() -> None:
    model = small()
    run = private(model)
    fully_shard(model[0], mesh=init_device_mesh("cpu", (2,)))
    train(run)


def data_parallel_before() -> None:
    train(private(DataParallel(small())))


def data_parallel_after() -> None:
    model = small()
    run = private(model)
    _through(DataParallel(model), run)


def weights_averaged_by_hand() -> None:
    """Each process has its own batches and noise, and weights that have both behind them."""
    model = small()
    train(private(model))
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p)
            p /= 2


def a_choice_of_its_own() -> None:
    """Each process would look at the data and train another part of the model."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)), torch.nn.Linear(4, 3))
    run = private(model, freeze=Frost(0.6, rounds=1, sample_rate=0.5, noise=1.0), steps=2, loss=_loss)
    run.prepare()


def _loss(output: Any, batch: Any) -> Any:
    return F.cross_entropy(output, batch[1])


PROGRAMS = [
    ddp_before, ddp_after, ddp_with_several_forwards_before_a_step, fsdp_before, fsdp_after, fully_shard_before,
    fully_shard_after, fully_shard_after_on_a_layer, data_parallel_before, data_parallel_after,
    weights_averaged_by_hand, a_choice_of_its_own,
]  # fmt: skip
