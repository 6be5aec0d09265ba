"""The folder of a pretrained model: where it is, and what is looked at before anything in it is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.untrusted import line, shown, shown_path, size_of

MOST_JSON = 4 << 20  # bytes of config.json or of a list of shards
MOST_LAYERS = 1000
WEIGHTS, SHARDS = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
FETCHED = [
    "config.json", WEIGHTS, SHARDS, "model-*.safetensors", "tokenizer*", "vocab*", "merges.txt", "*.model",
    "special_tokens_map.json", "added_tokens.json",
]  # fmt: skip


def folder_of(path: str | None, hub: str | None, *, revision: str | None, fetch: bool) -> Path:
    """The folder that holds the model, once it is sure that it is one, and that it holds nothing that runs.

    Guarantees:
        Nothing is fetched unless ``fetch`` asks for it. Weights that are pickled, adapters that name another model,
        kernels from elsewhere, and lists of shards that lead out of the folder are refused before anything is loaded.
    """
    if path is not None and (revision is not None or fetch):
        raise InvalidValue(f"{'fetch' if fetch else 'revision'} is for a model that hub names; path is a folder here")
    folder = Path(path) if path is not None else _on_this_machine(hub or "", revision, fetch)
    if not folder.is_dir():
        raise InvalidValue(f"path {shown_path(folder)} is not a folder: name the one that save_pretrained has written")
    try:
        _check(folder)
    except InvalidValue as error:
        raise InvalidValue(line(f"the model in {shown_path(folder)} cannot be used: {error}")) from error
    return folder


def _on_this_machine(hub: str, revision: str | None, fetch: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtra(
            "models from the Hub need huggingface_hub, which is not installed: pip install 'hoarfrost[hf]'"
        ) from error
    try:
        return Path(snapshot_download(hub, revision=revision, local_files_only=not fetch, allow_patterns=FETCHED))
    except LocalEntryNotFoundError as error:
        if fetch:
            raise InvalidValue(line(f"hub {shown(hub)} cannot be fetched: the Hub cannot be reached")) from error
        raise InvalidValue(
            f"hub {shown(hub)} is not on this machine: fetch it with fetch = true (--set model.fetch=true), or name a "
            "folder with path instead"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidValue(line(f"hub {shown(hub)} cannot be fetched: {error}")) from error


def _check(folder: Path) -> None:
    if (folder / "adapter_config.json").exists():
        raise InvalidValue(
            "it holds an adapter, which belongs to another model: merge the two (merge_and_unload) and save the result"
        )
    config = _json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise InvalidValue("its config.json names no model_type")
    if config.get("quantization_config") is not None:
        raise InvalidValue("its weights are quantised, which cannot be trained: take the model as it was before")
    for key, value in _entries(config):
        if key.endswith("attn_implementation") and isinstance(value, str) and "/" in value:
            raise InvalidValue(f"its config.json asks for code from elsewhere: {key} = {shown(value)}")
        if "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            raise InvalidValue(
                f"its config.json asks for {key} = {shown(value)}: more than {MOST_LAYERS} are not built"
            )
    if (folder / SHARDS).exists():
        shards = _json(folder / SHARDS).get("weight_map")
        names = set(shards.values()) if isinstance(shards, dict) and shards else {None}
        for name in names:
            if not isinstance(name, str) or os.path.basename(name) != name or not name.endswith(".safetensors"):
                raise InvalidValue(
                    f"its {SHARDS} lists {shown(name)}, which is no .safetensors file in the same folder"
                )
            size_of(folder / name, "file of weights")
    elif (folder / WEIGHTS).exists():
        size_of(folder / WEIGHTS, "file of weights")
    else:
        _refuse_other_weights(folder)


def _refuse_other_weights(folder: Path) -> None:
    pickled = sorted(each.name for each in folder.iterdir() if each.suffix in PICKLED)
    if pickled:
        raise InvalidValue(
            f"its weights are in {shown(pickled[0])}, a format that can run code when it is read. If you trust it, "
            "load it yourself and write it anew: model.save_pretrained(folder) makes a model.safetensors"
        )
    raise InvalidValue(f"there is no {WEIGHTS} in it")


def _json(path: Path) -> dict[str, Any]:
    if size_of(path, "file of a model") > MOST_JSON:
        raise InvalidValue(f"its {path.name} is longer than {MOST_JSON >> 20} MiB")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise InvalidValue(f"its {path.name} is not JSON") from None
    if not isinstance(found, dict):
        raise InvalidValue(f"its {path.name} is not a JSON object")
    return found


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Of a configuration, and of the ones in it."""
    waiting = [config]
    while waiting:
        for key, value in waiting.pop().items():
            yield key, value
            if isinstance(value, dict):
                waiting.append(value)
