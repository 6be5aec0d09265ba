"""Magnitude pruning before private training: what a reference model holds to be small is zero, and stays zero."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from hoarfrost import budget, validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.largest import Fixed, Per, check_per, largest_of
from hoarfrost.info import RunInfo
from hoarfrost.registry import FilePath, Positive, Rate, Text, Whole, component
from hoarfrost.untrusted import line, shown_path, size_of


@component("freeze", "pruned", one_of=(("public", "reference"),))
class Pruned(Fixed):
    """Keeps a share of the weights, those that are largest in a reference; the others become zero and stay zero.

    Args:
        keep: the share of the weights that survives.
        reference: a state dict or a model of the same architecture that says what is large.
        per: "layer" prunes every tensor to the share, "model" all of them together.
        rewind: survivors begin at the model's own initial values; otherwise at the reference's.
        biases: whether parameters of one dimension (biases, scales) are pruned too; by default they stay.
        private: False if the reference was trained on the private data without privacy: then nothing is private,
            and every place that would show an epsilon says so.

    Guarantees:
        The choice depends on the reference alone. If that is public, or was itself trained privately on the same
        ledger, pruning costs no privacy.

    >>> model = nn.Linear(2, 2)
    >>> pruned = Pruned(0.5, {"weight": torch.tensor([[3.0, -1.0], [2.0, -4.0]]), "bias": torch.zeros(2)})
    >>> pruned.start({name: p.data for name, p in model.named_parameters()})
    >>> (model.weight == 0).tolist()
    [[False, True], [True, False]]
    """

    def __init__(
        self,
        keep: float,
        reference: nn.Module | Mapping[str, Tensor],
        *,
        per: Per = "layer",
        rewind: bool = True,
        biases: bool = False,
        private: bool = True,
    ) -> None:
        super().__init__()
        validate.rate(keep=keep)
        validate.flag(rewind=rewind, biases=biases, private=private)
        self.keep, self.per, self.rewind, self.biases, self.private = keep, check_per(per), rewind, biases, private
        state = reference.state_dict() if isinstance(reference, nn.Module) else reference
        if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
            raise InvalidValue(f"a reference for pruning is a model or a state dict, not {type(reference).__name__}")
        self._learned_from: tuple[object, ...] = ()  # the data sets behind the reference, as far as they are known
        self.reference = {name: value.detach().clone() for name, value in state.items()}

    @classmethod
    def from_recipe(
        cls,
        network: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        own_data: str | None,
        load_data: Callable[[str], Dataset[Any]],
        *,
        keep: Rate,
        public: Text | None = None,
        reference: FilePath | None = None,
        epochs: Whole = 20,
        lr: Positive = 0.1,
        per: Literal["model", "layer"] = "layer",
        rewind: bool = True,
        biases: bool = False,
        private: bool = True,
    ) -> Pruned:
        """By a model that is trained on a public data set first, or by weights in a file.

        Args:
            public: the name of a data set that anyone may see, on which the reference is trained. The recipe's own can
                be named only with ``private = false``, and then the run is not private, and says so.
            reference: instead of ``public``: the path of a .safetensors file with the weights of such a model; written
                as ``data.path`` is.
            epochs: the number of epochs of the training on ``public``.
            lr: the learning rate of the training on ``public``.
        """
        options: dict[str, Any] = {"per": per, "rewind": rewind, "biases": biases, "private": private}
        if public is None:
            assert reference is not None  # the recipe has one or the other
            return cls(keep, _weights(Path(reference), network), **options)
        if public == own_data and private:
            raise InvalidValue(
                f"freeze.public is the private data set {own_data} itself: what is pruned would tell about it. Name "
                "public data, or say freeze.private = false, and the run is not private"
            )
        examples = load_data(public)
        try:
            return prune_from(network, examples, keep=keep, loss=loss, epochs=epochs, lr=lr, **options)
        except InvalidValue as error:
            raise InvalidValue(line(f"freeze.public = {public}: {error}")) from error

    def __repr__(self) -> str:
        words = f"keep={self.keep}, per={self.per!r}, rewind={self.rewind}, biases={self.biases}"
        return f"Pruned({words}, private={self.private})"

    def start(self, weights: Mapping[str, Tensor]) -> None:
        chosen = {name: weight for name, weight in weights.items() if self.biases or weight.dim() > 1}
        if not chosen:
            raise InvalidValue("there is no weight matrix to prune; biases=True prunes parameters of one dimension too")
        for name, weight in weights.items():
            if name not in self.reference or self.reference[name].shape != weight.shape:
                raise InvalidValue(f"the reference for pruning has no {name} of shape {tuple(weight.shape)}")
            if not self.reference[name].isfinite().all():
                raise InvalidValue(f"the reference for pruning has numbers in {name} that are not finite")
        masks = largest_of({name: self.reference[name].to(w.device) for name, w in chosen.items()}, self.keep, self.per)
        empty = [name for name, mask in masks.items() if not mask.any()]
        if empty:
            how = "keep more" if self.per == "layer" else "keep more, or prune per layer"
            raise InvalidValue(f"nothing of {', '.join(empty)} survives: {how}")
        self._masks = masks
        with torch.no_grad():
            for name, weight in weights.items():
                if not self.rewind:
                    weight.copy_(self.reference[name])
                if name in masks:
                    weight.mul_(masks[name])

    def releases(self, info: RunInfo) -> tuple[budget.PlannedRelease, ...]:
        mask = "the pruning mask"
        return () if self.private else (budget.PlannedRelease(event=budget.Unprotected(mask), what=mask),)

    def public(self) -> tuple[object, ...]:
        return self._learned_from if self.private else ()


def prune_from(
    model: nn.Module,
    public: Dataset[Any] | DataLoader[Any],
    *,
    keep: float,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    epochs: int = 20,
    lr: float = 0.1,
    momentum: float = 0.9,
    batch_size: int = 128,
    per: Per = "layer",
    rewind: bool = True,
    biases: bool = False,
    private: bool = True,
) -> Pruned:
    """Trains a copy of the model on a public data set, without privacy, and prunes by what it finds large.

    Args:
        public: examples and labels that anyone may see. To use the private data set here is possible only with
            ``private=False``: then the run is not private, and says so.
        loss: of outputs and targets; by default cross entropy.

    >>> data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))
    >>> prune_from(nn.Linear(3, 2), data, keep=0.5, epochs=1).keep
    0.5
    """
    validate.whole(epochs=epochs, batch_size=batch_size)
    copied = copy.deepcopy(model)
    pruned = Pruned(keep, copied, per=per, rewind=rewind, biases=biases, private=private)  # what is wrong shows now
    examples = public.dataset if isinstance(public, DataLoader) else public
    optimizer = torch.optim.SGD(copied.parameters(), lr=lr, momentum=momentum)
    device = next(copied.parameters()).device
    copied.train()
    try:
        for _ in range(epochs):
            for x, y in DataLoader(examples, batch_size=batch_size, shuffle=True):
                optimizer.zero_grad()
                loss(copied(x.to(device)), y.to(device)).backward()
                optimizer.step()
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InvalidValue(f"the model cannot be trained on the public data set: {error}") from error
    pruned.reference = copied.state_dict()
    pruned._learned_from = (examples,)
    return pruned


def _weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """What a file holds of the model's parameters, in their shapes; of anything else in it, nothing is read."""
    size_of(path, "file with a reference for pruning")
    try:
        with safe_open(path, "pt") as file:
            names, state = set(file.keys()), model.state_dict()
            fitting = [name for name in state if name in names and _shape(file, name) == state[name].shape]
            return {name: file.get_tensor(name) for name in fitting}
    except (OSError, SafetensorError) as error:
        raise InvalidValue(line(f"cannot read freeze.reference {shown_path(path)}: {error}")) from error


def _shape(file: Any, name: str) -> tuple[int, ...]:
    return tuple(file.get_slice(name).get_shape())
