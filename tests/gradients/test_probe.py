"""The probe: models in which examples have a say in one another's gradients are refused by name; right ones are not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from hoarfrost.errors import NotPrivate
from tests.support.engines import announce, clipped_sums, engine_for, flat, sums_so_far


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def between(self, h: Tensor) -> Tensor:
        return h

    def end(self, x: Tensor, output: Tensor) -> Any:
        return output

    def forward(self, x: Tensor) -> Any:
        return self.end(x, self.second(torch.tanh(self.between(self.first(x)))))


def net(between: Callable[[Tensor], Tensor] | None = None, end: Callable[[Tensor, Tensor], Any] | None = None) -> Any:
    class Own(Net):
        pass

    if between is not None:
        Own.between = lambda self, h: between(h)  # type: ignore[method-assign, assignment]
    if end is not None:
        Own.end = lambda self, x, output: end(x, output)  # type: ignore[method-assign, assignment]
    return Own


@dataclass
class Output:
    logits: Tensor
    extra: Any = None


class DynamicScale(Net):
    """Divides by the largest number of the batch; in most batches the first example does not hold it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x / x.abs().max())))


class FakeQuantized(Net):
    def between(self, h: Tensor) -> Tensor:
        scale = h.detach().abs().max() / 127
        return h + ((h / scale).round() * scale - h).detach()


class Pairs(Net):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.first(x.flip(1))
        return a @ b.T


class ReZero(Net):
    """A gate that is closed at first; what is behind it mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.second(h) + self.gate * (h - h.mean(0))[:, :3]


class ZeroInitialised(Net):
    """Its last layer begins with zeros; so does the statistic, in which nothing shows as long as they are."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def end(self, x: Tensor, output: Tensor) -> Any:
        return output * output.abs().mean()


class LateGate(Net):
    """A gate that opens with the steps, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.open = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(torch.tanh(h - h.mean(0) if self.open else h))


class ManifoldMixup(Net):
    def between(self, h: Tensor) -> Tensor:
        if self.training and random.random() < 0.7:
            share = float(np.random.beta(2.0, 2.0))
            h = share * h + (1 - share) * h[torch.randperm(len(h))]
        return h


class PerToken(nn.Module):
    """Divides what it computes by the batch's number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        there = words != 0
        return self.out((self.table(words) * there[..., None]).sum(1) / there.sum() * 10)


class ReturnsItsLoss(PerToken):
    """A language model with a mean over the tokens of the batch."""

    def forward(self, words: Tensor) -> Tensor:
        logits = self.out(self.table(words))
        return F.cross_entropy(logits.flatten(0, 1), torch.where(words == 0, -100, words % 3).flatten())


class CentredLoss(Net):
    def end(self, x: Tensor, output: Tensor) -> Any:
        return {"loss": (output - output.mean(0)).square().sum(1).mean(), "logits": output}


class SumsItsLoss(Net):
    def end(self, x: Tensor, output: Tensor) -> Any:
        return output.square().sum()


def by_norm(gradient: Tensor) -> Tensor:
    return gradient / gradient.norm()


class TensorHook(Net):
    def between(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(by_norm)
        return h


def backward_hook(place: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Net()
        module = model.get_submodule(place)
        module.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else by_norm(g) for g in i))
        return model

    return make


def backward_pre_hook() -> nn.Module:
    model = Net()
    model.register_full_backward_pre_hook(lambda m, o: tuple(by_norm(g) for g in o))
    return model


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g - g.mean(0)


def forward_hook() -> nn.Module:
    model = Net()
    model.register_forward_hook(lambda m, args, output: output - output.mean(0))
    return model


def floats() -> Tensor:
    return torch.randn(6, 4)


def words() -> Tensor:
    batch = torch.randint(1, 11, (6, 5))
    for row, length in enumerate((5, 2, 3, 5, 1, 4)):
        batch[row, length:] = 0
    return batch


