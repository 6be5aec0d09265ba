"""Recurrent layers: nn.RNN, nn.LSTM and nn.GRU, unrolled over time with detached weights.

Shapes in this file are time first, as the layers' own default: T steps, R rows (examples × views), then channels. Every
weight is a linear map that is used once in each step; its gradients of all steps arrive together, at one tap.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hoarfrost.gradients.rules.base import Forward, Recorder, Rule, check_example_dim, not_attributable
from hoarfrost.gradients.rules.linear import any_live, linear, record_linear

State = tuple[Tensor, ...]  # (hidden,) or, in an LSTM, (hidden, cell)

# One step: from the gates and the state before it to the state after it. Gates are the input's share plus the hidden
# state's. A GRU changes one share before it adds them: its ``gates`` are the hidden state's alone, ``x`` the input's.


def _tanh(gates: Tensor, x: Tensor, state: State) -> State:
    return (gates.tanh(),)


def _relu(gates: Tensor, x: Tensor, state: State) -> State:
    return (gates.relu(),)


def _lstm(gates: Tensor, x: Tensor, state: State) -> State:
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(gates: Tensor, x: Tensor, state: State) -> State:
    (r_h, z_h, n_h), (r_x, z_x, n_x) = gates.chunk(3, 1), x.chunk(3, 1)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (torch.lerp(n, state[0], (z_x + z_h).sigmoid()),)


CELLS = {"RNN_TANH": _tanh, "RNN_RELU": _relu, "LSTM": _lstm, "GRU": _gru}


class RecurrentRule(Rule):
    """All layers and directions of a recurrent module, on padded or packed sequences."""

    def applies_to(self, module: Any) -> bool:
        return set(module._parameters) == set(module._flat_weights_names) and not hasattr(module, "parametrizations")

    def forward(self, recorder: Recorder, module: Any, original: Forward, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        source, start = given["input"], given.get("hx")
        if isinstance(source, PackedSequence):
            x, lengths = pad_packed_sequence(source)  # in the order in which the examples were before packing
            if x.shape[1] != recorder.rows:
                raise not_attributable(recorder.name_of(module), module, x, recorder.rows)
        else:
            check_example_dim(recorder, module, (args, kwargs), source)
            x = source.transpose(0, 1) if module.batch_first else source
            lengths = torch.full((x.shape[1],), len(x))
        states = (start,) if isinstance(start, Tensor) else start or _zeros(module, x)

        ends: list[State] = []
        for layer in range(module.num_layers):
            if layer:
                x = F.dropout(x, module.dropout, module.training)
            directions = []
            for suffix in ("", "_reverse")[: 1 + module.bidirectional]:
                before = tuple(s[len(ends)].clone() for s in states)  # theirs to overwrite, ours to keep for later
                outputs, after = _unroll(recorder, module, f"l{layer}{suffix}", x, lengths, before)
                directions.append(outputs)
                ends.append(after)
            x = directions[0] if len(directions) == 1 else torch.cat(directions, 2)
        hidden = tuple(torch.stack(s) for s in zip(*ends, strict=True))
        return _like(source, x, lengths, module.batch_first), hidden if module.mode == "LSTM" else hidden[0]


class CellRule(Rule):
    """One step of a cell; a loop over time uses its weights once in each."""

    def applies_to(self, module: Any) -> bool:
        return set(module._parameters) == {"weight_ih", "weight_hh", "bias_ih", "bias_hh"} and not hasattr(
            module, "parametrizations"
        )

    def forward(self, recorder: Recorder, module: Any, original: Forward, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        x, start = given["input"], given.get("hx")
        lstm = isinstance(module, nn.LSTMCell)
        dim_of = recorder.example_dims(module)
        states = (start,) if isinstance(start, Tensor) else tuple(start or ())
        for order, t in enumerate((x, *states)):
            if t.dim() != 2 or dim_of(order, t) != 0:
                raise not_attributable(recorder.name_of(module), module, t, recorder.rows)
        states = states or (x.new_zeros(len(x), module.hidden_size),) * (1 + lstm)
        inputs = linear(recorder, x, 0, module.weight_ih, module.bias_ih)
        hidden = linear(recorder, states[0], 0, module.weight_hh, module.bias_hh)
        if isinstance(module, nn.GRUCell):
            return _gru(hidden, inputs, states)[0]
        if lstm:
            return _lstm(hidden + inputs, inputs, states)
        return CELLS[f"RNN_{module.nonlinearity.upper()}"](hidden + inputs, inputs, states)[0]


def _zeros(module: Any, x: Tensor) -> State:
    """The initial states that a module takes by default, [layers × directions, R, channels]."""
    count = module.num_layers * (1 + module.bidirectional)
    hidden = x.new_zeros(count, x.shape[1], module.proj_size or module.hidden_size)
    return (hidden, x.new_zeros(count, x.shape[1], module.hidden_size)) if module.mode == "LSTM" else (hidden,)


def _like(source: Tensor | PackedSequence, output: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """``output`` [T, R, channels] in the layout of the module's input."""
    if not isinstance(source, PackedSequence):
        return output.transpose(0, 1) if batch_first else output
    if source.sorted_indices is not None:
        order = source.sorted_indices
        output, lengths = output.index_select(1, order), lengths[order.to(lengths.device)]
    return source._replace(data=pack_padded_sequence(output, lengths).data)


