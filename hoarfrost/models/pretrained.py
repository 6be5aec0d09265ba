"""Pretrained models of the transformers library, with a head for the classes or the number of a recipe."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.models.folder import folder_of
from hoarfrost.registry import FolderPath, Natural, Patterns, Share, Text, component
from hoarfrost.untrusted import line, shown, shown_path

UNKNOWN = 1e9  # tokens: the library writes an enormous number where nothing is known
Adapters = Callable[[nn.Module, Sequence[str]], nn.Module]  # a model and the names of its head's modules


@component(
    "model",
    "transformers",
    one_of=(("path", "hub"),),
    tokenizer="hoarfrost.models.pretrained:tokenizer",
)
def transformers(
    shape: tuple[int, ...],
    classes: int,
    adapters: Adapters | None,
    path: FolderPath | None = None,
    hub: Text | None = None,
    revision: Text | None = None,
    fetch: bool = False,
    train: Patterns | None = None,
    dropout: Share = 0.0,
    seed: Natural = 0,
) -> nn.Module:
    """A pretrained model of the transformers library, for texts (``data.text``); its head is drawn anew. It needs the
    extra ``hf``.

    Args:
        path: the folder of a model with its tokenizer, as ``save_pretrained`` writes it. Weights are read from
            safetensors files alone, and no code that comes with a model is run. It is relative to the recipe's own
            file, and stays below that file's folder.
        hub: instead of ``path``: the name of a model on the Hugging Face Hub that was fetched before.
        revision: with ``hub``: the commit, or the name, of one of its versions.
        fetch: with ``hub``: fetch what is not on this machine yet.
        train: patterns of names of parameters or modules (``"classifier.*"``, ``"encoder.layer.5.*"``): what is
            trained. All else is frozen for the whole run. By default everything is trained.
        dropout: the probability of every dropout in the model. By default there is none, whatever the model was trained
            with: the noise regularises, and dropout makes gradients differ more.
        seed: of the weights that are drawn: those of the head and of adapters. They are public.
    """
    folder = folder_of(path, hub, revision=revision, fetch=fetch)
    with _reading(folder):
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.from_pretrained(folder, num_labels=classes, local_files_only=True, trust_remote_code=False)
        _set_dropout(config, dropout)
        config.use_cache = False  # of no use here, and it would keep what one batch held
        _check_positions(config, shape)
        tokens = tokenizer(path, hub, revision, fetch)
        config.pad_token_id = tokens.padding["input_ids"]  # by which some models find a text's last token
        _check_vocabulary(config, tokens)
        if torch.get_default_device().type == "meta":  # how large it would be is asked before it is read
            outline: nn.Module = AutoModelForSequenceClassification.from_config(config)
            return outline
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, found = AutoModelForSequenceClassification.from_pretrained(
                folder, config=config, dtype=torch.float32, use_safetensors=True, local_files_only=True,
                trust_remote_code=False, ignore_mismatched_sizes=True, output_loading_info=True,
            )  # fmt: skip
            fresh = {*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])}
            _refuse_holes(model, fresh)
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = dropout
            _freeze(model, train, fresh)
            network: nn.Module = model if adapters is None else adapters(model, _modules(model, fresh))
    return network


class Tokenizer:
    """The tokenizer of a pretrained model, as `hoarfrost.data.from_texts` takes it."""

    def __init__(self, tokenizer: Any) -> None:
        pad = next((each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), None)
        if pad is None:
            raise InvalidValue("its tokenizer has no token to pad with: set tokenizer.pad_token, and save it anew")
        self._tokenizer = tokenizer
        self.padding = {"input_ids": int(pad)}
        if "token_type_ids" in tokenizer.model_input_names:
            self.padding["token_type_ids"] = int(tokenizer.pad_token_type_id)
        self.left = tokenizer.padding_side == "left"
        most = tokenizer.model_max_length
        self.most = int(most) if most < UNKNOWN else None

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, texts: Sequence[Sequence[str]], longest: int) -> Mapping[str, Sequence[Sequence[int]]]:
        """The inputs of each text, or of each pair of texts (two lists of them), cut to ``longest`` tokens."""
        if longest <= self._tokenizer.num_special_tokens_to_add(pair=len(texts) > 1):
            raise InvalidValue(f"data.max_length = {longest} leaves no room for a text beside the model's own tokens")
        found = self._tokenizer(
            *map(list, texts), truncation=True, max_length=longest, padding=False, return_attention_mask=False,
            verbose=False,
        )  # fmt: skip
        # A model that puts no tokens of its own around a text cannot run on an empty one.
        return {name: [each or [value] for each in found[name]] for name, value in self.padding.items()}


def tokenizer(
    path: str | None = None, hub: str | None = None, revision: str | None = None, fetch: bool = False
) -> Tokenizer:
    """The tokenizer of a pretrained model; the arguments are those of the model in a recipe."""
    folder = folder_of(path, hub, revision=revision, fetch=fetch)
    with _reading(folder):
        from transformers import AutoTokenizer

        return Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))


def _set_dropout(config: Any, dropout: float) -> None:
    """Wherever a configuration has a probability of dropout; whole layers are never left out."""
    for name, value in list(config.to_dict().items()):
        if "layerdrop" in name:
            setattr(config, name, 0.0)
        elif ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float | int | None):
            setattr(config, name, dropout)


def _check_positions(config: Any, shape: tuple[int, ...]) -> None:
    """Texts are not longer than the model has positions for."""
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and shape[0] > most:
        raise InvalidValue(f"data.max_length = {shape[0]} is more than the {most} tokens that the model reads")


def _check_vocabulary(config: Any, tokens: Tokenizer) -> None:
    known = getattr(config, "vocab_size", None)
    if isinstance(known, int) and len(tokens) > known:
        raise InvalidValue(
            f"its tokenizer has {len(tokens):,} tokens, and the model knows {known:,}: they are not a pair"
        )


def _refuse_holes(model: Any, fresh: set[str]) -> None:
    """Only what a task adds may be drawn at random: a trunk with a hole in it would train, and be worth little."""
    holes = sorted(
        name for name in fresh if name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name.split(".")
    )
    if holes:
        raise InvalidValue(
            f"its weights lack {len(holes)} tensors of the model that config.json describes, such as {holes[0]}: they "
            "would be random numbers"
        )


def _modules(model: Any, fresh: set[str]) -> list[str]:
    """The names of the head's modules: those outside of the pretrained trunk, and those that were drawn."""
    outside = [
        name for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    ]  # fmt: skip
    drawn = {name.rpartition(".")[0] for name in fresh if name.startswith(f"{model.base_model_prefix}.")}
    return outside + sorted(drawn)