def centred(x: Tensor, output: Tensor) -> Tensor:
    return output - output.mean(0)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    "the batch's maximum": (DynamicScale, floats, r"first \(Linear\), its input: .*one example"),
    "int8 fake quantisation": (FakeQuantized, floats, r"second \(Linear\), its input: .*one example"),
    "[B, B] logits": (Pairs, floats, r"the model \(Pairs\), its output: .*\[3, 3\] for 3 rows.* two examples"),
    "B² logits in one dimension": (net(end=lambda x, o: (o @ o.T).flatten()), floats, "the model .*, its output: "),
    "centred logits in a dataclass": (net(end=lambda x, o: Output(centred(x, o))), floats, "its output: .*one example"),
    "centred logits in a namespace": (
        net(end=lambda x, o: SimpleNamespace(logits=centred(x, o))),
        floats,
        "its output: .*one example",
    ),
    "centred logits, nested": (
        net(end=lambda x, o: (o, {"more": [Output(o, (centred(x, o),))]})),
        floats,
        "its output: .*one example",
    ),
    "rows merged, centred": (net(end=lambda x, o: centred(x, o).flatten()), floats, "its output: .*one example"),
    "a statistic of the batch": (net(end=lambda x, o: (o, o.mean(0))), floats, "its output: .*one example"),
    "centred logits in a loss": (CentredLoss, floats, r"the model .* returns a loss.*one example"),
    "a mean over tokens in a loss": (ReturnsItsLoss, words, r"the model .* returns a loss.*one example"),
    "a gate that opens later": (ReZero, floats, "its (output|own parameters): .*one example"),
    "weights that are zero at first": (ZeroInitialised, floats, "its output: .*one example"),
    "manifold mix-up": (ManifoldMixup, floats, r"second \(Linear\), its input: .*one example"),
    "the batch's number of tokens": (PerToken, words, r"out \(Linear\), its input: .*one example"),
    "the number of rows": (net(between=lambda h: h / len(h)), floats, r"second \(Linear\), its input: .*leaving"),
    "a tensor hook over the batch": (TensorHook, floats, r"first \(Linear\), the gradient .*one example"),
    "a full backward hook": (backward_hook("second"), floats, r"first \(Linear\), the gradient .*one example"),
    "a full backward hook of the model": (backward_pre_hook, floats, r"second \(Linear\), the gradient .*one example"),
    "an autograd function of one's own": (
        net(between=OwnFunction.apply), floats, r"first \(Linear\), the gradient .*one example",
    ),
    "a forward hook of the model": (forward_hook, floats, "its output: .*one example"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_mix_examples_are_refused_by_name_and_left_as_they_were(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    make, inputs, message = REFUSED[kind]
    model, x = make(), inputs()
    engine = engine_for(model, loss_reduction="mean")
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    announce(engine, len(x))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(NotPrivate, match=message):
        model(x)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not sums_so_far(engine)


def test_a_sum_where_a_mean_was_promised_is_named() -> None:
    engine = engine_for(SumsItsLoss(), loss_reduction="mean")
    announce(engine, 6)
    with pytest.raises(NotPrivate, match='loss_reduction="sum"'):
        engine.model(floats())
    engine = engine_for(SumsItsLoss(), loss_reduction="sum")
    announce(engine, 6)
    engine.model(floats()).backward()
    assert sums_so_far(engine)


def steps_of(engine: Any) -> Iterator[int]:
    """Numbers of steps, which the engine knows of."""
    for step in range(1000):
        engine.step = lambda step=step: step
        yield step


def test_what_begins_to_mix_later_is_seen_after_some_steps() -> None:
    engine = engine_for(LateGate())
    for step in steps_of(engine):
        engine.model.open = step >= 30
        if step == 100:
            break
        clipped_sums(engine, torch.randn(256, 4), lambda output: output.square().sum())
    announce(engine, 256)
    with pytest.raises(NotPrivate, match=r"second \(Linear\)"):
        engine.model(torch.randn(256, 4))


def test_what_begins_to_mix_is_seen_at_a_checkpoint() -> None:
    engine = engine_for(LateGate())
    for step in steps_of(engine):
        clipped_sums(engine, torch.randn(256, 4), lambda output: output.square().sum())
        if step == 30:
            engine.prober.at_a_save()
        if step == 40:
            break
    engine.model.open = True
    with pytest.raises(NotPrivate, match=r"second \(Linear\)"):
        engine.prober.at_a_save()


# Right models: none of these may be refused.


class Packed(nn.Module):
    def __init__(self, enforce_sorted: bool) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True, num_layers=2, dropout=0.3)
        self.out, self.enforce_sorted = nn.Linear(5, 3), enforce_sorted

    def forward(self, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(self.table(words), lengths, True, enforce_sorted=self.enforce_sorted)
        output, (h, _) = self.lstm(packed)
        return self.out(h[-1]) + 0 * pad_packed_sequence(output, True)[0].sum((1, 2))[:, None]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.body(self.table(words), src_key_padding_mask=words == 0).mean(1))


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 6), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -0.3 * g


class OwnGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def between(self, h: Tensor) -> Tensor:
        return h + torch.randn(h.shape, generator=self.generator)


class Checks(Net):
    """Insists on sensible inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 10:
            raise ValueError("not standardised")
        return super().forward(x)


class Checkpointed(Net):
    def between(self, h: Tensor) -> Tensor:
        return checkpoint(torch.tanh, h, use_reentrant=False)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class PerExampleLoss(Net):
    def end(self, x: Tensor, output: Tensor) -> Any:
        return {"loss": output.square().sum(1).mean(), "logits": output}


class Clamped(Net):
    def between(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-1, 1))
            h.register_hook(lambda g: g / g.norm(dim=1, keepdim=True).clamp(min=1e-6))
        return F.relu_(h)


class Instances(nn.Module):
    """Returns an object with whatever is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=self.inner(x), flat=self.inner(x).flatten(), kept=[len(x), "name", None])


class StochasticDepth(Net):
    """Leaves rows out, each for itself."""

    def between(self, h: Tensor) -> Tensor:
        return h + torch.tanh(h) * (torch.rand(len(h), 1) < 0.5) if self.training else h


