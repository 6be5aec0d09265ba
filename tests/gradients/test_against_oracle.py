"""Every fast rule equals a loop of one-example backwards, with a clipping norm that truly clips."""

import pytest
import torch
from torch import nn

from hoarfrost.clipping import Local
from hoarfrost.gradients import Engine, costs
from hoarfrost.masks import Channels, Mask, as_tensor, resolve_mask
from hoarfrost.sampling import Chunk
from tests import oracle
from tests.gradients.settings import TABLE, Setting, copied, patched, projected


def total_loss(model: nn.Module, batch: object) -> torch.Tensor:
    return projected(model(batch)).sum()


def fast(
    model: nn.Module,
    batch: object,
    clip_norm: float,
    setting: Setting,
    reduction: str = "sum",
    masks: dict[str, Mask] | None = None,
) -> dict[str, torch.Tensor]:
    names = {p: name for name, p in model.named_parameters()}
    live = {name: p for p, name in names.items() if p.requires_grad}
    engine = Engine(
        model, live, Local(clip_norm), loss_reduction=reduction, views=setting.views, batch_first=setting.dim == 0
    )
    engine.masks = {n: resolve_mask(masks[n], p) for p, n in names.items() if masks and n in masks}
    losses = projected(model_output(engine, model, batch, setting))
    (losses.sum() if reduction == "sum" else losses.mean()).backward()
    assert all(p.grad is None for p in names)
    return engine.release().sums


def model_output(engine: Engine, model: nn.Module, batch: object, setting: Setting) -> torch.Tensor:
    engine.sums.tickets.hand_over(
        Chunk(examples=oracle._rows(batch, setting.dim) // setting.views, first=True, last=True)
    )
    return model(batch)


@pytest.mark.parametrize("setting", TABLE, ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_clipped_sums_equal_the_oracle(setting: Setting, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    plain = setting.model().to(dtype)
    batch = cast(setting.inputs(), dtype)
    per_example = oracle.gradients(plain, batch, total_loss, views=setting.views, dim=setting.dim)
    clip_norm = oracle.halving_norm(per_example)
    expected = oracle.clipped_sum(per_example, clip_norm)
    for reduction in ("sum", "mean"):
        found = fast(copied(plain, setting), batch, clip_norm, setting, reduction)
        for name, want in expected.items():
            got = found.get(name, torch.zeros_like(want))
            assert got.shape == want.shape
            torch.testing.assert_close(
                got, want.to(got.dtype), rtol=2e-4, atol=1e-5 * clip_norm, msg=lambda m, n=name: f"{n}: {m}"
            )


# The ways in which live elements are computed, wherever a layer offers them; "" leaves it to the estimated costs.
WAYS = {"elements": "", "elements alone": "picked gathered", "elements of whole matrices": "pieces product"}


@pytest.mark.parametrize("kind", [*WAYS, "channels"])
@pytest.mark.parametrize("setting", TABLE, ids=lambda s: s.name)
def test_with_some_coordinates_frozen_clipped_sums_equal_the_oracle(
    setting: Setting, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    preferred, cheapest = WAYS.get(kind, "").split(), costs.cheapest
    monkeypatch.setattr(costs, "cheapest", lambda times: next((m for m in times if m in preferred), cheapest(times)))
    torch.manual_seed(2)
    plain = setting.model()
    batch = setting.inputs()
    masks: dict[str, Mask] = {}
    for name, p in plain.named_parameters():
        if kind in WAYS or p.dim() == 0:
            masks[name] = torch.rand(p.shape) < (0.5 if kind == "elements" else 0.2)
            masks[name].view(-1)[:2] = True  # of a tensor of five elements, chance may leave none
        else:
            masks[name] = Channels(torch.randperm(len(p))[: (len(p) + 1) // 2].sort().values)
    written = {name: as_tensor(mask, plain.get_parameter(name).shape) for name, mask in masks.items()}
    per_example = oracle.gradients(plain, batch, total_loss, views=setting.views, dim=setting.dim)
    per_example = oracle.masked(per_example, written)
    clip_norm = oracle.halving_norm(per_example)
    expected = oracle.clipped_sum(per_example, clip_norm)
    found = fast(copied(plain, setting), batch, clip_norm, setting, masks=masks)
    for name, want in expected.items():
        got = found.get(name, torch.zeros_like(want))
        assert (got[~written[name]] == 0).all(), name
        torch.testing.assert_close(got, want, rtol=2e-4, atol=1e-5 * clip_norm, msg=lambda m, n=name: f"{n}: {m}")


def cast(batch: object, dtype: torch.dtype) -> object:
    from hoarfrost.nested import map_tensors

    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, batch)


def test_a_forward_patched_on_an_instance_is_what_is_differentiated() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5)
    per_example = oracle.gradients(patched_model := patched(), x, total_loss)
    expected = oracle.clipped_sum(per_example, norm := oracle.halving_norm(per_example))
    found = fast(patched_model, x, norm, Setting("patched", patched, lambda: x))
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=2e-4, atol=1e-5)