def _freeze(model: Any, train: Iterable[str] | None, fresh: set[str]) -> None:
    """Nothing but what is named is trained."""
    if train is None:
        return
    names = {name: _names_of(name, model.base_model_prefix) for name, _ in model.named_parameters()}
    chosen: set[str] = set()
    for pattern in train:
        found = {name for name, known in names.items() if any(fnmatchcase(each, pattern) for each in known)}
        if not found:
            all_names = sorted({each for known in names.values() for each in known})
            close = get_close_matches(pattern.removesuffix(".*"), all_names, n=1)
            advice = f"did you mean {close[0]}?" if close else f"its modules: {', '.join(_outer(model))}"
            raise InvalidValue(f"train names {shown(pattern)}, and nothing in the model is called so; {advice}")
        chosen |= found
    left = sorted({name for name in names if name in fresh} - chosen)
    if left:
        raise InvalidValue(
            f"train leaves out {left[0]}, which was drawn at random for this task: add {left[0].rpartition('.')[0]!r}"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)


def _names_of(name: str, trunk: str) -> list[str]:
    """What a parameter may be called: by its own name or a module's that it is in, also without the trunk's name."""
    found = []
    for each in {name, name.removeprefix(f"{trunk}.")}:
        parts = each.split(".")
        found += [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return found


def _outer(model: Any) -> list[str]:
    """Names of modules, for a message."""
    trunk = getattr(model, model.base_model_prefix, model)
    heads = [name for name, _ in model.named_children() if name != model.base_model_prefix]
    return [*(name for name, _ in trunk.named_children()), *heads]


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turns what the library says into one line, and keeps it from saying more."""
    try:
        from transformers.utils import logging as its
    except ImportError as error:
        raise MissingExtra(
            "pretrained models need transformers, which is not installed: pip install 'hoarfrost[hf]'"
        ) from error
    level, bars = its.get_verbosity(), its.is_progress_bar_enabled()
    its.set_verbosity(logging.CRITICAL)
    its.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # what one of these libraries says about another
            yield
    except InvalidValue as error:
        raise _placed(folder, str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # of any kind: files that are not what they should be meet checks of many libraries
        reason = str(error).strip() or type(error).__name__
        raise InvalidValue(line(f"the model in {shown_path(folder)} cannot be read: {reason}")) from error
    finally:
        its.set_verbosity(level)
        if bars:
            its.enable_progress_bar()


def _placed(folder: Path, message: str) -> InvalidValue:
    """What is about a key of the recipe says so itself; anything else is about the folder."""
    about_a_key = message.startswith(("train ", "data.", "peft", "the model in ", "path ", "hub "))
    return InvalidValue(message if about_a_key else line(f"the model in {shown_path(folder)}: {message}"))
