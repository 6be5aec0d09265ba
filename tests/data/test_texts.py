"""Tables of texts: what a row becomes, however the file is written; padding; and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from hoarfrost.columns import Columns
from hoarfrost.data import Splits, Texts, batches, from_table, from_texts, json_lines
from hoarfrost.errors import InvalidValue
from hoarfrost.train import fingerprint

ROWS = [("a film", "good"), ("", "bad"), ('the "best" plot', "good"), ("dull, dull", "bad"), ("so, so", "unknown")]
KEPT = [(text, ["bad", "good"].index(label)) for text, label in ROWS if label != "unknown"]
RULES: dict[str, Any] = {"target": "mood", "labels": ["bad", "good"], "text": ["said"]}


class Letters:
    """A token for each letter between two marks; what belongs to the second text is marked with a 1."""

    def __init__(self, *, left: bool = False) -> None:
        self.padding, self.left = {"input_ids": 0, "token_type_ids": 9}, left
        self.most = None

    def __call__(self, texts: Sequence[Sequence[str]], longest: int) -> Mapping[str, Sequence[Sequence[int]]]:
        found: dict[str, list[list[int]]] = {"input_ids": [], "token_type_ids": []}
        for row in zip(*texts, strict=True):
            tokens, types = [1], [0]
            for number, text in enumerate(row):
                tokens += [*map(ord, text), 2]
                types += [number] * (len(text) + 1)
            found["input_ids"].append(tokens[:longest])
            found["token_type_ids"].append(types[:longest])
        return found


def as_separated(separator: str) -> Callable[[Path, list[tuple[str, str]]], None]:
    def write(file: Path, rows: list[tuple[str, str]]) -> None:
        quoted = [(text if separator == "\t" else '"' + text.replace('"', '""') + '"', label) for text, label in rows]
        lines = [separator.join(("said", "mood")), *map(separator.join, quoted)]
        file.write_text("\n".join(lines) + "\n", "utf-8")

    return write


def as_json_lines(file: Path, rows: list[tuple[str, str]]) -> None:
    text = "".join(json.dumps({"said": text or None, "mood": label, "n": [1]}) + "\n" for text, label in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())


def as_parquet(file: Path, rows: list[tuple[str, str]]) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    said, mood = zip(*rows, strict=True)
    parquet.write_table(arrow.table({"said": said, "mood": mood}), file)


def as_folder(file: Path, rows: list[tuple[str, str]]) -> None:
    """As `datasets` writes it, of several files."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    said, mood = zip(*rows, strict=True)
    datasets.Dataset.from_dict({"said": said, "mood": mood}).save_to_disk(file, num_shards=2)


WAYS: dict[str, Callable[[Path, list[tuple[str, str]]], None]] = {
    "tsv": as_separated("\t"), "csv": as_separated(","), "jsonl": as_json_lines, "jsonl.gz": as_json_lines,
    "parquet": as_parquet, "": as_folder,
}  # fmt: skip


def loaded(folder: Path, rows: list[tuple[str, str]] = ROWS, *, longest: int = 50, **changes: Any) -> Splits:
    """Texts in a .tsv file, tested on those of which it knows the label."""
    as_separated("\t")(folder / "train.tsv", rows)
    as_separated("\t")(folder / "test.tsv", [row for row in ROWS if row[1] != "unknown"])
    return from_texts(
        folder / "train.tsv", Columns(**RULES | changes), Letters(), max_length=longest, test=folder / "test.tsv"
    )


def texts_of(part: Any) -> list[tuple[str, int]]:
    """What the tokens came from."""
    assert isinstance(part, Texts)
    return [("".join(map(chr, inputs["input_ids"].tolist()[1:-1])), int(target)) for inputs, target in part]


@pytest.mark.parametrize("ending", WAYS)
def test_every_way_to_write_a_table_gives_the_same_texts(tmp_path: Path, ending: str) -> None:
    train, test = (tmp_path / (f"{name}.{ending}" if ending else name) for name in ("train", "test"))
    WAYS[ending](train, ROWS)
    WAYS[ending](test, ROWS[:2])
    splits = from_texts(train, Columns(**RULES), Letters(), max_length=50, test=test)
    assert texts_of(splits.train) == KEPT
    assert texts_of(splits.test) == KEPT[:2]
    assert splits.classes == 2


