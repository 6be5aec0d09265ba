"""The NTK of a batch equals one backward pass for each output, and predicts how the loss falls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost.clipping import Global, Local, PerLayer
from hoarfrost.clipping.base import Clipper
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Kernel, TangentKernels, clipped_flows, ntk
from tests.measure import slow_models as slow


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)
    )


def with_buffers() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 3))
    model(torch.randn(20, 5) * 2 + 1)
    return model


def half_frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    model[2].weight = model[0].weight  # type: ignore[index, union-attr]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "conv": conv,
    "linear": lambda: nn.Linear(5, 3, bias=False),
    "buffers": with_buffers,
    "half frozen": half_frozen,
    "tied": tied,
}
CLIPS: dict[str, tuple[Clipper | None, float | None]] = {
    "none": (None, None),
    "large": (Local(1e4), 1e4),
    "flat": (Local(0.3), 0.3),
    "per layer": (PerLayer(Local(0.3)), 0.3),
}


def a_batch(name: str, examples: int = 4) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(2)
    model = MODELS[name]()
    return (
        model,
        torch.randn(examples, 5) * torch.tensor([0.2, 1.0, 3.0, 9.0])[:examples, None],
        (torch.randint(3, (examples,))),
    )


def blocks_of(model: nn.Module, clip: Clipper | None) -> list[list[str]]:
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    if not isinstance(clip, PerLayer):
        return [names]
    layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    return [[name for name in names if name.rpartition(".")[0] == layer] for layer in layers]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("examples", [4, 1])
def test_the_kernel_is_that_of_one_output_after_the_other(name: str, clip: str, examples: int) -> None:
    model, x, y = a_batch(name, examples)
    style, norm = CLIPS[clip]
    found = TangentKernels(model, x, y).kernel(style)
    own, blocks = slow.gradients(model, x, y), blocks_of(model, style)
    expected = np.zeros((3 * examples, 3 * examples))
    for names in blocks:
        rows = slow.jacobian(model, x, names)
        kept = np.ones(examples) if norm is None else np.array(slow.factors(own, names, norm))
        expected += rows @ rows.T @ np.diag(np.repeat(kept, 3))
    np.testing.assert_allclose(found.matrix.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert found.decay == pytest.approx(slow.decay(own, blocks, norm), rel=1e-9)
    assert found.least_eigenvalue == pytest.approx(np.linalg.eigvals(expected).real.min(), abs=1e-9)
    assert found.least_quadratic == pytest.approx(np.linalg.eigvalsh((expected + expected.T) / 2).min(), abs=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [*CLIPS.values(), (Global(2.0), None), (PerLayer(Global(1.0)), None)])
def test_it_predicts_how_the_loss_falls(name: str, clip: tuple[Clipper | None, float | None]) -> None:
    model, x, y = a_batch(name)
    batch = TangentKernels(model, x, y)
    assert batch.measured_decay(clip[0]) == pytest.approx(batch.kernel(clip[0]).decay, rel=1e-6, abs=1e-9)


def test_the_measured_fall_comes_closer_with_the_square_of_the_step() -> None:
    model, x, y = a_batch("mlp")
    batch = TangentKernels(model, x, y)
    predicted = batch.kernel(Local(0.3)).decay
    coarse, fine = (abs(batch.measured_decay(Local(0.3), step=step) - predicted) for step in (0.02, 0.01))
    assert coarse > 1e-9
    assert coarse / fine == pytest.approx(4, rel=0.05)


def test_the_papers_table() -> None:
    """What is guaranteed holds; what is not guaranteed is broken by this batch, but for the layerwise eigenvalues."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5) * torch.logspace(-1, 1, 12)[:, None], torch.randint(3, (12,))
    batch = TangentKernels(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), x, y)
    for clip in (None, Local(1e4)):
        kernel = batch.kernel(clip)
        assert kernel.symmetric
        assert kernel.positive_in_quadratic_form
        assert kernel.positive_in_eigenvalues
    flat, layers = batch.kernel(Local(0.3)), batch.kernel(PerLayer(Local(0.3)))
    assert not flat.symmetric
    assert not layers.symmetric
    assert not flat.positive_in_quadratic_form
    assert flat.positive_in_eigenvalues


def kernel(*rows: Sequence[float]) -> Kernel:
    matrix = torch.tensor(rows, dtype=torch.float64)
    return Kernel(matrix=matrix, slope=torch.ones(len(rows), dtype=torch.float64), factors=torch.ones(1, 1))


def test_both_kinds_of_positivity() -> None:
    """One, the other, neither, both: the two differ where a matrix is not symmetric."""
    both = kernel([2.0, 1.0], [1.0, 2.0])
    assert (both.symmetric, both.positive_in_quadratic_form, both.positive_in_eigenvalues) == (True, True, True)
    eigenvalues_alone = kernel([1.0, 10.0], [0.0, 1.0])
    assert not eigenvalues_alone.symmetric
    assert not eigenvalues_alone.positive_in_quadratic_form
    assert eigenvalues_alone.positive_in_eigenvalues
    assert eigenvalues_alone.least_quadratic == pytest.approx(-4.0)
    neither = kernel([1.0, 0.0], [0.0, -0.5])
    assert not neither.positive_in_quadratic_form
    assert not neither.positive_in_eigenvalues
    assert neither.least_eigenvalue == pytest.approx(-0.5)
    rotation = kernel([1.0, -1.0], [1.0, 1.0])  # 1 ± i
    assert rotation.positive_in_quadratic_form
    assert rotation.positive_in_eigenvalues
    nothing = kernel([0.0, 0.0], [0.0, 0.0])
    assert (nothing.asymmetry, nothing.decay) == (0.0, 0.0)
    assert nothing.symmetric
    assert nothing.positive_in_quadratic_form
    assert nothing.positive_in_eigenvalues


