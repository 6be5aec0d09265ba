"""Programs that would train on nothing, or on something else than they say."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR
from torch.testing._internal.distributed.fake_pg import FakeStore

from hoarfrost.budget import Ledger
from hoarfrost.errors import NotPrivate
from hoarfrost.freeze import Frost
from tests.usage import two_processes
from tests.usage.small import assert_same, private, small, train, trained, weights

# A step that is noise alone says so, once.


def test_backward_with_inputs_says_that_nothing_came_of_it() -> None:
    model = small()
    run = private(model, sample_rate=0.5)

    def program() -> None:
        for x, y in run.loader:
            F.cross_entropy(model(x), y).backward(inputs=list(model.parameters()))
            run.optimizer.step()

    with pytest.warns(UserWarning, match=r"noise alone: .*with inputs= \(leave that out\)") as told:
        program()
    assert len(told) == 1, "once, not at every step"


def test_a_copy_that_is_trained_in_the_model_s_place_is_noticed() -> None:
    run = private(small())
    twin = copy.deepcopy(run.model)

    def program() -> None:
        for x, y in run.loader:
            F.cross_entropy(twin(x), y).backward()
            run.optimizer.step()

    with pytest.warns(UserWarning, match=r"noise alone: .*the model never ran on it"):
        program()


def test_zero_grad_between_backward_and_step_is_noticed() -> None:
    run = private(small())

    def program() -> None:
        for x, y in run.loader:
            F.cross_entropy(run.model(x), y).backward()
            run.optimizer.zero_grad()
            run.optimizer.step()

    with pytest.warns(UserWarning, match=r"noise alone: .*zero_grad"):
        program()


def test_steps_with_gradients_and_steps_of_empty_batches_say_nothing() -> None:
    run = private(small(), sample_rate=0.01, steps=30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(run)
    assert run.steps_taken == 30


def test_an_input_s_gradient_may_be_asked_for_by_inputs() -> None:
    """An attack on the model's input, before the step."""
    model, plain = small(), small()
    for x, y in (run := private(model)).loader:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward(inputs=[x])
        (want,) = torch.autograd.grad(F.cross_entropy(plain(x), y), x)
        torch.testing.assert_close(x.grad, want)
        F.cross_entropy(model((x + 0.1 * want.sign()).detach()), y).backward()
        run.optimizer.step()
    assert run.steps_taken == 1


# Other objects in the place of parameters or modules.


def test_load_state_dict_with_assign_is_refused_by_name() -> None:
    run = private(small())
    train(run)
    run.model.load_state_dict({name: t.clone() for name, t in small().state_dict().items()}, assign=True)
    with pytest.raises(NotPrivate, match=r"0\.weight is another object .*assign=True.*without assign="):
        train(run)


def test_load_state_dict_goes_on_with_the_loaded_weights() -> None:
    model = small()
    run = private(model)
    model.load_state_dict({name: torch.zeros_like(t) for name, t in model.state_dict().items()})
    train(run)
    assert model[2].bias.any()
    assert not model[0].weight.any(), "its gradient is zero where the next layer's weights are"


@pytest.mark.parametrize("leaf", [False, True])
def test_functional_call_with_changed_weights_is_refused(leaf: bool) -> None:
    model = small()
    run = private(model)
    for x, y in run.loader:
        changed = {name: (p.detach() * 2).requires_grad_() if leaf else p * 2 for name, p in model.named_parameters()}
        with pytest.raises(NotPrivate, match=r"in the place of its parameter 0\.weight.*functional_call"):
            F.cross_entropy(torch.func.functional_call(model, changed, (x,)), y).backward()


def test_functional_call_with_the_model_s_own_weights_is_a_call() -> None:
    model = small()
    run = private(model)
    for x, y in run.loader:
        F.cross_entropy(torch.func.functional_call(model, dict(model.named_parameters()), (x,)), y).backward()
        run.optimizer.step()
    assert_same(weights(model), trained(small()))


