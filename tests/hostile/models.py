"""Folders of pretrained models that hold code, lead elsewhere, or are no models at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import payload

CONFIG = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1}
DATA = 'path = "texts.tsv"\ntest_share = 0.5\ntext = "said"\ntarget = "mood"\nclasses = 2'


def _folder(**files: Any) -> Callable[[Path], None]:
    """Files by their names, with a dash for a dot: pickles, texts, or what is written as JSON."""

    def write(folder: Path) -> None:
        folder.mkdir()
        for name, content in {"config-json": CONFIG, **files}.items():
            path = folder / name.replace("-", ".")
            if callable(content):
                content(path)
            elif content is not None:
                path.write_text(content if isinstance(content, str) else json.dumps(content))

    return write


def _shards(name: object) -> Callable[[Path], None]:
    return _folder(**{"model-safetensors-index-json": {"weight_map": {"a": name}}})


FILES: dict[str, Callable[[Path], None]] = {
    "model-no-folder": lambda file: file.write_text("{}"),
    "model-empty-folder": lambda file: file.mkdir(),
    "model-without-weights": _folder(),
    "model-pickled": _folder(**{"pytorch_model-bin": payload.torch_saved}),
    "model-pickled-shards": _folder(**{"pytorch_model_1-bin": payload.pickled}),
    "model-adapter": _folder(**{"adapter_config-json": {"base_model_name_or_path": "/etc"}}),
    "model-quantised": _folder(**{"config-json": CONFIG | {"quantization_config": {"quant_method": "own"}}}),
    "model-kernel": _folder(**{"config-json": CONFIG | {"attn_implementation": "somebody/kernel"}}),
    "model-kernel-within": _folder(**{"config-json": CONFIG | {"text_config": {"_attn_implementation": "a/b"}}}),
    "model-billion-layers": _folder(**{"config-json": CONFIG | {"num_hidden_layers": 10**9}}),
    "model-no-kind": _folder(**{"config-json": {"hidden_size": 16}}),
    "model-kind-is-a-list": _folder(**{"config-json": {"model_type": ["bert"]}}),
    "model-config-is-a-list": _folder(**{"config-json": [1]}),
    "model-config-cut": _folder(**{"config-json": '{"model_type": "be'}),
    "model-config-too-deep": _folder(**{"config-json": "[" * 100_000}),
    "model-config-in-latin-1": _folder(**{"config-json": lambda path: path.write_bytes(b'{"model_type": "\xe9"}')}),
    "model-config-is-a-folder": _folder(**{"config-json": lambda path: path.mkdir()}),
    "model-shards-elsewhere": _shards("../../secret.safetensors"),
    "model-shards-absolute": _shards("/etc/passwd"),
    "model-shards-pickled": _shards("model.bin"),
    "model-shards-of-numbers": _shards(7),
    "model-shards-missing": _shards("model-00001.safetensors"),
    "model-escape-in-shards": _shards("\x1b[2J\x1b]0;owned\x07"),
    "model-weights-are-a-folder": _folder(**{"model-safetensors": lambda path: path.mkdir()}),
}


def write_recipe(folder: Path, model: str) -> Path:
    """A recipe beside the model, and texts, that are as they should be."""
    from tests.support.recipes import changed

    (folder / "texts.tsv").write_text("said\tmood\n" + "a film\t1\na plot\t0\n" * 10)
    recipe = folder / "reads-it.toml"
    recipe.write_text(changed(data=DATA, model=f'name = "transformers"\npath = "{model}"'))
    return recipe