def scaled_hook() -> nn.Module:
    model = Net()
    model.second.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else 2 * g for g in i))
    model.register_full_backward_hook(lambda m, i, o: None)
    return model


def images() -> Tensor:
    return torch.randn(6, 3, 8, 8)


def sorted_words() -> Tensor:
    batch = words()
    return batch[(batch != 0).sum(1).argsort(descending=True)]


def logits_of(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        return sum((each.flatten(1).sum(1) for each in output), torch.zeros(()))[:, None]
    return output["logits"] if isinstance(output, dict) else output.logits


RIGHT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "plain": (Net, floats),
    "huge inputs": (Net, lambda: floats() * 1e6),
    "equal rows": (Net, lambda: torch.ones(6, 4)),
    "packed": (lambda: Packed(False), words),
    "packed, sorted by the collate function": (lambda: Packed(True), sorted_words),
    "encoder with padding and dropout": (Encoder, words),
    "a dataclass": (net(end=lambda x, o: Output(o, (o * 2, {"x": x}))), floats),
    "a namespace, and merged rows": (Instances, floats),
    "VAE": (Vae, floats),
    "gradient reversal": (net(between=Reversal.apply), floats),
    "a generator of its own": (OwnGenerator, floats),
    "insists on its inputs": (Checks, floats),
    "activation checkpoints": (Checkpointed, floats),
    "returns a mean loss": (PerExampleLoss, floats),
    "hooks that clip row by row": (Clamped, floats),
    "hooks that scale": (scaled_hook, floats),
    "stochastic depth": (StochasticDepth, floats),
    "convolutions in half precision": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 3)).bfloat16(),
        lambda: images().bfloat16(),
    ),
    "a deep network": (
        lambda: nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(4, 4), nn.ReLU(inplace=True))]),
        floats,
    ),
    "softmax at the end": (net(end=lambda x, o: o.softmax(1)), floats),
    "zero weights": (lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]).apply(zero), floats),
}


def zero(module: nn.Module) -> None:
    for p in module.parameters(recurse=False):
        nn.init.zeros_(p)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", RIGHT)
def test_right_models_are_not_refused(kind: str, training: bool) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        make, inputs = RIGHT[kind]
        model, batch = make().train(training), inputs()
        before = copy.deepcopy(model.state_dict())
        engine = engine_for(model, loss_reduction="mean")
        announce(engine, len(batch))
        logits_of(model(batch)).square().mean().backward()
        assert sums_so_far(engine)
        engine.prober.again()
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_the_probe_leaves_no_trace_in_the_numbers() -> None:
    """A run draws the same random numbers and gets the same sums with and without it."""
    found = []
    for skip in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
        engine = engine_for(model)
        x = floats()
        if skip:  # the first batch was looked at; the second is not
            clipped_sums(engine, x, lambda output: output.sum())
        torch.manual_seed(1)
        found.append(flat(clipped_sums(engine, x, lambda output: output.square().sum())))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_what_the_probe_costs() -> None:
    """At most 20 plain passes on a few examples at the start, and 2 % of the examples afterwards."""
    for model in (Net(), ManifoldMixupOff(), PerExampleLoss()):
        rows: list[int] = []
        model.first.register_forward_pre_hook(lambda m, args, rows=rows: rows.append(len(args[0])))
        engine = engine_for(model, loss_reduction="mean")
        trained = 0
        for step in steps_of(engine):
            announce(engine, 50)
            logits_of(engine.model(torch.randn(50, 4))).mean().backward()
            engine.release()
            trained += 50
            if step == 0:
                start = sum(rows) - 50
                assert engine.prober.passes <= 20
                assert start <= 20 * 6 * 3  # a forward pass is a third of a plain one
            if step == 300:
                break
        assert 0 < sum(rows) - start - trained <= 0.02 * trained


class ManifoldMixupOff(Net):
    def between(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.1, self.training)


class InHalves(nn.Module):
    def __init__(self, **checkpointed: bool) -> None:
        super().__init__()
        self.layer, self.checkpointed = nn.Linear(4, 4), checkpointed

    def forward(self, x: Tensor) -> Tensor:
        halves = (x[: len(x) // 2], x[len(x) // 2 :])
        if not self.checkpointed:
            return torch.cat([self.layer(half) for half in halves])
        return torch.cat([checkpoint(self.layer, half, **self.checkpointed) for half in halves])


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(("options", "named"), [({}, False), ({"use_reentrant": False}, False), ({"use_reentrant": True}, True)])  # fmt: skip # noqa: E501
def test_a_layer_on_parts_of_a_batch_is_told_of_its_checkpoint_if_that_is_wrong_too(options: Any, named: bool) -> None:
    engine = engine_for(InHalves(**options))
    announce(engine, 5)
    with pytest.raises(NotPrivate, match=r"layer \(Linear\) is called several times, on parts of the batch") as found:
        engine.model(torch.randn(5, 4))
    assert ("use_reentrant=False" in str(found.value)) == named