def test_a_layer_that_is_replaced_later_is_refused_by_name() -> None:
    model = small()
    run = private(model)
    model[2] = nn.Linear(6, 3)
    with pytest.raises(NotPrivate, match=r"2 is another module than at make_private"):
        train(run)


def test_a_part_of_the_model_with_other_parameters_is_refused_too() -> None:
    model = small()
    run = private(model)
    train(run)
    model[0].weight = nn.Parameter(torch.zeros(6, 4))
    for x, _ in run.loader:
        with pytest.raises(NotPrivate, match=r"0\.weight is another object"):
            model[0](x).sum().backward()


# Other optimizers.


def test_a_second_optimizer_over_other_layers_is_refused() -> None:
    model = small()
    run = private(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    other = torch.optim.SGD(model[2].parameters(), lr=0.1)
    train(run)
    with pytest.raises(NotPrivate, match=r"a second optimizer steps over 2\.bias .*one optimizer with all layers"):
        other.step()


def test_the_optimizer_that_was_handed_over_cannot_be_stepped_in_place_of_the_private_one() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = private(model, optimizer)
    for x, y in run.loader:
        F.cross_entropy(model(x), y).backward()
        with pytest.raises(NotPrivate, match=r"model, optimizer, loader = private"):
            optimizer.step()


def test_optimizers_of_other_models_and_of_a_trained_head_go_on() -> None:
    model, public = small(), nn.Linear(2, 1)
    run = private(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    before = weights(model)
    train(run)
    elsewhere = torch.optim.SGD(public.parameters(), lr=0.1)
    public(torch.ones(1, 2)).sum().backward()
    elsewhere.step()
    given = torch.optim.SGD(model[0].parameters(), lr=0.1)  # with gradients of its own, from public data say
    model[0].weight.grad, model[0].bias.grad = torch.ones(6, 4), torch.zeros(6)
    given.step()
    assert torch.equal(model[0].weight, before[0] - 0.1)
    assert not torch.equal(model[2].weight, before[2])


# Several processes.


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_wrappers_for_several_processes_are_refused_by_name() -> None:
    with pytest.raises(NotPrivate, match=r"the model is in DistributedDataParallel.*one process"):
        private(DistributedDataParallel(small()))
    with pytest.raises(NotPrivate, match=r"the model is in FullyShardedDataParallel.*one process"):
        private(FullyShardedDataParallel(small(), device_id=torch.device("cpu")))
    model = small()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(NotPrivate, match=r"the model is in fully_shard.*one process"):
        private(model)


@pytest.mark.usefixtures("group")
def test_wrappers_around_a_private_model_are_refused_by_name() -> None:
    model = small()
    run = private(model)
    wrapped = DistributedDataParallel(model)
    for x, _ in run.loader:
        with pytest.raises(NotPrivate, match=r"the model is in DistributedDataParallel.*one process"):
            wrapped(x)
    model = small()
    run = private(model)
    sharded = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    for x, _ in run.loader:
        with pytest.raises(NotPrivate, match=r"the model is in FullyShardedDataParallel.*one process"):
            sharded(x)
    model = small()
    run = private(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    for x, _ in run.loader:
        with pytest.raises(NotPrivate, match=r"the model is in fully_shard.*one process"):
            model(x)


def test_a_run_in_each_of_several_processes_is_told_of(tmp_path: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.warns(UserWarning, match=r"several processes.*one process.*ledger="):
            private(small())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=None, delta=1e-5)
            private(small(), ledger=ledger, steps=1)  # which adds them up
    finally:
        dist.destroy_process_group()


def test_a_choice_that_each_of_several_processes_would_make_for_itself_is_refused(tmp_path: Path) -> None:
    """One that was made before is the same in all of them; and runs with a common ledger are separate ones."""

    def choosing(**options: Any) -> Any:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))
        given = {"freeze": Frost(0.6, rounds=1, sample_rate=0.5, noise=1.0), "loss": _loss, "steps": 2}
        return private(model, **(given | options))

    alone = choosing()
    alone.prepare()
    alone.freezer.selection.save(tmp_path / "selection.json", alone.account.snapshot())
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(NotPrivate, match=r"in each of them Frost\(0\.6.*choose for itself.*Frost\.from_file"):
            choosing()
        ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=None, delta=1e-5)
        choosing(ledger=ledger)
        with pytest.warns(UserWarning, match="several processes"):
            choosing(freeze=Frost.from_file(str(tmp_path / "selection.json")))
    finally:
        dist.destroy_process_group()


