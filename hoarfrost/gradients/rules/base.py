"""What a rule is, and what the engine offers to it.

A rule says how one class of modules is differentiated example by example. `hoarfrost.register_rule` adds one for a
class of your own.

**What a rule must do.** `Rule.forward` runs the module and returns its output. While doing so, it

1. keeps the module's parameters out of autograd (`detached`): a gradient that autograd itself brings to a parameter is
   refused;
2. puts a tap on the output (`Recorder.tap`), whose sink runs in the backward pass and gets the output's gradient. The
   output must be a new tensor that no operation saved for its own backward pass (tanh or softmax do: clone theirs);
3. adds, in that sink, one `Contribution` for each use of each live parameter (`Recorder.add`): the gradients of all
   examples, [B, *parameter.shape], written out (`Dense`) or not (`Outer`, `Rows`, ...).

`LayerRule` does all of this for layers with one input tensor and one output tensor. A subclass names the layer's
``parameters`` and computes their ``contributions`` from input and output gradient, and nothing else.

**What a rule may use.** Of the engine, the methods of `Recorder`, and no others. They hold during the call that they
were handed to: a rule keeps nothing on itself or on the module, since one rule serves all modules of its class. What
the backward pass needs is given to ``tap`` as ``inputs``, where it lives and dies with the autograd graph.

**What a rule promises.**

- The output is what the module's own ``forward`` returns.
- A contribution of example b is computed from the rows of example b alone. Privacy depends on it: if it holds, every
  example is clipped to what was asked for, even if the gradient is wrong.
- It is the gradient of the loss, so that training works. Check it against plain autograd, one example at a time.
- A contribution of a class of your own never says a smaller norm than that of what it adds to the sum. Privacy depends
  on it. The classes of `hoarfrost.gradients.contributions` keep it.
- Settings under which examples mix are refused by `Rule.check`.

**Layouts.** A batch has ``rows``: those of an example (its K views), or of a person (up to K), one after the other.
`Recorder.groups` knows whose they are: its `split` makes [B, K, ...] of [rows, ...], with gradients of zero where
somebody has fewer than K rows. `LayerRule` hands over such tensors; `flatten_positions` makes [B, T, channels] of them,
`sum_positions` adds up over T. Half-precision tensors are summed in float32 (`at_least_float32`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, at_least_float32
from hoarfrost.gradients.sites import Site
from hoarfrost.gradients.tap import Sink, note_rows
from hoarfrost.groups import Groups
from hoarfrost.masks import PartialMask

Forward = Callable[..., Any]
NamedContributions = Iterator[tuple[str, Contribution]]
LiveMasks = Mapping[str, bool | PartialMask]  # a module's live parameters by name: True, or what is live of them


class Recorder(Protocol):
    """The engine, as a rule sees it: all that a rule may use of it."""

    rows: int  # in the forward pass that is running
    in_layer: bool  # a layer's rule is running: what it computes is none of the model's operations

    @property
    def probing(self) -> bool:
        """Whether the model is being looked at: what a rule computes in other ways can be compared."""

    @property
    def locating(self) -> bool:
        """Whether it is not known yet where the examples are: nothing can be said against a computation."""

    @property
    def groups(self) -> Groups:
        """Whose these rows are. To be read in the forward pass: the backward pass may come after another one."""

    def name_of(self, module: nn.Module) -> str:
        """The module's name in the model, for messages."""

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter is live: it wants a gradient, and the optimizer will move it."""

    def mask_of(self, parameter: nn.Parameter) -> bool | PartialMask:
        """Which of its coordinates are live; False where none is, as `trains` says."""

    def example_dims(self, module: nn.Module, default: int = 0) -> Callable[[int, Tensor], int | None]:
        """Which dimension of the module's i-th input tensor counts examples; None where the examples share it."""

    def tap(self, output: Tensor, sink: Sink, *inputs: Tensor) -> Tensor:
        """``output``, with ``sink(gradient, inputs)`` called in the backward pass."""

    def watch(self, leaf: Tensor, sink: Callable[[Tensor], None]) -> None:
        """Has ``sink(gradient)`` called when the backward pass brings ``leaf`` its whole gradient."""

    def add(self, parameter: nn.Parameter, contribution: Contribution) -> None:
        """Records what one use of ``parameter`` contributes to the backward pass that is running."""

    def held(self, t: Tensor) -> bool:
        """Whether the model held this tensor, or its memory, when it was made private: no example is in it."""

    def counts_rows(self, site: Site) -> bool | None:
        """Whether what this place in the code makes of nothing, or expands, has a row for each example, if known."""

    def rows_along(self, site: Site) -> int | None:
        """Which of its dimensions counts rows, if one does and that is known."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Runs modules as they are, without rules."""


