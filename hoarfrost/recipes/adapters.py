"""The adapters that a recipe can name in [peft]: small parts that are trained while the model rests. By peft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.recipes import schema
from hoarfrost.registry import Natural, Patterns, Positive, Share, Text, Whole, component
from hoarfrost.untrusted import line

if TYPE_CHECKING:
    from torch import nn


def build(wanted: schema.ComponentTable | None) -> Callable[[nn.Module, Sequence[str]], nn.Module] | None:
    """What puts the adapters into a model whose head has modules of these names; None if the recipe wants none."""
    if wanted is None:
        return None

    def adapted(model: nn.Module, head: Sequence[str]) -> nn.Module:
        try:
            config = schema.build(wanted, "peft", head=tuple(head))
            found: nn.Module = _library().get_peft_model(model, config)
        except InvalidValue:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, NotImplementedError) as error:
            raise InvalidValue(line(f"peft.kind = {wanted._component.kind} does not fit the model: {error}")) from error
        return found

    return adapted


def _library() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("[peft] needs peft, which is not installed: pip install 'hoarfrost[hf]'") from error
    return peft


def _config(name: str, head: Sequence[str], **options: Any) -> Any:
    """A configuration of peft for classifying sequences, whose head is trained as well."""
    peft = _library()
    return getattr(peft, name)(task_type=peft.TaskType.SEQ_CLS, modules_to_save=list(head), **options)


def _modules(wanted: Sequence[str] | str | None) -> list[str] | str | None:
    """As peft takes them: names, one name for all of a kind ("all-linear"), or nothing, and peft knows the model."""
    return wanted if wanted is None or isinstance(wanted, str) else list(wanted)


@component("peft", "lora")
def lora(
    head: Sequence[str],
    r: Whole = 8,
    alpha: Positive = 16.0,
    target_modules: Patterns | Text | None = None,
    dropout: Share = 0.0,
    rslora: bool = False,
    dora: bool = False,
) -> Any:
    """LoRA: to each chosen matrix the product of two thin ones is added, which start at zero together.

    Args:
        r: the rank: how thin they are.
        alpha: the product counts alpha / r times.
        target_modules: the layers, by the ends of their names (``["query", "value"]``), or "all-linear"; by default
            those that peft knows for the model.
        dropout: the probability with which inputs of the thin matrices are left out.
        rslora: divide alpha by the root of r instead.
        dora: DoRA: learn the lengths of the matrices' columns on their own.
    """
    return _config(
        "LoraConfig", head, r=r, lora_alpha=alpha, target_modules=_modules(target_modules), lora_dropout=dropout,
        use_rslora=rslora, use_dora=dora,
    )  # fmt: skip


@component("peft", "loha")
def loha(
    head: Sequence[str], r: Whole = 8, alpha: Positive = 8.0, target_modules: Patterns | Text | None = None
) -> Any:
    """LoHa: as LoRA, with the elementwise product of two products.

    Args:
        r: the rank.
        alpha: what is added counts alpha / r times.
        target_modules: as of LoRA.
    """
    return _config("LoHaConfig", head, r=r, alpha=alpha, target_modules=_modules(target_modules))


@component("peft", "lokr")
def lokr(
    head: Sequence[str],
    r: Whole = 8,
    alpha: Positive = 8.0,
    target_modules: Patterns | Text | None = None,
    decompose_both: bool = False,
    decompose_factor: Whole | None = None,
) -> Any:
    """LoKr: as LoRA, with a Kronecker product.

    Args:
        r: the rank.
        alpha: what is added counts alpha / r times.
        target_modules: as of LoRA.
        decompose_both: make both of its factors of thin matrices.
        decompose_factor: the size of the first factor; by default about the root of the layer's.
    """
    return _config(
        "LoKrConfig", head, r=r, alpha=alpha, target_modules=_modules(target_modules), decompose_both=decompose_both,
        decompose_factor=-1 if decompose_factor is None else decompose_factor,
    )  # fmt: skip


@component("peft", "vera")
def vera(
    head: Sequence[str],
    r: Whole = 256,
    target_modules: Patterns | Text | None = None,
    projection_prng_key: Natural = 0,
    vera_dropout: Share = 0.0,
    d_initial: Positive = 0.1,
) -> Any:
    """VeRA: as LoRA, with thin matrices that are random and the same for all layers; two vectors of each are trained.

    Args:
        r: the rank.
        target_modules: as of LoRA.
        projection_prng_key: the public number that the random matrices follow from.
        vera_dropout: the probability with which inputs are left out.
        d_initial: the first value of one of the vectors.
    """
    return _config(
        "VeraConfig", head, r=r, target_modules=_modules(target_modules), projection_prng_key=projection_prng_key,
        vera_dropout=vera_dropout, d_initial=d_initial,
    )  # fmt: skip


@component("peft", "ia3")
def ia3(
    head: Sequence[str],
    target_modules: Patterns | Text | None = None,
    feedforward_modules: Patterns | Text | None = None,
) -> Any:
    """IA3: one factor for each output of the chosen layers.

    Args:
        target_modules: as of LoRA.
        feedforward_modules: those among them whose inputs are scaled instead of their outputs.
    """
    return _config(
        "IA3Config", head, target_modules=_modules(target_modules), feedforward_modules=_modules(feedforward_modules)
    )


@component("peft", "ln_tuning")
def ln_tuning(head: Sequence[str], target_modules: Patterns | Text | None = None) -> Any:
    """The layer norms alone are trained.

    Args:
        target_modules: which; by default all that peft knows for the model.
    """
    return _config("LNTuningConfig", head, target_modules=_modules(target_modules))


@component("peft", "prompt_tuning")
def prompt_tuning(head: Sequence[str], num_virtual_tokens: Whole) -> Any:
    """Prompt tuning: vectors that are trained stand before every text.

    Args:
        num_virtual_tokens: how many of them.
    """
    return _config("PromptTuningConfig", head, num_virtual_tokens=num_virtual_tokens)


@component("peft", "p_tuning")
def p_tuning(head: Sequence[str], num_virtual_tokens: Whole, encoder_hidden_size: Whole | None = None) -> Any:
    """P-tuning: as prompt tuning, with vectors that a small network computes.

    Args:
        num_virtual_tokens: how many of them.
        encoder_hidden_size: the width of the network; by default the model's.
    """
    return _config(
        "PromptEncoderConfig", head, num_virtual_tokens=num_virtual_tokens, encoder_hidden_size=encoder_hidden_size
    )


@component("peft", "prefix_tuning")
def prefix_tuning(head: Sequence[str], num_virtual_tokens: Whole, prefix_projection: bool = False) -> Any:
    """Prefix tuning: keys and values that are trained stand before those of every text, in each layer.

    Args:
        num_virtual_tokens: how many of them.
        prefix_projection: compute them by a small network.
    """
    return _config(
        "PrefixTuningConfig", head, num_virtual_tokens=num_virtual_tokens, prefix_projection=prefix_projection
    )