def test_a_row_more_changes_no_other_row(tmp_path: Path) -> None:
    before = texts_of(loaded(tmp_path).train)
    for place in range(len(before) + 1):
        for row in (("x" * 500, "good"), ("x", "unknown"), ("", "")):
            rows = [(text, ["bad", "good"][label]) for text, label in before]
            after = texts_of(loaded(tmp_path, [*rows[:place], row, *rows[place:]]).train)
            assert len(after) - len(before) == (row[1] == "good")
            del after[place : place + len(after) - len(before)]
            assert after == before


def test_pairs_and_cuts(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("one,two,same\nab,cd,1\nabcdefgh,i,0\n")
    (tmp_path / "test.csv").write_text("one,two,same\na,b,1\n")
    rules = Columns(target="same", classes=2, text=["one", "two"])
    splits = from_texts(tmp_path / "pairs.csv", rules, Letters(), max_length=7, test=tmp_path / "test.csv")
    (first, _), (second, _) = splits.train
    assert [each.tolist() for each in first.values()] == [[1, 97, 98, 2, 99, 100, 2], [0, 0, 0, 0, 1, 1, 1]]
    assert len(second["input_ids"]) == 7
    assert splits.shape == (7,)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padding_is_what_an_obvious_version_gives(left: bool) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    flat = torch.tensor([token for row in rows for token in row])
    texts = Texts(
        {"input_ids": flat, "token_type_ids": flat * 0}, torch.tensor([3, 4, 6]), torch.arange(3),
        {"input_ids": 7, "token_type_ids": 9}, left,
    )  # fmt: skip
    assert texts.lengths.tolist() == [3, 1, 2]
    (batch, targets), (last, _) = batches(texts, 2)
    holes = [[], [7] * 2]
    want = [hole + row if left else row + hole for row, hole in zip(rows, holes, strict=False)]
    assert batch["input_ids"].tolist() == want
    assert batch["token_type_ids"].tolist() == [[9 if token == 7 else 0 for token in row] for row in want]
    assert batch["attention_mask"].tolist() == [[int(token != 7) for token in row] for row in want]
    assert targets.tolist() == [0, 1]
    assert last["input_ids"].tolist() == [[5, 6]]  # as long as its own texts
    with pytest.raises(IndexError):
        texts[3]


def test_a_number_is_learned_from_texts(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("said\tstars\nx\t5\ny\t1\nz\tmany\n")
    (tmp_path / "b.tsv").write_text("said\tstars\nx\t3\n")
    rules = Columns(target="stars", target_bounds=(1, 5), text=["said"])
    splits = from_texts(tmp_path / "a.tsv", rules, Letters(), max_length=5, test=tmp_path / "b.tsv")
    assert isinstance(splits.train, Texts)
    assert splits.train.targets.tolist() == [1.0, -1.0]
    assert (splits.unit, splits.classes) == (2.0, None)


def test_people_bring_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"said": "x", "mood": "good", "who": who}) + "\n" for who in (7, "eve", 7.0))
    )
    (tmp_path / "b.jsonl").write_text('{"said": "x", "mood": "good"}\n')
    rules = Columns(**RULES, person="who")
    splits = from_texts(tmp_path / "a.jsonl", rules, Letters(), max_length=5, test=tmp_path / "b.jsonl")
    assert splits.people is not None
    assert splits.people.tolist() == [0, 1, 0]


def test_the_fingerprint_is_of_the_texts_and_not_of_the_tokens(tmp_path: Path) -> None:
    def digest(**options: Any) -> bytes:
        return fingerprint.digest(loaded(tmp_path, **options).train)

    assert digest() == digest(longest=3)
    assert digest() != digest(rows=[*ROWS, ("more", "good")])
    assert digest() != digest(rows=[("a fil", "good"), *ROWS[1:]])
    assert digest() != digest(rows=[("a film", "bad"), *ROWS[1:]])
    assert digest(rows=[("a;0;b", "bad")]) != digest(rows=[("a", "bad"), ("b", "bad")])
    assert digest(rows=[("ab", "bad"), ("c", "bad")]) != digest(rows=[("a", "bad"), ("bc", "bad")])