class Rule(ABC):
    """How one class of modules is differentiated example by example; see above for the contract.

    Guarantees:
        A module whose rule keeps the contract contributes each example's own gradient, and nothing of other examples.
    """

    runs_in_probe: ClassVar[bool] = False  # whether it also checks what it sees while the examples are being located

    def for_call(self, module: nn.Module, args: Any, kwargs: Any) -> Rule:
        """The rule for a call with these arguments: another one may fit better."""
        return self

    def recorded(self, module: nn.Module) -> Iterable[nn.Parameter]:
        """The parameters that it records: the module's own, or those of inner modules, too."""
        return [p for p in module._parameters.values() if p is not None]

    def check(self, module: nn.Module, name: str) -> None:  # noqa: B027 - most layers have nothing to refuse
        """Refuses, by name and with the fix, settings that cannot be private. Asked at every call."""

    def applies_to(self, module: nn.Module) -> bool:
        """Whether the module holds just the parameters that this rule is about (and none that something added).

        If not, the module is differentiated by the fallback.
        """
        return True

    @abstractmethod
    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        """The module's output, made so that the backward pass records contributions for its live parameters."""


class LayerRule(Rule):
    """A layer with one input tensor and one output tensor, both with examples along the same dimension.

    The layer runs as it always did, with detached parameters; a subclass says what its parameters' gradients are.

    >>> from hoarfrost.gradients.contributions import Dense
    >>> class ScaleRule(LayerRule):  # of a layer y = x * weight, for x [B, ..., channels]
    ...     parameters = frozenset({"weight"})
    ...
    ...     def contributions(self, module, x, g, live, *saved):
    ...         if "weight" in live:
    ...             yield "weight", Dense(sum_positions(flatten_positions(x * g)))
    """

    parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})  # all that the layer may hold
    input_name: ClassVar[str] = "input"  # of its forward's first argument, for calls by keyword

    def applies_to(self, module: nn.Module) -> bool:
        return set(module._parameters) <= self.parameters and not hasattr(module, "parametrizations")

    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        x, dim = self.locate(recorder, module, args[0] if args else kwargs.pop(self.input_name))
        with detached(module):
            output, *saved = self.run(module, original, x, *args[1:], **kwargs)
        if hasattr(output.grad_fn, "_raw_saved_result"):
            output = output.clone()  # tanh, exp or softmax keep their result, which a tap would mark as changed

        groups = recorder.groups

        def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
            own = {name: p for name, p in module._parameters.items() if p is not None}
            live = {name: mask for name, p in own.items() if (mask := recorder.mask_of(p)) is not False}
            if dim:
                gradient, inputs = gradient.movedim(dim, 0), tuple(t.movedim(dim, 0) for t in inputs)
            x, *saved = [groups.split(t, again=True) for t in inputs]
            missing = set(live)
            for name, contribution in self.contributions(module, x, groups.split(gradient), live, *saved):
                recorder.add(own[name], contribution)
                missing.discard(name)
            if missing:
                raise NotPrivate(
                    f"{recorder.name_of(module)} ({type(module).__name__}): {type(self).__name__} yields no "
                    f"contribution of the live parameter {min(missing)}, which would be trained on noise alone. Let "
                    "contributions() yield one for every name in `live`."
                )

        tapped = recorder.tap(output, sink, x, *saved)
        note_rows(tapped, dim)
        return tapped

    def run(self, module: Any, original: Forward, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The layer's output, and what else of its forward pass (for each row) its contributions are made from."""
        return (original(*args, **kwargs),)

    def locate(self, recorder: Recorder, module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
        """The input to run on, and the dimension that counts its examples."""
        dim = recorder.example_dims(module)(0, x)
        if dim is None:
            raise not_attributable(recorder.name_of(module), module, x, recorder.rows)
        return x, dim

    @abstractmethod
    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        """(name, contribution) of all ``live`` parameters from input ``x`` and output gradient ``g`` [B, K, ...].

        ``saved`` is what else `run` returned, in the same layout. Called in the backward pass, without autograd.
        Frozen coordinates are left out afterwards; a rule that can save work by knowing them looks at ``live`` itself.
        """


def flatten_positions(t: Tensor) -> Tensor:
    """[B, K, ..., channels] → [B, T, channels]."""
    if t.dim() == 3:
        return t
    return t.reshape(t.shape[0], -1, t.shape[-1]) if t.numel() else t.new_zeros(t.shape[0], 1, t.shape[-1])


def check_example_dim(recorder: Recorder, module: Any, arguments: Any, *sequences: Tensor) -> None:
    """Refuses any of the ``sequences`` in a call's ``arguments`` whose examples are not where the module expects them.

    Anywhere else they would be steps of one sequence, and see each other.
    """
    expected = 0 if module.batch_first else 1
    tensors = [t for t in tree_flatten(arguments)[0] if isinstance(t, Tensor)]
    order = {id(t): i for i, t in enumerate(tensors)}
    dim_of = recorder.example_dims(module, default=expected)
    for t in sequences:
        if t.is_nested or t.dim() != 3 or dim_of(order[id(t)], t) != expected:
            given = "a nested input" if t.is_nested else f"an input of shape {tuple(t.shape)}"
            raise wrong_example_dim(recorder.name_of(module), module, f"{given} for {recorder.rows} examples")


def wrong_example_dim(name: str, module: Any, given: str) -> NotPrivate:
    """The error for a layer over sequences that would take examples for steps of one sequence."""
    return NotPrivate(
        f"{name} ({type(module).__name__}, batch_first={module.batch_first}) gets {given}, where examples must be "
        f"dimension {0 if module.batch_first else 1} of 3: anywhere else they would be steps of one sequence, and mix. "
        "Set batch_first to what the model uses, and give every example a sequence of its own."
    )


def sum_positions(g: Tensor) -> Tensor:
    """Σ_t g_t: [B, T, channels] → [B, channels], without a copy where there is one position."""
    return g.select(1, 0) if g.shape[1] == 1 else at_least_float32(g).sum(1)


class detached:
    """The module's own parameters stand outside autograd while this lasts; the parameters themselves are untouched."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._own = module, module._parameters

    def __enter__(self) -> None:
        outside = {name: None if p is None else p.detach() for name, p in self._own.items()}
        self._module.__dict__["_parameters"] = outside

    def __exit__(self, *_: object) -> None:
        self._module.__dict__["_parameters"] = self._own


def not_attributable(name: str, module: nn.Module, x: Tensor, rows: int) -> NotPrivate:
    """The error for a layer whose gradients cannot be attributed to individual examples."""
    if x.is_nested:
        return NotPrivate(
            f"{name} ({type(module).__name__}) gets a nested tensor, whose examples have no dimension of their own. "
            "Pad them (torch.nn.utils.rnn.pad_sequence), and pass lengths or a mask along."
        )
    if rows == 0:
        return NotPrivate(
            f"{name} ({type(module).__name__}) is called by itself, before the private model has run on a batch: whose "
            "gradients are whose is known within a run of the whole model. Call the model itself, and put what the "
            "loop does with its parts (encode, decode) into its forward."
        )
    return NotPrivate(
        f"{name} ({type(module).__name__}) gets an input of shape {tuple(x.shape)}, in which no dimension counts the "
        f"{rows} examples of this batch, so its gradients cannot be attributed to individual examples. Keep the "
        f"examples in a dimension of their own (no flattening with others), and expand what they share: "
        f"x.expand({rows}, ...). Where a layer is given some rows alone (experts), run it on all examples, and weigh "
        "what comes out: gate[:, k, None] * expert(x)."
    )
