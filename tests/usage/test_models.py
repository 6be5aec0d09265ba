"""Models that ran into something else's error message."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from hoarfrost.errors import NotPrivate
from tests.usage.small import assert_same, private, small, train, trained, weights

# Empty batches.


def rare(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[hoarfrost.Private, Tensor, Tensor]]:
    """Steps of a run in which most batches are empty; those that are."""
    run = private(model, dataset=TensorDataset(x, y), sample_rate=0.01, steps=20, noise_multiplier=1.0, seed=1)
    for batch, wanted in run.loader:
        if not len(batch):
            yield run, batch, wanted
        run.optimizer.step()
    assert run.steps_taken == 20


@pytest.mark.filterwarnings("ignore:a step that is noise alone")
def test_a_transformers_model_takes_an_empty_batch() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    small_bert = BertForSequenceClassification(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                   max_position_embeddings=8, num_labels=3)
    )  # fmt: skip
    empty = 0
    for run, x, y in rare(small_bert, torch.randint(20, (10, 5)), torch.randint(3, (10,))):
        output = run.model(input_ids=x, labels=y)
        assert output.logits.shape == (0, 3)
        assert output["logits"] is output.logits
        output.loss.backward()
        empty += 1
    assert empty > 10


class Ends(nn.Module):
    """A model that ends in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 1), how

    def forward(self, x: Tensor) -> Any:
        output = self.layer(x)
        return {
            "squeeze": lambda: output.squeeze(),
            "a list": lambda: list(output),
            "time first": lambda: output.expand(-1, 5).t(),
            "flat": lambda: output.expand(-1, 5).flatten(),
            "shared": lambda: (output, torch.arange(3.0)),
            "a loss": lambda: {"loss": output.mean(), "scores": output},
        }[self.how]()


@pytest.mark.filterwarnings("ignore:a step that is noise alone")
@pytest.mark.parametrize(
    ("how", "shapes"),
    [("squeeze", [(0,)]), ("a list", []), ("time first", [(5, 0)]), ("flat", [(0,)]), ("shared", [(0, 1), (3,)]),
     ("a loss", [(), (0, 1)])],
)  # fmt: skip
def test_outputs_for_an_empty_batch_have_no_rows_whatever_the_model_ends_in(how: str, shapes: Any) -> None:
    for run, x, _ in rare(Ends(how), torch.randn(10, 4), torch.randn(10)):
        output = run.model(x)
        tensors = list(output.values()) if isinstance(output, dict) else output
        found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        assert [tuple(t.shape) for t in found] == shapes
        if how != "a list":
            found[how == "a loss"].sum().backward()


def test_an_ordinary_loop_over_a_model_that_squeezes() -> None:
    """Batches of two examples and more, and empty ones: of one it makes a number, here as in plain PyTorch."""
    run = private(
        Ends("squeeze"), dataset=TensorDataset(torch.randn(40, 4), torch.rand(40)), sample_rate=0.05, steps=30, seed=3
    )
    sizes = set()
    for _ in range(2):
        for x, y in run.loader:
            sizes.add(min(2, len(x)))
            output = run.model(x)
            F.binary_cross_entropy_with_logits(output if len(x) != 1 else output[None], y).backward()
            run.optimizer.step()
    assert sizes == {0, 1, 2}
    assert run.steps_taken == 30


# torch.compile.


def compiled_child() -> nn.Module:
    model = small()
    model[0] = torch.compile(model[0], backend="eager")
    return model


def marked(whole: bool) -> nn.Module:
    model = small()
    (model if whole else model[0]).compile(backend="eager")
    return model


BEFORE = {
    "torch.compile": lambda: torch.compile(small(), backend="eager"),
    "model.compile": lambda: marked(True),
    "a layer's compile": lambda: marked(False),
    "torch.compile of a layer": compiled_child,
}


@pytest.mark.parametrize("how", BEFORE)
def test_a_compiled_model_is_trained_without_and_says_so(how: str) -> None:
    model = BEFORE[how]()
    with pytest.warns(UserWarning, match=r"torch.compile is set aside"):
        run = private(model)
    train(run)
    assert_same(weights(model), trained(small()))


def test_a_compiled_model_that_cannot_be_made_private_is_as_it_was() -> None:
    model = torch.compile(small(), backend="eager")
    before = model.forward
    with pytest.warns(UserWarning, match=r"set aside"), pytest.raises(hoarfrost.clip.base.InvalidValue):
        private(model, clip=hoarfrost.clip.PerGroup({"no such layer": hoarfrost.clip.Local(1.0)}))
    assert model.forward is before
    whole = marked(True)
    mark = whole._compiled_call_impl
    with pytest.warns(UserWarning, match=r"set aside"), pytest.raises(hoarfrost.clip.base.InvalidValue):
        private(whole, clip=hoarfrost.clip.PerGroup({"no such layer": hoarfrost.clip.Local(1.0)}))
    assert whole._compiled_call_impl is mark