def test_tables_of_numbers_may_be_written_in_the_same_ways(tmp_path: Path) -> None:
    rows = [{"age": 5, "sold": "no"}, {"sold": True, "age": None}, {"sold": "yes"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "b.tsv").write_text("age\tsold\n10\tyes\n")
    rules = Columns(target="sold", labels=["no", "yes"], bounds={"age": (0, 10)})
    splits = from_table(tmp_path / "a.jsonl", rules, test=tmp_path / "b.tsv")
    assert [each.tolist() for each in splits.train[:]] == [[[0.0], [0.0]], [0, 1]]


def test_batches_of_json_lines_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_json_lines(tmp_path / "train.jsonl", ROWS * 5)
    as_json_lines(tmp_path / "test.jsonl", ROWS[:1])

    def read() -> list[tuple[str, int]]:
        return texts_of(
            from_texts(
                tmp_path / "train.jsonl", Columns(**RULES), Letters(), max_length=50, test=tmp_path / "test.jsonl"
            ).train
        )

    whole = read()
    assert whole == KEPT * 5
    for limit in ("ROWS", "MAX_TEXT"):
        monkeypatch.setattr(json_lines, limit, 3)
        assert read() == whole


# What is refused.


SECRET = "31337"
BAD: dict[str, tuple[str, bytes, str]] = {
    "no such column": ("a.tsv", b"sentence\tmood\nx\tgood\n", "text names 'said', which it has no column for"),
    "no target": ("a.tsv", b"said\tmod\nx\tgood\n", "target names 'mood', .* did you mean 'mod'"),
    "not a header": ("a.tsv", f"{SECRET}\t1\n".encode() * 2, "none of the columns that the rules name"),
    "other labels": ("a.tsv", f"said\tmood\n{SECRET}\t1\n".encode(), "no row to train on has a target that the rules"),
    "not UTF-8": ("a.tsv", b"said\tmood\ncaf\xe9\tgood\n", "it is not text in UTF-8"),
    "JSON not in UTF-8": ("a.jsonl", b'{"said": "caf\xe9", "mood": "good"}\n', "it is not text in UTF-8"),
    "a list": (
        "a.jsonl",
        b'{"said": "x", "mood": "good"}\n["31337"]\n',
        "a line is a list: it should be a JSON object",
    ),
    "a number": ("a.jsonl", b"31337\n", "a line is a number: it should be a JSON object"),
    "null": ("a.jsonl", b"null\n", "a line is null: it should be a JSON object"),
    "no JSON": ("a.jsonl", b'{"said": "31337", mood: good}\n', "a line is not JSON"),
    "a whole JSON file": ("a.jsonl", b'[\n{"said": "31337"}\n]\n', "a line is not JSON"),
    "too deep": ("a.jsonl", b"[" * 100_000 + b"\n", "a line is not JSON"),
    "a number without an end": ("a.jsonl", b'{"said": ' + b"1" * 10_000 + b"}\n", "a line is not JSON"),
    "a list in a cell": ("a.jsonl", b'{"said": ["31337"], "mood": "good"}\n', "its column 'said' holds a list"),
    "empty": ("a.jsonl", b"\n \n", "it is empty"),
    "long line": ("a.jsonl", b'{"said": "' + b"x" * (1 << 20) + b'"}\n', "a line of more than 1 MiB"),
    "ragged": ("a.tsv", f"said\tmood\n{SECRET}\n".encode(), "a row has more or fewer fields"),
    "another ending": ("a.txt", b"said\tmood\nx\tgood\n", r"neither .csv, .* nor .parquet"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_without_texts_is_refused_without_telling_what_it_holds(tmp_path: Path, name: str) -> None:
    file, content, message = BAD[name]
    (tmp_path / file).write_bytes(content)
    as_separated("\t")(tmp_path / "test.tsv", ROWS[:2])
    with pytest.raises(InvalidValue, match=message) as refused:
        from_texts(tmp_path / file, Columns(**RULES), Letters(), max_length=5, test=tmp_path / "test.tsv")
    assert file in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_label_that_only_the_test_file_has_is_refused(tmp_path: Path) -> None:
    as_separated("\t")(tmp_path / "train.tsv", ROWS)
    as_separated("\t")(tmp_path / "test.tsv", [*ROWS, ("x", "")])
    with pytest.raises(InvalidValue, match=r"test.tsv: a row to test on has the target 'unknown', .* recipe's labels"):
        from_texts(
            tmp_path / "train.tsv", Columns(**RULES), Letters(), max_length=5, test=tmp_path / "test.tsv"
        )  # fmt: skip


def test_what_a_tokenizer_says_of_a_text_is_not_told(tmp_path: Path) -> None:
    class Choosy(Letters):
        def __call__(self, texts: Sequence[Sequence[str]], longest: int) -> Mapping[str, Sequence[Sequence[int]]]:
            raise ValueError(f"I cannot read {texts}")

    as_separated("\t")(tmp_path / "train.tsv", [(SECRET, "good")])
    with pytest.raises(InvalidValue, match=r"its tokenizer cannot read one of the texts \(ValueError\)") as refused:
        from_texts(tmp_path / "train.tsv", Columns(**RULES), Choosy(), max_length=5, test_share=0.5)
    assert SECRET not in str(refused.value)


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"said": "x\\ud800y", "mood": "good"}\n')
    as_separated("\t")(tmp_path / "test.tsv", ROWS[:2])
    splits = from_texts(tmp_path / "a.jsonl", Columns(**RULES), Letters(), max_length=9, test=tmp_path / "test.tsv")
    assert texts_of(splits.train) == [("x?y", 1)]


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no data set": (lambda folder: None, "a folder without a state.json"),
    "several": (
        lambda folder: (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}'),
        "holds several data sets: name one of the folders in it, such as train, test",
    ),
    "damaged": (lambda folder: (folder / "state.json").write_text("{"), "its state.json is damaged"),
    "no list": (lambda folder: (folder / "state.json").write_text('{"_data_files": 3}'), "its state.json is damaged"),
    "no files": (lambda folder: (folder / "state.json").write_text('{"_data_files": []}'), "lists no files"),
    "a file elsewhere": (lambda folder: state(folder, "../x.arrow"), "which is no .arrow file in the same folder"),
    "no file": (lambda folder: state(folder, "x.arrow"), "no data file at"),
    "no Arrow": (lambda folder: state(folder, "x.arrow", b"31337" * 100), "damaged, or it is not a folder that"),
    "empty file": (lambda folder: state(folder, "x.arrow", b""), "damaged, or it is not a folder that"),
}


def state(folder: Path, name: str, content: bytes | None = None) -> None:
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    if content is not None:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path, name: str) -> None:
    write, message = FOLDERS[name]
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine")
    as_separated("\t")(tmp_path / "test.tsv", ROWS[:2])
    with pytest.raises(InvalidValue, match=message) as refused:
        from_texts(tmp_path / "mine", Columns(**RULES), Letters(), max_length=5, test=tmp_path / "test.tsv")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("place", range(0, 900, 60))
