"""Slow, obvious versions of what `hoarfrost.measure` computes about models: one example, one number at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Examples = Sequence[tuple[Tensor, Tensor]]


def loss_of(model: nn.Module, examples: Examples) -> float:
    """The mean loss of a model in evaluation mode, one example after the other."""
    model = copy.deepcopy(model).eval()
    losses = [F.cross_entropy(model(x[None]), y[None]).item() for x, y in examples]
    return math.fsum(losses) / len(losses)


def moved(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy whose parameters are what ``change`` makes of them; buffers stay."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(change(name, p.clone()))
    return model


def line(first: nn.Module, second: nn.Module, examples: Examples, points: int) -> list[float]:
    """The losses between two models."""
    other = dict(second.named_parameters())
    losses = []
    for number in range(points):
        a = number / (points - 1)
        between = moved(first, lambda name, p, a=a: (1 - a) * p + a * other[name])  # type: ignore[misc]
        losses.append(loss_of(between, examples))
    return losses


def filter_normalised(drawn: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Filter by filter."""
    if weight.ndim < 2:
        return np.zeros_like(drawn)
    rows = [row / math.sqrt((row**2).sum()) * math.sqrt((own**2).sum()) for row, own in zip(drawn, weight, strict=True)]
    return np.stack(rows)


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """Each example's gradient of the cross entropy, by plain autograd, in float64."""
    model = copy.deepcopy(model).eval().double()
    found = []
    for one, label in zip(x.double(), y, strict=True):
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        loss = F.cross_entropy(model(one[None]), label[None])
        found.append(dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True)))
    return found


def jacobian(model: nn.Module, x: Tensor, names: Sequence[str]) -> np.ndarray:
    """∂f/∂w with one row for each output of each example, one backward pass for each, in float64."""
    model = copy.deepcopy(model).eval().double()
    parameters = [dict(model.named_parameters())[name] for name in names]
    rows = []
    for one in x.double():
        for output in model(one[None])[0]:
            found = torch.autograd.grad(output, parameters, retain_graph=True)
            rows.append(np.concatenate([g.flatten().numpy() for g in found]))
    return np.stack(rows)


def factors(found: list[dict[str, Tensor]], names: Sequence[str], norm: float) -> list[float]:
    """min(1, R / ‖g_i‖) over these parameters; R is 1e-5 smaller, as the library's margin for rounding has it."""
    lengths = [math.sqrt(sum((g[name] ** 2).sum().item() for name in names)) for g in found]
    return [min(1.0, norm * (1 - 1e-5) / length) if length else 1.0 for length in lengths]


def decay(found: list[dict[str, Tensor]], blocks: Sequence[Sequence[str]], norm: float | None) -> float:
    """(1/n²) Σ_r Σ_j Σ_i ∇ℓ_j · C_{i,r} ∇ℓ_i, over the parameters of each block r: no Jacobian is in it."""
    total = 0.0
    for names in blocks:
        kept = [1.0] * len(found) if norm is None else factors(found, names, norm)
        for one in found:
            for other, factor in zip(found, kept, strict=True):
                total += factor * sum((one[name] * other[name]).sum().item() for name in names)
    return total / len(found) ** 2


def pwcca(x: np.ndarray, y: np.ndarray) -> float:
    """By covariance matrices and their inverse square roots, and one weight after the other. Of full rank alone."""
    x, y = x.astype(float) - x.mean(0), y.astype(float) - y.mean(0)

    def inverse_root(covariance: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(covariance)
        return vectors @ np.diag(values**-0.5) @ vectors.T

    left = inverse_root(x.T @ x)
    rotation, correlations, _ = np.linalg.svd(left @ x.T @ y @ inverse_root(y.T @ y))
    total = weighted = 0.0
    for number, correlation in enumerate(correlations):
        variate = x @ left @ rotation[:, number]
        weight = sum(abs(float(variate @ neuron)) for neuron in x.T)
        total, weighted = total + weight, weighted + weight * correlation
    return weighted / total


def cka(x: np.ndarray, y: np.ndarray) -> float:
    """By the kernels of the points, centered with a matrix: HSIC(K, L) / √(HSIC(K, K)·HSIC(L, L))."""
    center = np.eye(len(x)) - 1 / len(x)
    k, el = x.astype(float) @ x.T, y.astype(float) @ y.T

    def hsic(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.trace(one @ center @ other @ center))

    return hsic(k, el) / math.sqrt(hsic(k, k) * hsic(el, el))