def test_dropped_examples_leave_the_eigenvalues_positive() -> None:
    model, x, y = a_batch("mlp")
    found = TangentKernels(model, x, y).kernel(Global(1.0))
    assert (found.factors == 0).any()
    assert found.positive_in_eigenvalues


def test_descent_is_gradient_descent_with_clipping_and_without_noise() -> None:
    model, x, y = a_batch("mlp")
    losses = TangentKernels(model, x, y).descent(Local(0.3), steps=3, step=0.5)
    expected, moving = [], copy.deepcopy(model).double()
    for _ in range(4):
        expected.append(F.cross_entropy(moving(x.double()), y).item())
        own = slow.gradients(moving, x, y)
        kept = slow.factors(own, list(own[0]), 0.3)
        with torch.no_grad():
            for name, p in moving.named_parameters():
                p -= 0.5 * sum(c * g[name] for c, g in zip(kept, own, strict=True)) / 4
    assert losses == pytest.approx(expected, rel=1e-9)


def test_a_part_of_the_parameters_can_be_named() -> None:
    model, x, y = a_batch("mlp")
    whole = TangentKernels(model, x, y).kernel().matrix
    parts = [TangentKernels(model, x, y, parameters=[pattern]).kernel().matrix for pattern in ("0.*", "2.*")]
    assert whole.allclose(sum(parts, torch.zeros_like(whole)))
    with pytest.raises(InvalidValue, match=r"no trained parameter is named like 'head\.\*'; there are 0\.weight"):
        TangentKernels(model, x, y, parameters=["head.*"])


def test_a_regression_has_a_kernel() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 1), torch.randn(6, 5), torch.randn(6)
    squared = lambda f, y: ((f[:, 0] - y) ** 2).mean()  # noqa: E731
    found = TangentKernels(model, x, y, loss=squared).kernel()
    rows = torch.cat([x, torch.ones(6, 1)], dim=1).double()
    assert found.matrix.allclose(rows @ rows.T)
    with torch.no_grad():
        off = model.double()(x.double())[:, 0] - y.double()
    assert found.decay == pytest.approx((4 / 36 * off @ rows @ rows.T @ off).item())


def test_a_jacobian_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = a_batch("mlp")
    need = 4 * 3 * 39 * 8
    assert ntk.jacobian_bytes(12, dict(model.named_parameters())) == need
    monkeypatch.setattr(ntk, "free_memory", lambda: 2 * need)
    TangentKernels(model, x, y)
    monkeypatch.setattr(ntk, "free_memory", lambda: 2 * need - 1)
    with pytest.raises(InvalidValue, match=r"of 4 examples with 3 outputs by 39 parameters takes .* GiB"):
        TangentKernels(model, x, y)
    TangentKernels(model, x, y, parameters=["2.*"])


def test_no_batch_is_refused() -> None:
    with pytest.raises(InvalidValue, match="one tensor of examples or more"):
        TangentKernels(mlp(), torch.ones(0, 5), torch.ones(0).long())
    with pytest.raises(InvalidValue, match=r"must have the shape \[examples, outputs\]"):
        TangentKernels(nn.Conv1d(1, 2, 3), torch.ones(2, 1, 5), torch.ones(2).long())


def test_the_model_does_not_change() -> None:
    model, x, y = a_batch("buffers")
    before = copy.deepcopy(model.state_dict())
    model.train()
    batch = TangentKernels(model, x, y)
    batch.descent(Local(0.3), steps=2, step=1.0)
    assert model.training
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.parameters())


def test_the_table_of_four_ways_to_clip() -> None:
    model, x, y = a_batch("mlp")
    batch = TangentKernels(model, x, y)
    own = slow.gradients(model, x, y)
    longest = max(torch.cat([part.flatten() for part in g.values()]).norm().item() for g in own)
    none, large, flat, layers = clipped_flows(batch, 0.3, steps=20, step=0.5)
    assert large.norm == pytest.approx(2 * longest)
    assert none.losses == pytest.approx(large.losses)
    assert none.kernel.matrix.allclose(large.kernel.matrix)
    assert flat.kernel.matrix.equal(batch.kernel(Local(0.3)).matrix)
    assert layers.kernel.matrix.equal(batch.kernel(PerLayer(Local(0.3))).matrix)
    for each in (none, large, flat, layers):
        assert each.measured_decay == pytest.approx(each.kernel.decay, rel=1e-6)
        assert each.rises == sum(b > a for a, b in zip(each.losses[:-1], each.losses[1:], strict=True))
        assert len(each.losses) == 21
    assert none.losses[-1] < flat.losses[-1]


def test_a_batch_without_any_gradient_has_a_table() -> None:
    """All losses are flat: nothing moves, whatever the clipping."""
    batch = TangentKernels(mlp(), torch.randn(3, 5), torch.zeros(3), loss=lambda f, y: (0 * f).sum() + 1.0)
    for each in clipped_flows(batch, 0.3, steps=2):
        assert (each.kernel.decay, each.measured_decay, each.rises, each.losses) == (0.0, 0.0, 0, (1.0, 1.0, 1.0))