def test_an_arrow_file_with_a_wrong_byte_is_read_or_refused(tmp_path: Path, place: int) -> None:
    as_folder(tmp_path / "mine", ROWS * 4)
    as_separated("\t")(tmp_path / "test.tsv", ROWS[:2])
    file = sorted((tmp_path / "mine").glob("*.arrow"))[0]
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 0xFF
    file.write_bytes(content)
    with suppress(InvalidValue):  # nothing else, and no crash
        from_texts(tmp_path / "mine", Columns(**RULES), Letters(), max_length=5, test=tmp_path / "test.tsv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": ["said", "said"]}, "one column, or two different ones"),
        ({"text": ["a", "b", "c"]}, "one column, or two different ones"),
        ({"bounds": {"age": (0, 1)}}, "bounds is for columns of numbers"),
        ({"drop": ["age"]}, "drop is for columns of numbers"),
        ({"text": ["mood"]}, "cannot be the target, too"),
        ({"person": "said"}, "cannot be the person, too"),
    ],
)
def test_rules_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Columns(**RULES | changes)


def test_each_kind_has_its_own_function(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"text is for hoarfrost\.data\.from_texts"):
        from_table(tmp_path / "a.csv", Columns(**RULES), test_share=0.5)
    with pytest.raises(InvalidValue, match="text is missing"):
        from_texts(tmp_path / "a.csv", Columns(target="y", classes=2), Letters(), max_length=5, test_share=0.5)
    as_separated("\t")(tmp_path / "a.tsv", ROWS)
    with pytest.raises(InvalidValue, match=r"separator is for \.csv files"):
        from_texts(tmp_path / "a.tsv", Columns(**RULES), Letters(), max_length=5, test_share=0.5, separator=",")
