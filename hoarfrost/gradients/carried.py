"""What a model returned for one batch, and is handed with another: a recurrent network's state, carried along."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.probe import leaves
from hoarfrost.tickets import Ticket

RUNS = 16  # that are looked at: a loop that carries something along does so from its second batch on


class Carried:
    """Remembers where the numbers that a model returned lie, by which views and detached ones are recognised.

    Guarantees:
        None: copies of them, and what was computed from them, are not recognised.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._looks = RUNS
        self._returned: set[StorageWeakRef] = set()
        self._ticket: Ticket | None = None

    def arriving(self, arguments: list[Tensor], ticket: Ticket | None) -> None:
        """The model is about to run on the chunk of this ticket."""
        if not self._looks or ticket is None or ticket is self._ticket or not self._returned:
            return
        found = _places(arguments) & self._returned
        if found - _places([*self._model.parameters(), *self._model.buffers()]):
            raise NotPrivate(
                "the model is handed what it returned for another batch (the hidden state of a recurrent network, "
                "say): the examples of that batch would have a say in the gradients of this one's, detached or not. "
                "Begin every batch anew, with torch.zeros(...)."
            )

    def leaving(self, output: Any, ticket: Ticket | None) -> None:
        """The model returns ``output`` for that chunk."""
        if not self._looks:
            return
        self._looks -= 1
        computed = [t for t in leaves(output) if isinstance(t, Tensor) and t.grad_fn is not None]
        self._returned, self._ticket = _places(computed), ticket
        if not self._looks:
            self._returned.clear()


def _places(tensors: list[Tensor]) -> set[StorageWeakRef]:
    """Where their numbers lie; a place stays theirs as long as it is remembered."""
    found = set()
    for t in tensors:
        with suppress(RuntimeError, NotImplementedError):  # sparse and nested tensors have no memory of their own
            found.add(StorageWeakRef(t.untyped_storage()))
    return found