def _loss(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


@pytest.mark.slow
def test_two_real_processes_are_refused_or_told_of_what_each_does(tmp_path: Path) -> None:
    """In both of them, and before a step is taken."""
    for found in two_processes.run(tmp_path):
        for name, outcome in found.items():
            kind = name.partition("_before")[0].partition("_after")[0].partition("_with")[0]
            wrapper = {"ddp": "DistributedDataParallel", "fsdp": "FullyShardedDataParallel"}.get(kind, kind)
            if kind in ("data_parallel", "weights_averaged_by_hand"):
                assert outcome.startswith("ran; told: torch.distributed has several processes")
            elif kind == "a_choice_of_its_own":
                assert outcome.startswith("NotPrivate: torch.distributed has several processes")
            else:
                assert outcome.startswith(f"NotPrivate: the model is in {wrapper}"), name
                assert "one process" in outcome


# Schedulers.


def test_a_scheduler_in_the_loop_counts_steps_when_it_asks_whether_there_was_one() -> None:
    run = private(small(), max_physical_batch=16)
    schedule = ExponentialLR(run.optimizer, 0.5)
    stepped = []
    for x, y in run.loader:
        run.optimizer.zero_grad()
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        stepped.append(run.stepped)
        if run.stepped:
            schedule.step()
    assert stepped == [False, False, False, True]
    assert run.optimizer.param_groups[0]["lr"] == 0.05


def test_a_scheduler_that_is_stepped_for_every_chunk_is_told_so_once() -> None:
    run = private(small(), max_physical_batch=16, steps=2)
    schedule = ExponentialLR(run.optimizer, 0.5)

    def program() -> None:
        for _ in range(2):
            for x, y in run.loader:
                F.cross_entropy(run.model(x), y).backward()
                run.optimizer.step()
                schedule.step()

    with pytest.warns(UserWarning, match=r"if private\.stepped: scheduler\.step\(\)") as told:
        program()
    assert len([w for w in told if "private.stepped" in str(w.message)]) == 1


def test_a_scheduler_that_is_stepped_for_every_batch_says_nothing() -> None:
    run = private(small(), sample_rate=0.5)
    schedule = ExponentialLR(run.optimizer, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in run.loader:
            F.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            schedule.step()
            assert run.stepped


@pytest.mark.parametrize("batch_size", [7, 11, 13, 8])
def test_one_cycle_with_the_loader_s_length_never_runs_out(batch_size: int) -> None:
    """1/q is not whole: 60/7 = 8.57, 60/11 = 5.45, ..."""
    run = private(small(), batch_size=batch_size, epochs=5)
    schedule = OneCycleLR(run.optimizer, max_lr=0.1, epochs=5, steps_per_epoch=len(run.loader))
    for _ in range(5):
        for x, y in run.loader:
            run.optimizer.zero_grad()
            F.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
            schedule.step()
    assert run.steps_taken == run.steps == round(5 * 60 / batch_size)


def test_private_optimizers_alone_are_no_reason_to_look_at_every_pass() -> None:
    runs = [private(small()), private(small())]
    for run in runs:
        train(run)
    assert not any(run.optimizer.engine.loss_watch.outside.stepping for run in runs)