def _unroll(
    recorder: Recorder, module: Any, name: str, x: Tensor, lengths: Tensor, state: State
) -> tuple[Tensor, State]:
    """One direction of one layer: the hidden states [T, R, channels] of all steps, and the state after the last."""

    def parameter(kind: str) -> Any:
        return getattr(module, f"{kind}_{name}", None)

    steps, rows = x.shape[:2]
    cell = CELLS[module.mode]
    inputs = linear(recorder, x, 1, parameter("weight_ih"), parameter("bias_ih"))
    weight, bias = parameter("weight_hh"), parameter("bias_hh")
    recur = _EachStep(recorder, weight, bias, torch.zeros_like(inputs) if cell is _gru else inputs)
    project = None
    if module.proj_size:
        project = _EachStep(recorder, parameter("weight_hr"), None, x.new_zeros(steps, rows, module.proj_size))
    apart = inputs.unbind()
    shortest = int(lengths.min())
    running = (torch.arange(steps)[:, None, None] < lengths[:, None]).to(x.device)
    outputs: list[Any] = [None] * steps
    for t in reversed(range(steps)) if name.endswith("_reverse") else range(steps):
        after = cell(recur(t, state[0]), apart[t], state)
        if project is not None:
            after = (project(t, after[0]), *after[1:])
        if t >= shortest:
            # A sequence that is over keeps its state; one read backwards has not begun. Nothing flows back from here.
            after = tuple(torch.where(running[t], new, old) for new, old in zip(after, state, strict=True))
        state, outputs[t] = after, after[0]
    return torch.stack(outputs), state


class _EachStep:
    """A linear map whose input is known only when its step comes.

    What its results are added to, ``onto`` [T, R, channels], is there for all steps before the first one: the gradient
    that arrives there is also the results' own. The inputs are noted as they come.
    """

    def __init__(self, recorder: Recorder, weight: nn.Parameter, bias: nn.Parameter | None, onto: Tensor):
        self.weight, self.live = weight.detach().T, any_live(recorder, weight, bias)
        seen = self.seen = [weight.new_empty(0)] * len(onto)
        if bias is not None:
            onto = onto + bias.detach()
        if self.live:
            groups = recorder.groups
            onto = recorder.tap(
                onto, lambda g, _: record_linear(recorder, groups, torch.stack(seen), g, 1, weight, bias)
            )
        self.onto = onto.unbind()

    def __call__(self, t: int, h: Tensor) -> Tensor:
        if self.live:
            self.seen[t] = h.detach()  # detached, or the graph would hold on to itself through the tap
        return torch.addmm(self.onto[t], h, self.weight)
