"""Recipes for texts: a pretrained model, adapters, and a file of texts, from the recipe to the weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hoarfrost.audit.suite import Subject, run_suite
from hoarfrost.cli import app
from hoarfrost.data import Texts
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.models import outputs_of
from hoarfrost.models.pretrained import Tokenizer, tokenizer
from hoarfrost.recipes import read_recipe
from hoarfrost.train import Recipe, load_model, records, resume, run
from hoarfrost.train.prepare import Parts, Prepared, prepare
from tests.support import payload
from tests.support.kills import run_until_killed
from tests.support.texts import LABELS, VOCABULARY, reviews, text_recipe, write_model, write_reviews

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

CPU = torch.device("cpu")
LORA = {"kind": "lora", "r": 2, "target_modules": ["query", "value"]}


@pytest.fixture(scope="module", autouse=True)
def _quietly() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(autouse=True)
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The diagram of a run takes as long as the rest of so small a run, and has tests of its own."""
    monkeypatch.setattr(records, "reliability_diagram", lambda found: "<svg/>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_reviews(tmp_path_factory.mktemp("data"), train=60, test=20)


def prepared(data: dict[str, Any], model: Path, **changes: Any) -> Prepared:
    return prepare(text_recipe(data, model, **changes), CPU)


def moved(run: Prepared, after: nn.Module) -> set[str]:
    """The parameters that training has changed; ``run`` has not been trained."""
    before = dict(run.private.model.named_parameters())
    return {name for name, p in after.named_parameters() if not torch.equal(p, before[name])}


# Training.


def test_a_text_classifier_learns_and_leaves_its_folder(model: Path, tmp_path: Path) -> None:
    recipe = text_recipe(
        write_reviews(tmp_path, train=600), model, schedule={"kind": "linear", "warmup": 0.1},
        privacy={
            "noise_multiplier": 0.05, "delta": 1e-4, "sample_rate": 0.3, "steps": 20, "accountant": "rdp", "seed": 0,
        },
        loop={"threads": 1, "max_physical_batch": 200},
    )  # fmt: skip
    result = run(recipe, out=tmp_path / "run")
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.8
    assert result.test_metrics["ece"] < 0.5
    assert read_recipe(tmp_path / "run" / "recipe.toml", root="/") == recipe
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["versions"].keys() >= {"transformers", "tokenizers"}
    assert facts["trained_parameters"] == facts["parameters"]
    for name in ("budget.json", "calibration.json", "metrics.jsonl", "model.safetensors", "not-private/metrics.jsonl"):
        assert (tmp_path / "run" / name).exists()


def test_the_weights_are_those_of_the_library_itself(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    result = run(text_recipe(data, model, privacy__steps=1), out=tmp_path / "run")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    again.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    ids = torch.tensor([[2, 5, 3]])
    result.model.eval()
    again.eval()
    torch.testing.assert_close(again(input_ids=ids).logits, outputs_of(result.model, {"input_ids": ids}))


@pytest.mark.parametrize("peft", [None, LORA], ids=["all", "LoRA"])
def test_a_trained_model_is_loaded_without_a_look_at_the_data(
    model: Path, tmp_path: Path, peft: dict[str, Any] | None
) -> None:
    changes = {} if peft is None else {"peft": peft}
    result = run(text_recipe(write_reviews(tmp_path), model, privacy__steps=1, **changes), out=tmp_path / "run")
    for name in ("train.tsv", "test.tsv"):
        (tmp_path / name).unlink()
    loaded = load_model(tmp_path / "run")
    assert not loaded.training
    assert loaded.state_dict().keys() == result.model.state_dict().keys()
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[name]), name
    (tmp_path / "run" / "model.safetensors").write_bytes(b"31337")
    with pytest.raises(InvalidValue, match="does not fit the recipe"):
        load_model(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InvalidValue, match=r"there is no model\.safetensors"):
        load_model(tmp_path / "run")


def one_by_one(network: nn.Module, texts: Texts, clip: float) -> dict[str, Tensor]:
    """The sum of all clipped gradients, of each text alone and without padding."""
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for inputs, target in texts:
        logits = network(**{name: each[None] for name, each in inputs.items()}).logits
        loss = nn.functional.cross_entropy(logits, target[None])
        gradients = torch.autograd.grad(loss, list(named.values()))
        factor = min(1.0, clip / float(torch.stack([g.norm() for g in gradients]).norm()))
        for name, gradient in zip(named, gradients, strict=True):
            total[name] += factor * gradient
    return total


@pytest.mark.parametrize(
    "changes",
    [{}, {"peft": LORA}, {"model__train": ["classifier.*", "pooler", "encoder.layer.1.*"]}],
    ids=["all", "LoRA", "last layer"],
)
def test_a_step_is_the_sum_of_what_each_text_gives_alone(
    data: dict[str, Any], model: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Against single texts without padding; about half of them are clipped."""
    clip, rate = 1.2, 0.5
    settings: dict[str, Any] = {
        **changes,
        "privacy": {"noise_multiplier": 0.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 1},
        "optimizer": {"kind": "sgd", "lr": rate},
        "clip": {"norm": clip},
        "loop": {"threads": 1, "max_physical_batch": 64},
    }
    recipe = text_recipe(data, model, **settings)
    parts = Parts.build(recipe, CPU)
    assert isinstance(parts.splits.train, Texts)
    totals = one_by_one(parts.model.train(), parts.splits.train, clip)
    before, texts = dict(parts.model.named_parameters()), parts.splits.train
    after = dict(run(recipe, out=tmp_path / "run").model.named_parameters())
    for name, total in totals.items():
        wanted = before[name] - rate * total / len(texts)
        torch.testing.assert_close(
            after[name], wanted, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_pairs_of_texts_are_read_together(model: Path, tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = [{"one": text, "two": "film", "same": label == "yes"} for text, label in reviews(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = {
        "path": str(tmp_path / "train.jsonl"), "test": str(tmp_path / "test.jsonl"), "text": ["one", "two"],
        "target": "same", "labels": ["false", "true"],
    }  # fmt: skip
    texts = prepared(pairs, model).splits.train
    inputs, _ = texts[0]
    assert inputs["token_type_ids"].tolist()[-2:] == [1, 1]
    assert inputs["input_ids"][-2] == VOCABULARY.index("film")
    assert run(text_recipe(pairs, model, privacy__steps=1), out=tmp_path / "run").steps == 1


def test_a_number_is_learned_from_texts(model: Path, tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = ["text\tstars", *(f"{text}\t{5 if label == 'yes' else 1}" for text, label in reviews(100))]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    stars = {
        "path": str(tmp_path / "train.tsv"), "test": str(tmp_path / "test.tsv"), "text": "text", "target": "stars",
        "target_bounds": [1, 5],
    }  # fmt: skip
    recipe = text_recipe(stars, model, loss={"kind": "squared_error"}, privacy__noise_multiplier=0.1, privacy__steps=2)
    result = run(recipe, out=tmp_path / "run")
    assert result.test_loss is not None
    assert result.test_metrics["mse"] == pytest.approx(4 * result.test_loss, rel=1e-4)


# Going on.


@pytest.mark.parametrize("peft", [pytest.param(None, marks=pytest.mark.slow), LORA], ids=["all", "LoRA"])
def test_an_interrupted_run_and_a_whole_one_are_the_same(
    data: dict[str, Any], model: Path, tmp_path: Path, peft: dict[str, Any] | None
) -> None:
    """Without noise, with all texts in each step, and with a seed."""
    settings: dict[str, Any] = {
        "privacy": {"noise_multiplier": 0.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 5, "seed": 3},
        "loop": {"threads": 1, "checkpoint_every": 2},
        "schedule": {"kind": "linear"},
    } | ({} if peft is None else {"peft": peft})
    run_until_killed(4, run, text_recipe(data, model, **settings), out=tmp_path / "run")
    resumed = resume(tmp_path / "run")
    whole = run(text_recipe(data, model, **settings), out=tmp_path / "whole")
    assert resumed.steps == whole.steps == 5
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_other_texts_and_another_model_are_not_the_same_run(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    recipe = text_recipe(data, model, privacy__steps=3, loop={"threads": 1, "checkpoint_every": 1})
    run_until_killed(2, run, recipe, out=tmp_path / "run")
    (tmp_path / "less.tsv").write_text("text\tliked\na film\tyes\n" * 3)
    with pytest.raises(InvalidValue, match="not the training data that the run began with"):
        resume(tmp_path / "run", overrides=[f"data.path={tmp_path / 'less.tsv'}"])
    other = write_model(tmp_path / "other", layers=1)
    with pytest.raises(InvalidValue, match="does not fit this run"):
        resume(tmp_path / "run", overrides=[f"model.path={other}"])
    kept = tmp_path / "run" / "recipe.toml"
    kept.write_text(kept.read_text().replace(str(model), str(other)))
    with pytest.raises(InvalidValue, match=r"model\.path: .* before, .* now"):
        resume(tmp_path / "run")


def test_every_adapter_moves_and_nothing_else(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    recipe = text_recipe(data, model, peft=LORA)
    found = moved(prepare(recipe, CPU), run(recipe, out=tmp_path / "run").model)
    adapters = {name for name, _ in prepare(recipe, CPU).private.model.named_parameters() if "lora_" in name}
    head = {f"base_model.model.classifier.modules_to_save.default.{each}" for each in ("weight", "bias")}
    assert len(adapters) == 8
    assert found == adapters | head


def test_all_that_was_drawn_is_trained_with_adapters(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    """Also a part of the head that peft does not know: here the pooler, which the file lacks."""
    weights = {name: each for name, each in load_file(model / "model.safetensors").items() if "pooler" not in name}
    bare = corrupted(model, tmp_path / "bare", "model.safetensors", save(weights, {"format": "pt"}))
    network = prepared(data, bare, peft=LORA).private.model
    trained = {name for name, p in network.named_parameters() if p.requires_grad and "lora_" not in name}
    assert {name.partition(".modules_to_save")[0] for name in trained} == {
        "base_model.model.classifier", "base_model.model.bert.pooler.dense",
    }  # fmt: skip


KINDS: list[dict[str, Any]] = [
    {"kind": "ia3"},
    {"kind": "ln_tuning", "target_modules": ["LayerNorm"]},
    {"kind": "prefix_tuning", "num_virtual_tokens": 3},
]
OTHER_KINDS: list[dict[str, Any]] = [
    {"kind": "lora", "target_modules": "all-linear", "dora": True},
    {"kind": "loha", "target_modules": ["query"]},
    {"kind": "lokr", "target_modules": ["query"], "decompose_both": True},
    {"kind": "vera", "r": 4},
    {"kind": "prompt_tuning", "num_virtual_tokens": 3},
    {"kind": "p_tuning", "num_virtual_tokens": 3},
]


@pytest.mark.parametrize(
    "peft",
    [*KINDS, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHER_KINDS)],
    ids=lambda peft: peft["kind"],
)
def test_every_kind_of_adapters_is_trained_or_refused_by_name(
    data: dict[str, Any], model: Path, tmp_path: Path, peft: dict[str, Any]
) -> None:
    recipe = text_recipe(data, model, peft=peft, privacy__steps=2)
    before = prepare(recipe, CPU)
    wanted = {name for name, p in before.private.model.named_parameters() if p.requires_grad}
    assert any("classifier" in name for name in wanted)
    assert any("classifier" not in name for name in wanted)
    try:
        result = run(recipe, out=tmp_path / "run")
    except NotPrivate:
        return
    assert moved(before, result.model) == wanted


# The model.


def test_parts_are_trained_by_name(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    recipe = text_recipe(data, model, model__train=["classifier.*", "encoder.layer.1.attention"], privacy__steps=2)
    before = prepare(recipe, CPU)
    names = dict(before.private.model.named_parameters())
    wanted = {name for name in names if name.startswith(("classifier.", "bert.encoder.layer.1.attention."))}
    assert moved(before, run(recipe, out=tmp_path / "run").model) == wanted
    assert "of them trained" in before.overview().headline
    biases = prepared(data, model, model__train=["*.bias", "classifier"])
    assert {n for n, p in biases.private.model.named_parameters() if p.requires_grad} == {
        name for name in names if name.endswith(".bias") or name.startswith("classifier.")
    }


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (["clasifier.*", "bert"], r"model.train names 'clasifier\.\*', .* did you mean classifier\?"),
        (["xyz"], "its modules: embeddings, encoder, pooler, dropout, classifier"),
        (["encoder.layer.1.*"], "train leaves out classifier.bias, which was drawn at random .*: add 'classifier'"),
    ],
)
def test_patterns_that_name_nothing_or_leave_out_the_head(
    data: dict[str, Any], model: Path, train: list[str], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        prepared(data, model, model__train=train)


def test_the_head_follows_from_its_seed_and_the_rest_from_the_file(data: dict[str, Any], model: Path) -> None:
    one, same, other = (prepared(data, model, model__seed=seed).private.model for seed in (0, 0, 1))
    assert torch.equal(one.get_parameter("classifier.weight"), same.get_parameter("classifier.weight"))
    assert not torch.equal(one.get_parameter("classifier.weight"), other.get_parameter("classifier.weight"))
    trunk = load_file(model / "model.safetensors")
    assert torch.equal(other.get_parameter("bert.pooler.dense.weight"), trunk["pooler.dense.weight"])
    state = torch.get_rng_state()
    prepared(data, model)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "distilbert"])
def test_dropout_is_what_the_recipe_says(data: dict[str, Any], tmp_path: Path, kind: str) -> None:
    model = write_model(tmp_path / "model", kind=kind)
    batch = {"input_ids": torch.randint(5, len(VOCABULARY), (4, 10))}

    def differs(network: nn.Module) -> bool:
        network.train()
        return not torch.equal(outputs_of(network, batch), outputs_of(network, batch))

    still, noisy = (prepared(data, model, **each).private.model for each in ({}, {"model__dropout": 0.5}))
    assert not differs(still)
    assert differs(noisy)
    assert {m.p for m in noisy.modules() if isinstance(m, nn.Dropout)} <= {0.5}
    said = {n: value for n, value in noisy.config.to_dict().items() if "dropout" in n or n.endswith("pdrop")}  # type: ignore[union-attr,operator]
    assert set(said.values()) == {0.5}  # some models read it there, without a module for it
    if kind != "bert":
        assert run(text_recipe(data, model, privacy__steps=1), out=tmp_path / "run").steps == 1


def test_tokens_are_the_library_s_own(model: Path) -> None:
    own, theirs = tokenizer(str(model)), transformers.AutoTokenizer.from_pretrained(model)
    texts = [text for text, _ in reviews(20)] + ["", "films, films", "unheard of " * 50]
    for columns in ([texts], [texts, texts[::-1]]):
        found = own(columns, 12)
        for place, row in enumerate(zip(*columns, strict=True)):
            alone = theirs(*([text] for text in row), truncation=True, max_length=12)
            assert {name: found[name][place] for name in own.padding} == {name: alone[name][0] for name in own.padding}


def test_a_text_without_tokens_has_one(data: dict[str, Any], model: Path) -> None:
    class Bare:
        model_max_length = 10**30
        pad_token_id, eos_token_id, padding_side, model_input_names = None, 7, "left", ("input_ids",)

        def num_special_tokens_to_add(self, pair: bool) -> int:
            return 0

        def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[1] * len(text) for text in texts]}

    bare = Tokenizer(Bare())
    assert bare.most is None
    assert (bare([["ab", ""]], 4), bare.left) == ({"input_ids": [[1, 1], [7]]}, True)
    Bare.eos_token_id = None  # type: ignore[assignment]
    with pytest.raises(InvalidValue, match="no token to pad with"):
        Tokenizer(Bare())


# Audits.


@pytest.mark.parametrize("peft", [pytest.param(None, marks=pytest.mark.slow), LORA], ids=["all", "LoRA"])
def test_a_run_is_audited(data: dict[str, Any], model: Path, tmp_path: Path, peft: dict[str, Any] | None) -> None:
    changes = {} if peft is None else {"peft": peft}
    run(text_recipe(data, model, privacy__steps=2, **changes), out=tmp_path / "run")
    subject = Subject.find(str(tmp_path / "run"))
    with pytest.raises(InvalidValue, match=r"--one-run needs canaries, and there are none for data\.text"):
        next(run_suite(subject, canaries=100))
    results = list(run_suite(subject))
    assert [result.kind for result in results] == ["ledger", "sampling", "sensitivity", "noise", "step"]
    assert all(result.passed for result in results)


# What is refused.


def corrupted(model: Path, folder: Path, file: str, content: bytes | None) -> Path:
    """A copy of the model with another file in it, or without that file."""
    folder.mkdir()
    for each in model.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_bytes(content)
    return folder


def config(model: Path, **changes: Any) -> bytes:
    return json.dumps(json.loads((model / "config.json").read_text()) | changes).encode()


BROKEN: dict[str, tuple[str, Any, str]] = {
    "cut weights": ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}", "cannot be read: "),
    "an unknown kind": ("config.json", {"model_type": "nonsense"}, "cannot be read: .*nonsense"),
    "code of its own": (
        "config.json",
        {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}},
        "cannot be read: ",
    ),
    "more layers than weights": ("config.json", {"num_hidden_layers": 3}, "its weights lack 16 tensors of the model"),
    "other widths": ("config.json", {"hidden_size": 18}, "its weights lack .* tensors|cannot be read"),
    "too small a vocabulary": ("config.json", {"vocab_size": 5}, "its tokenizer has 21 tokens, and the model knows 5"),
    "an enormous vocabulary": ("config.json", {"vocab_size": 10**12}, "would have more than 1,000,000,000 parameters"),
    "widths that are no numbers": ("config.json", {"hidden_size": "wide"}, "cannot be read: "),
    "no tokenizer": ("tokenizer.json", b"{}", "cannot be read: "),
}


def test_pickled_weights_are_named_with_what_to_do(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    bad = corrupted(model, tmp_path / "bad", "model.safetensors", None)
    payload.torch_saved(bad / "pytorch_model.bin")
    with pytest.raises(InvalidValue, match=r"in 'pytorch_model.bin', a format that can run code .*save_pretrained"):
        prepared(data, bad)


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_is_not_what_it_says_is_refused_in_a_line(
    data: dict[str, Any], model: Path, tmp_path: Path, name: str
) -> None:
    file, content, message = BROKEN[name]
    bad = corrupted(model, tmp_path / "bad", file, content if isinstance(content, bytes) else config(model, **content))
    (bad / "own.py").write_text(
        f"open({str(tmp_path / payload.MARKER)!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    with pytest.raises(InvalidValue, match=message) as refused:
        prepared(data, bad)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / payload.MARKER).exists()


@pytest.mark.parametrize(
    ("length", "message"),
    [(100, "data.max_length = 100 is more than the 24 tokens"), (2, "data.max_length = 2 leaves no room for a text")],
)
def test_a_length_that_the_model_cannot_read(data: dict[str, Any], model: Path, length: int, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        prepared(data | {"max_length": length}, model)


def test_a_model_of_the_hub_is_not_fetched_unless_it_is_asked_for(
    data: dict[str, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is one asked for that is not there: what is asked of the Hub's own library is looked at."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if options["local_files_only"]:
            raise LocalEntryNotFoundError("not here")
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub = {"name": "transformers", "hub": "somebody/tiny"}

    def tiny_from(source: dict[str, Any]) -> Recipe:
        given = text_recipe(data, model).model_dump()
        return Recipe.model_validate(given | {"model": source}, strict=False)

    with pytest.raises(
        InvalidValue, match=r"model.hub 'somebody/tiny' is not on this machine: fetch it with fetch = t"
    ):
        prepare(tiny_from(hub), CPU)
    prepare(tiny_from(hub | {"fetch": True, "revision": "v1"}), CPU)
    assert [(each["local_files_only"], each["revision"]) for each in (asked[0], asked[-1])] == [
        (True, None),
        (False, "v1"),
    ]
    assert not any(pattern.endswith((".bin", ".py", "*")) and pattern == "*" for pattern in asked[0]["allow_patterns"])


def test_the_library_says_nothing_by_itself(
    data: dict[str, Any], model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers.utils.logging.get_verbosity()
    prepared(data, model)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == before != logging.CRITICAL


def test_the_command_line_trains_texts(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    (tmp_path / "mine.toml").write_text(
        f'data = {{path = "{data["path"]}", test = "{data["test"]}", text = "text", target = "liked", '
        f"labels = {list(LABELS)}}}\n"
        f'model = {{kind = "transformers", path = "elsewhere"}}\noptimizer = {{kind = "sgd", lr = 0.1}}\n'
        "privacy = {noise_multiplier = 1, delta = 1e-3, batch_size = 20, steps = 2}\n"
    )
    arguments = ["train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run"), "--root", "/"]
    failed = CliRunner().invoke(app, arguments)
    assert failed.exit_code == 2
    assert "elsewhere is not a folder: name the one that save_pretrained has written" in failed.stderr
    done = CliRunner().invoke(app, [*arguments, "--set", f"model.path={model}", "--set", "data.max_length=20"])
    assert done.exit_code == 0, done.output
    assert "after 2 of 2 steps" in done.stdout