@pytest.mark.parametrize("how", ["torch.compile", "model.compile", "the loss"])
def test_a_private_model_may_be_compiled_and_runs_as_it_is(how: str) -> None:
    model = small()
    run = private(model)
    called: Any = model
    if how == "torch.compile":
        called = torch.compile(model, backend="aot_eager")
    elif how == "model.compile":
        model.compile(backend="aot_eager")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(called(x), y)

    loss_of = torch.compile(loss, backend="aot_eager") if how == "the loss" else loss
    for x, y in run.loader:
        loss_of(x, y).backward()
        run.optimizer.step()
    assert_same(weights(model), trained(small()))


@pytest.mark.parametrize("how", ["the model", "a loop"])
def test_nothing_inside_of_a_private_model_is_compiled(how: str) -> None:
    """Also where torch.compile gives a frame up, as it does with loops, and goes on with the frames inside of it."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    model = small()
    run = private(model)
    called = torch.compile(model, backend=backend) if how == "the model" else model

    def loop() -> None:
        for x, y in run.loader:
            F.cross_entropy(called(x * 1.0), y).backward()
            run.optimizer.step()

    (torch.compile(loop, backend=backend) if how == "a loop" else loop)()
    operations = {str(node.target) for graph in graphs for node in graph.graph.nodes}
    assert not [each for each in operations if "linear" in each or "addmm" in each]
    assert_same(weights(model), trained(small()))


def test_a_scripted_model_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(small())
    with pytest.raises(NotPrivate, match=r"the model is in TorchScript.*plain module"):
        private(scripted)


# Scaled losses.


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_is_refused(unscale: bool) -> None:
    run, scaler = private(small()), torch.amp.GradScaler("cpu")
    for x, y in run.loader:
        scaler.scale(F.cross_entropy(run.model(x), y)).backward()
        if unscale:
            scaler.unscale_(run.optimizer)
        with pytest.raises(NotPrivate, match=r"GradScaler.*not needed.*bfloat16"):
            scaler.step(run.optimizer)


def test_a_grad_scaler_that_is_switched_off_is_none() -> None:
    run, scaler = private(small()), torch.amp.GradScaler("cpu", enabled=False)
    for x, y in run.loader:
        scaler.scale(F.cross_entropy(run.model(x), y)).backward()
        scaler.step(run.optimizer)
        scaler.update()
    assert_same(weights(run.model), trained(small()))


# Layers.


class Dropping(nn.Module):
    """LayerDrop: each layer is left out with probability 1/2 while training."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.layers, self.head, self.draw = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or self.draw() < 0.5:
                x = x + torch.tanh(layer(x))
        return self.head(x)


@pytest.mark.parametrize("draw", [random.random, lambda: float(torch.rand(()))], ids=["random", "torch"])
@pytest.mark.parametrize("seed", range(3))
def test_layers_may_be_dropped_at_random(draw: Any, seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    run = private(Dropping(draw), sample_rate=0.5, steps=4)
    for _ in range(2):
        train(run)
    assert run.steps_taken == 4


def test_looking_at_the_model_leaves_python_s_random_numbers_alone() -> None:
    random.seed(1)
    wanted = random.random()
    random.seed(1)
    train(private(small()))
    assert random.random() == wanted


def test_lazy_layers_are_told_to_run_once() -> None:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))
    with pytest.raises(NotPrivate, match=r"0\.weight has no shape yet.*run the model once"):
        private(model)
    model(torch.zeros(1, 4))
    train(private(model))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_told_to_be_padded(layout: Any) -> None:
    def collate(examples: list[Any]) -> Any:
        return torch.nested.nested_tensor([x for x, _ in examples], layout=layout), torch.stack(
            [y for _, y in examples]
        )

    examples = [(torch.randn(2 + i % 3, 4), torch.tensor(i % 3)) for i in range(20)]
    run = private(nn.Linear(4, 3), dataset=DataLoader(examples, batch_size=20, collate_fn=collate))
    for x, _ in run.loader:
        with pytest.raises(NotPrivate, match=r"nested tensor.*pad_sequence"):
            run.model(x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm], ids=["new", "old"])
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*weight_norm.* is deprecated")
def test_weight_norm_with_and_without_a_bias(bias: bool, norm: Any) -> None:
    def normed() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(norm(nn.Linear(4, 6, bias=bias)), nn.Tanh(), nn.Linear(6, 3))

    plain, model = normed(), normed()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    run = private(model, clip=1e6)
    for x, y in run.loader:
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
        F.cross_entropy(model(x), y).backward()
        run.optimizer.step()
    assert parametrize.is_parametrized(model[0]) or len(model[0]._forward_pre_hooks) == 1
    for got, want in zip(weights(model), weights(plain), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*spectral_norm.* is deprecated")
def test_spectral_norm_of_old_is_told_of_the_new_one() -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3))
    with pytest.raises(NotPrivate, match=r"0 has torch\.nn\.utils\.spectral_norm.*parametrizations\.spectral_norm"):
        private(model)
