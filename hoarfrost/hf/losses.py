"""One loss for each example of a transformers model, in place of the mean that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost import losses
from hoarfrost.errors import NotPrivate

CHECKED = 8  # chunks on which the losses are compared with the model's own
IGNORED = -100  # the label of what does not count
LABELS = ("labels", "start_positions", "end_positions")
WRITE = (
    "Write a loss for each example, PrivateTrainer(..., compute_loss_func=losses): def losses(outputs, labels, "
    'num_items_in_batch=None): return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none"), '
    "with what your loss is in its place (hoarfrost.losses has those for tokens, several labels and real numbers)"
)
Losses = tuple[Tensor, Callable[[], Tensor]]
"""One loss for each example, and what the model itself would make of them."""


class ModelLosses:
    """Each example's loss, from what a transformers model returns and the labels that it was given.

    Knows classification, regression, several labels, token classification, masked, causal and sequence-to-sequence
    language models, and question answering, by the shapes of logits and labels. A loss over tokens is the mean over an
    example's own, where the model's own is one over all tokens of the batch, which mixes examples.

    Args:
        label_smoothing: the share of each label that is spread over all classes.

    Guarantees:
        An example's loss is computed from its own row of logits and labels. In the first batches the losses are put
        together as the model puts them together, and compared with its own loss (in evaluation mode, without
        gradients): a model whose loss is another one (weighted classes, a further term) is refused.
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        self.name, self.config = type(base).__name__, getattr(base, "config", None)
        self.label_smoothing = label_smoothing
        # Of an encoder with a decoder: what the decoder reads follows from the labels.
        self._decoder_inputs = getattr(base, "prepare_decoder_input_ids_from_labels", None)
        self._shifts = _is_causal(base)
        self._checked = 0

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """One loss for each row, and what the model returned.

        Args:
            model: this one, or what wraps it for half precision.
            inputs: with the labels, which the model is not handed: its own loss would mix examples.
        """
        # Not where a freezer looks at single examples (in evaluation mode): the mean over one hides weights of classes.
        if model.training and self._checked < CHECKED and len(next(iter(inputs.values()))):
            self._checked += self._check(model, inputs)
        outputs = model(**self._without_labels(inputs))
        found, _ = self._find(outputs, inputs)
        return found, outputs

    def _without_labels(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in inputs.items() if name not in LABELS}
        if self._decoder_inputs is not None and "labels" in inputs and "decoder_input_ids" not in inputs:
            rest["decoder_input_ids"] = self._decoder_inputs(labels=inputs["labels"])
        return rest

    def _find(self, outputs: Any, inputs: Mapping[str, Any]) -> Losses:
        logits, labels = _get(outputs, "logits", 1), inputs.get("labels")
        if {"start_positions", "end_positions"} <= set(inputs) and _get(outputs, "start_logits") is not None:
            return self._spans(outputs, inputs)
        if isinstance(logits, Tensor) and isinstance(labels, Tensor) and len(logits) == len(labels):
            if logits.dim() == 3 and labels.dim() == 2 and not labels.is_floating_point():
                return self._tokens(logits, labels)
            if logits.dim() == 2:
                return self._classes(logits, labels)
        raise NotPrivate(
            f"what the loss of one example is cannot be seen from what {self.name} returns and the labels that it is "
            f"given. {WRITE}"
        )

    def _tokens(self, logits: Tensor, labels: Tensor) -> Losses:
        before = logits.shape[1] - labels.shape[1]  # prompts that peft puts before an example's own tokens
        labels = F.pad(labels, (max(before, 0), 0), value=IGNORED)
        if self._shifts:  # the output at one token is about the next
            labels = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        logits = logits.float()
        each = losses.token_cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        return each, lambda: F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def _classes(self, logits: Tensor, labels: Tensor) -> Losses:
        kind = getattr(self.config, "problem_type", None)  # which models set when they see labels first
        if kind == "regression" or (kind is None and logits.shape[1] == 1):
            self._refuse_smoothing("regression")
            each = losses.squared_error(logits.float(), labels.float().reshape(logits.shape))
            return each, each.mean
        if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
            self._refuse_smoothing("several labels")
            each = losses.binary_cross_entropy(logits.float(), labels)
            return each, each.mean
        labels = labels.reshape(len(logits))
        each = losses.cross_entropy(logits.float(), labels, label_smoothing=self.label_smoothing)
        return each, lambda: F.cross_entropy(logits.float(), labels)

    def _spans(self, outputs: Any, inputs: Mapping[str, Any]) -> Losses:
        parts: list[Losses] = []
        for end in ("start", "end"):
            logits = _get(outputs, f"{end}_logits").float()
            beyond = logits.shape[1]  # a position outside of the text does not count
            at = inputs[f"{end}_positions"].reshape(len(logits)).clamp(0, beyond)
            at = torch.where(at == beyond, IGNORED, at)
            # Without padding among the places to choose from: how much there is depends on the longest of the batch.
            mask = inputs.get("attention_mask")
            own = logits if mask is None else logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
            each = losses.cross_entropy(own, at, label_smoothing=self.label_smoothing)
            parts.append((each, lambda logits=logits, at=at: F.cross_entropy(logits, at)))  # type: ignore[misc]
        (start, own_start), (end_, own_end) = parts
        return (start + end_) / 2, lambda: (own_start() + own_end()) / 2

    def _refuse_smoothing(self, what: str) -> None:
        if self.label_smoothing:
            raise NotPrivate(
                f"TrainingArguments(label_smoothing_factor={self.label_smoothing}) is for classes, and {self.name} is "
                f"trained for {what}: there is nothing to smooth. Leave it out"
            )

    @torch.no_grad()
    def _check(self, model: nn.Module, inputs: Mapping[str, Any]) -> bool:
        """Whether it could be compared: a batch of which no label counts has no loss."""
        model.eval()  # without dropout, which would draw random numbers that the run does not
        outputs = model(**inputs)
        model.train()
        loss = _get(outputs, "loss", 0)
        own = self._find(outputs, inputs)[1]()
        if not isinstance(loss, Tensor) or loss.dim():
            raise NotPrivate(f"{self.name} returns no loss of its own to go by. {WRITE}")
        if not (loss.isfinite() and own.isfinite()):
            return False
        tolerance = 1e-3 if loss.dtype in (torch.float32, torch.float64) else 3e-2
        if not torch.isclose(loss.float(), own.float(), rtol=tolerance, atol=1e-5):
            raise NotPrivate(
                f"the loss of {self.name} is not the mean of the usual loss of its examples (weights of classes, a "
                f"further term, other labels?). {WRITE}"
            )
        return True


def refuse_other_shapes(found: object, by: str) -> Tensor:
    """``found``, if it is one loss for each example. Messages do not tell how many there are: that is private."""
    if isinstance(found, Tensor) and found.dim() == 1:
        return found
    what = "a single number" if isinstance(found, Tensor) and not found.dim() else "something else"
    raise NotPrivate(
        f"{by} returns {what}, and PrivateTrainer takes one loss for each example, a tensor [rows]: the gradient of "
        f"each is clipped. Leave out the mean over the batch, and take that over an example's own tokens. {WRITE}"
    )


def _get(outputs: Any, name: str, place: int | None = None) -> Any:
    """From a ModelOutput, a dictionary, or a tuple that has it in a known place."""
    if isinstance(outputs, Mapping):
        return outputs.get(name)
    return outputs[place] if place is not None and isinstance(outputs, tuple) and len(outputs) > place else None


def _is_causal(model: nn.Module) -> bool:
    """Whether the model's loss is about the next token."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    return any(kind.__name__ in known for kind in type(model).__mro__)
