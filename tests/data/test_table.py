"""Tables: what rows become, which rows are tested on, what is refused, and that no row depends on another."""

import gzip
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hoarfrost.columns import Columns
from hoarfrost.data import Splits, csv_files, from_table, parquet_files, reading
from hoarfrost.errors import InvalidValue, MissingExtra

RULES: dict[str, Any] = {
    "target": "sold",
    "labels": ["no", "yes"],
    "bounds": {"age": (0, 20), "price": (-1, 1)},
    "categories": {"hue": ["red", "blue"]},
}
HEADER = "age,hue,price,sold"
ROWS = ["5,red,0.5,no", "20,blue,-1,yes", "10,green,0,no"]


def written(folder: Path, rows: list[str], header: str = HEADER, name: str = "cars.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return path


def loaded(path: Path, **changes: Any) -> Splits:
    """From a table with a copy of it as the test set, unless it is said otherwise."""
    options = {
        key: changes.pop(key)
        for key in ("test", "test_share", "split_seed", "separator", "standardize")
        if key in changes
    }
    if not options.keys() & {"test", "test_share"}:
        options["test"] = path.with_name(f"copy-{path.name}")
        if path.exists():
            shutil.copy(path, options["test"])
    return from_table(path, Columns(**RULES | changes), **options)


def tensors(splits: Splits) -> tuple[list[Any], list[Any]]:
    x, y = splits.train.tensors
    return x.tolist(), y.tolist()


# One row, and what it becomes: age in [0, 20], red, blue, price in [-1, 1]; the class, or no example.
CELLS = {
    "inside": ("5,red,0.5,no", [-0.5, 1, 0, 0.5], 0),
    "on the bounds": ("20,blue,-1,yes", [1, 0, 1, -1], 1),
    "beyond the bounds": ("1000,red,-1e300,no", [1, 1, 0, -1], 0),
    "missing number": (",red,0.5,no", [0, 1, 0, 0.5], 0),
    "unreadable number": ("five,red,?,no", [0, 1, 0, 0], 0),
    "not a finite number": ("nan,red,inf,no", [0, 1, 0, 0], 0),
    "a number as Python writes it": ("1_0,red,0.5,no", [0, 1, 0, 0.5], 0),
    "space around": (" 5 , red ,0.5, no ", [-0.5, 1, 0, 0.5], 0),
    "quoted": ('"5","red","0.5","no"', [-0.5, 1, 0, 0.5], 0),
    "true and false": ("5,red,true,no", [-0.5, 1, 0, 1], 0),
    "a category that is not listed": ("5,green,0.5,no", [-0.5, 0, 0, 0.5], 0),
    "a missing category": ("5,,0.5,no", [-0.5, 0, 0, 0.5], 0),
    "another case is another category": ("5,Red,0.5,no", [-0.5, 0, 0, 0.5], 0),
    "missing target": ("5,red,0.5,", None, None),
    "target that is not listed": ("5,red,0.5,perhaps", None, None),
}


@pytest.mark.parametrize("name", CELLS)
def test_what_a_row_becomes(tmp_path: Path, name: str) -> None:
    row, numbers, label = CELLS[name]
    splits = loaded(written(tmp_path, [*ROWS, row]))
    x, y = tensors(splits)
    if numbers is None:
        assert len(x) == len(ROWS)
    else:
        assert x[-1] == numbers
        assert (y[-1], splits.classes) == (label, 2)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("place", range(len(ROWS) + 1))
def test_a_row_more_changes_no_other_row(tmp_path: Path, name: str, place: int) -> None:
    """Whatever it holds, and wherever it is: add/remove neighbours stay neighbours."""
    x, y = tensors(loaded(written(tmp_path, ROWS)))
    row, numbers, label = CELLS[name]
    more = [*ROWS[:place], row, *ROWS[place:]]
    if numbers is not None:
        x.insert(place, numbers)
        y.insert(place, label)
    assert tensors(loaded(written(tmp_path, more), test=written(tmp_path, ROWS, name="test.csv"))) == (x, y)


def test_classes_are_written_as_numbers(tmp_path: Path) -> None:
    rows = ["5,red,0,0", "5,red,0,2", "5,blue,0,1.0", "5,red,0,3", "5,red,0,-1", "5,red,0,x"]
    splits = loaded(written(tmp_path, rows), labels=None, classes=3)
    assert (splits.classes, tensors(splits)[1]) == (3, [0, 2, 1])


def test_columns_and_drop_choose(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    assert loaded(path, drop=["hue", "price"]).shape == (1,)
    assert loaded(path, columns=["price", "hue"]).train.tensors[0].tolist()[0] == [1, 0, 0.5]  # in the file's order


def test_a_test_file_may_have_its_columns_in_another_order_and_more_of_them(tmp_path: Path) -> None:
    other = written(tmp_path, ["no,0.5,red,5,more"], "sold,price,hue,age,note", "test.csv")
    splits = loaded(written(tmp_path, ROWS), test=other)
    assert splits.test.tensors[0].tolist() == [[-0.5, 1, 0, 0.5]]


def test_a_test_file_has_all_columns(tmp_path: Path) -> None:
    other = written(tmp_path, ["no,0.5,red"], "sold,price,hue", "test.csv")
    with pytest.raises(InvalidValue, match=r"test.csv: .*'age', which it has no column for"):
        loaded(written(tmp_path, ROWS), test=other)


# Which rows are tested on.


def sides(path: Path, **options: Any) -> list[list[int]]:
    """The ages to train on and to test on."""
    splits = loaded(path, bounds={"age": (0, 10_000)}, columns=["age"], categories={}, **options)
    return [[round((age + 1) * 5000) for (age,) in part.tensors[0].tolist()] for part in (splits.train, splits.test)]


MANY = [f"{age},red,0,no" for age in range(5000)]


def test_the_split_does_not_depend_on_what_the_rows_hold(tmp_path: Path) -> None:
    train, test = sides(written(tmp_path, MANY), test_share=0.2)
    assert 850 < len(test) < 1150
    assert len(train) + len(test) == 5000
    # The same rows backwards: the same places are tested on, whatever is there.
    _, backwards = sides(written(tmp_path, MANY[::-1]), test_share=0.2)
    assert [4999 - age for age in backwards] == test


def test_a_row_at_the_end_moves_no_other_row(tmp_path: Path) -> None:
    before = sides(written(tmp_path, MANY), test_share=0.2)
    after = sides(written(tmp_path, [*MANY, "7000,blue,1,yes"]), test_share=0.2)
    assert sum(len(side) for side in after) == 5001
    assert all(longer[: len(side)] == side for longer, side in zip(after, before, strict=True))


def test_a_row_without_a_target_keeps_its_place(tmp_path: Path) -> None:
    train, test = sides(written(tmp_path, MANY), test_share=0.2)
    gone = [*MANY[:2000], "2000,red,0,", *MANY[2001:]]
    less = [[age for age in side if age != 2000] for side in (train, test)]
    assert sides(written(tmp_path, gone), test_share=0.2) == less
    assert sum(map(len, less)) == 4999


def test_the_seed_chooses_other_rows(tmp_path: Path) -> None:
    path = written(tmp_path, MANY)
    assert sides(path, test_share=0.2) == sides(path, test_share=0.2, split_seed=0)
    one, other = (set(sides(path, test_share=0.2, split_seed=seed)[1]) for seed in (0, 1))
    assert len(one & other) < 300  # 200 are expected


def test_batches_of_rows_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, MANY[:50])
    whole = sides(path, test_share=0.2)
    monkeypatch.setattr(csv_files, "ROWS", 7)
    assert sides(path, test_share=0.2) == whole
    monkeypatch.setattr(csv_files, "MAX_TEXT", 5)
    assert sides(path, test_share=0.2) == whole


# Files.


def to_parquet(path: Path, columns: dict[str, Any]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = path.with_suffix(".parquet")
    parquet.write_table(arrow.table(columns), file, row_group_size=2)
    return file


def assert_equal(one: Splits, other: Splits) -> None:
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert all(torch.equal(left, right) for left, right in zip(a.tensors, b.tensors, strict=True))
    assert (one.classes, one.standardize) == (other.classes, other.standardize)


@pytest.mark.parametrize("kind", ["plain", "dictionary", "text"])
def test_parquet_equals_csv(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    rows = [*ROWS, ",red,0.25,yes", "7,,-0.25,no", "7,red,,maybe", "3,blue,1,"]
    csv = written(tmp_path, rows)
    cells = [[cell or None for cell in row.split(",")] for row in rows]
    age, hue, price, sold = map(list, zip(*cells, strict=True))
    columns = {"sold": sold, "age": age, "hue": hue, "price": price}
    if kind != "text":
        columns["age"] = arrow.array([None if each is None else int(each) for each in age], arrow.int16())
        columns["price"] = arrow.array([None if each is None else float(each) for each in price], arrow.float32())
    if kind == "dictionary":
        columns["hue"] = arrow.array(hue).dictionary_encode()
    parquet = to_parquet(tmp_path / "cars", columns)
    assert_equal(loaded(parquet), loaded(csv))


def test_classes_of_parquet(tmp_path: Path) -> None:
    for values in ([0, 2, 1, None, 3], [0.0, 2.0, 1.0, float("nan"), 0.5]):
        path = to_parquet(tmp_path / "cars", {"age": [1.0] * 5, "sold": values})
        splits = loaded(path, labels=None, classes=3, bounds={"age": (0, 20)}, categories={})
        assert splits.train.tensors[1].tolist() == [0, 2, 1]


def test_true_and_false_of_parquet(tmp_path: Path) -> None:
    columns = {"age": [True, False], "hue": [True, None], "sold": [False, True]}
    path = to_parquet(tmp_path / "cars", columns)
    rules = {"bounds": {"age": (0, 1)}, "categories": {"hue": ["false", "true"]}, "labels": ["false", "true"]}
    assert tensors(loaded(path, **rules)) == ([[1, 0, 1], [-1, 0, 0]], [0, 1])


def test_a_zipped_table(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    zipped = tmp_path / "cars.csv.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert_equal(loaded(zipped), loaded(path))


@pytest.mark.parametrize("change", ["bom", "crlf", "empty lines", "no line end", "semicolons", "quotes"])
def test_ways_to_write_a_csv_file(tmp_path: Path, change: str) -> None:
    plain = "\n".join([HEADER, *ROWS]) + "\n"
    text = {
        "bom": "\ufeff" + plain,
        "crlf": plain.replace("\n", "\r\n"),
        "empty lines": plain.replace("\n", "\n\n"),
        "no line end": plain[:-1],
        "semicolons": plain.replace(",", ";"),
        "quotes": plain.replace("red", '"red"').replace("age", '"age"'),
    }[change]
    path = tmp_path / "other.csv"
    path.write_bytes(text.encode())
    assert_equal(loaded(path, separator=";" if change == "semicolons" else ","), loaded(written(tmp_path, ROWS)))


# What is refused.


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no rule": ({"bounds": {"age": (0, 1)}}, r"no public range for 'price': .* Give bounds .*scaling = \"private\""),
    "no rules": ({"bounds": {}, "categories": {}}, "no public range for 'age', 'hue', 'price': "),
    "no rule for the target": ({"labels": None}, "target needs one of classes = N .*labels.* and target_bounds"),
    "two rules for the target": ({"classes": 2}, "target needs one of"),
    "two rules": ({"bounds": {"hue": (0, 1)}}, "bounds and categories are both given for 'hue'"),
    "a rule for the target": ({"bounds": {"sold": (0, 1)}}, "target 'sold' is no column to learn from"),
    "unknown target": ({"target": "solt"}, "target names 'solt', which it has no column for; did you mean 'sold'"),
    "unknown bounds": ({"bounds": {"x": (0, 1)}}, "bounds names 'x', which it has no column for; its columns: 'age'"),
    "unknown drop": ({"drop": ["prices"]}, "drop names 'prices', .* did you mean 'price'"),
    "columns and drop": ({"columns": ["age"], "drop": ["hue"]}, "columns or drop is given, not both"),
    "nothing left": ({"drop": ["age", "hue", "price"]}, "no column is left to learn from"),
    "bounds upside down": ({"bounds": {"age": (2, 1)}}, "bounds of 'age' must be two numbers, the lower one first"),
    "infinite bounds": ({"bounds": {"age": (0, float("inf"))}}, "bounds of 'age' must be two numbers"),
    "no categories": ({"categories": {"hue": []}}, "categories of 'hue' must be a list of different texts"),
    "twice": ({"categories": {"hue": ["red", " red"]}}, "categories of 'hue' must be a list of different texts"),
    "no classes": ({"labels": None, "classes": 0}, "classes must be a whole number"),
    "separator": ({"separator": ";;"}, "separator is one character"),
    "wrong separator": ({"separator": ";"}, "none of the columns that the rules name: .* is the separator right"),
    "test and share": ({"test_share": 0.5, "test": "x.csv"}, "give either test or test_share"),
    "all to train": ({"test_share": 1e-9}, "no row to test on has a target that the rules allow"),
    "wrong labels": ({"labels": ["0", "1"]}, "no row to train on has a target that the rules allow"),
    "categories of the test": (
        {"categories": {"hue": ["x"]}},
        "in the test rows of the column 'hue' is one of its cat",
    ),
    "scaling without numbers": ({"columns": ["hue"], "standardize": True}, "no column has bounds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(InvalidValue, match=message):
        loaded(written(tmp_path, ROWS), **changes)


def test_the_file_to_train_on_is_not_tested_on(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    (tmp_path / "link.csv").symlink_to(path)
    for test in (path, tmp_path / "link.csv", tmp_path / "x" / ".." / "cars.csv"):
        with pytest.raises(InvalidValue, match="test is the file to train on"):
            loaded(path, test=test)


def test_no_number_in_the_test_rows_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, [row.replace(",0.5,", ",half,") for row in ROWS[:1]])
    with pytest.raises(InvalidValue, match="in the test rows of the column 'price' is a number"):
        loaded(path)
    good = written(tmp_path, ROWS, name="good.csv")
    assert len(loaded(path, test=good).train) == 1  # of training rows it is not said: it would be a release


def long_file(folder: Path) -> Path:
    return written(folder, ["1" * (csv_files.MAX_LINE + 1)])


def text(content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "bad.csv").write_bytes(content.encode("latin-1"))
        return folder / "bad.csv"

    return write


SECRET = "31337"
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (text(""), "it is empty"),
    "header only": (text(HEADER + "\n"), "it has a header and no rows"),
    "ragged": (text(f"{HEADER}\n{SECRET},red,1,no\n{SECRET},red\n"), "a row has more or fewer fields"),
    "NUL": (text(f"{HEADER}\n{SECRET},red\0,1,no\n"), "NUL bytes"),
    "latin-1": (text(f"{HEADER}\n{SECRET},caf\xe9,1,no\n"), "is not text in UTF-8"),
    "utf-16": (lambda folder: _utf16(folder), "UTF-8"),
    "huge field": (text(f'{HEADER}\n"{SECRET * 40_000}",red,1,no\n'), "not a CSV file: field larger"),
    "endless quote": (text(f'{HEADER}\n"{SECRET},red,1,no\n'), "not a CSV file"),
    "long line": (long_file, "a line of more than 1 MiB"),
    "no header": (text(f"{SECRET},{SECRET},,red\n" * 3), "it has none of the columns that the rules name"),
    "two columns of a name": (text("age,age,sold\n1,1,no\n"), "it has two columns 'age'"),
    "a column without a name": (text(",age,sold\n0,1,no\n"), "a column without a name"),
    "columns": (text(",".join(f"c{n}" for n in range(10_001))), "more than 10000 columns"),
}


def _utf16(folder: Path) -> Path:
    (folder / "bad.csv").write_bytes("\n".join([HEADER, *ROWS]).encode("utf-16"))
    return folder / "bad.csv"


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_table_is_refused_without_telling_what_it_holds(tmp_path: Path, name: str) -> None:
    write, message = BAD[name]
    path = write(tmp_path)
    with pytest.raises(InvalidValue, match=message) as refused:
        loaded(path)
    assert path.name in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(("\n".join([HEADER, *ROWS * 20_000])).encode()))
    monkeypatch.setattr(csv_files, "BOMB_SIZE", 1000)
    with pytest.raises(InvalidValue, match="unzips to far more"):
        loaded(path)


@pytest.mark.parametrize("part", [parquet_files, reading], ids=lambda part: part.__name__)
def test_a_table_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Any
) -> None:
    path = to_parquet(tmp_path / "cars", {"age": [1.0], "sold": ["no"]})
    monkeypatch.setattr(part, "free_memory", lambda: 10 if part is parquet_files else 3)
    with pytest.raises(InvalidValue, match="more memory than is free"):
        loaded(path, bounds={"age": (0, 1)}, categories={})


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cars.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'hoarfrost\[parquet\]'"):
        loaded(path)


def test_parquet_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    path = to_parquet(tmp_path / "cars", {"age": [[1.0], [2.0]], "sold": ["no", "yes"]})
    with pytest.raises(InvalidValue, match="its column 'age' holds 'list<element: double>'"):
        loaded(path, bounds={"age": (0, 1)}, categories={})


def test_damaged_parquet_files_are_refused_without_telling_more(tmp_path: Path) -> None:
    path = to_parquet(tmp_path / "cars", {"age": np.arange(1000.0), "sold": ["no", "yes"] * 500})
    whole = path.read_bytes()
    rules: dict[str, Any] = {"bounds": {"age": (0, 1)}, "categories": {}}
    assert len(loaded(path, **rules).train) == 1000
    for content in (b"", b"PAR1", whole[:-1], whole[:10] + bytes(200) + whole[210:], b"x" * 1000, whole[4:]):
        path.write_bytes(content)
        with pytest.raises(InvalidValue) as refused:
            loaded(path, **rules)
        assert str(refused.value).endswith("cars.parquet: it is damaged, or it is not a Parquet file")


def test_real_targets_are_scaled_by_their_bounds(tmp_path: Path) -> None:
    rows = [f"1,red,0,{target}" for target in ("3", "8", "5.5", "100", "", "x")]
    targets: Tensor = loaded(written(tmp_path, rows), labels=None, target_bounds=(3, 8)).train.tensors[1]
    assert targets.tolist() == [-1.0, 1.0, 0.0, 1.0]
    assert targets.dtype == torch.float32


# Whose the rows are.

OWNED = "who,age,hue,price,sold"


def owned(folder: Path, ids: list[str], name: str = "cars.csv") -> Path:
    rows = [f"{id},{number % 21},red,0.5,{'yes' if number % 2 else 'no'}" for number, id in enumerate(ids)]
    return written(folder, rows, OWNED, name)


def test_a_table_says_whose_its_rows_are(tmp_path: Path) -> None:
    splits = loaded(owned(tmp_path, ["ann", " bob ", "7", "7.0", "bob", "ann"]), person="who")
    assert splits.people is not None
    assert splits.people.tolist() == [0, 1, 2, 2, 1, 0]
    assert splits.shape == (4,)  # the id is not learned from
    assert loaded(owned(tmp_path, ["ann", "bob"]), drop=["who"]).people is None


def test_rows_that_are_left_out_are_nobodys(tmp_path: Path) -> None:
    rows = ["ann,5,red,0.5,perhaps", "bob,5,red,0.5,no", "ann,5,red,0.5,yes", "eve,5,red,0.5,"]
    splits = loaded(written(tmp_path, rows, OWNED), person="who")
    assert splits.people is not None
    assert splits.people.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("missing", ["", "  ", "NaN", "None"])
def test_a_row_without_an_id_is_refused(tmp_path: Path, missing: str, kind: str) -> None:
    path = owned(tmp_path, ["ann", missing, "ann"])
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        columns = {
            "who": ["ann", missing.strip() or None, "ann"], "age": [1.0, 2.0, 3.0], "hue": ["red"] * 3,
            "price": [0.5] * 3, "sold": ["yes", "no", "yes"],
        }  # fmt: skip
        path = tmp_path / "cars.parquet"
        parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(InvalidValue, match="a row has no id in the column 'who'") as refusal:
        loaded(path, person="who")
    assert "ann" not in str(refusal.value)


def test_people_are_tested_on_with_all_their_rows_or_not_at_all(tmp_path: Path) -> None:
    ids = [f"person {number * number % 101}" for number in range(600)]
    path = owned(tmp_path, ids)
    splits = loaded(path, person="who", test_share=0.3)
    assert splits.people is not None
    tested = reading.people_to_test(ids, 0.3, 0)
    kept = [id for id, test in zip(ids, tested, strict=True) if not test]
    assert len(splits.train) == len(kept) == len(splits.people)
    assert len(set(kept)) == len(splits.people.unique())
    assert set(kept).isdisjoint(id for id, test in zip(ids, tested, strict=True) if test)
    assert 0.15 < 1 - len(set(kept)) / len(set(ids)) < 0.45
    # Somebody else's rows move nobody to the other side.
    fewer = [id for id in ids if id != kept[0]]
    assert [*reading.people_to_test(fewer, 0.3, 0)] == [t for id, t in zip(ids, tested, strict=True) if id != kept[0]]
    assert reading.people_to_test(ids, 0.3, 1).tolist() != tested.tolist()


def test_a_test_file_need_not_say_whose_its_rows_are(tmp_path: Path) -> None:
    path, test = owned(tmp_path, ["ann", "bob", "ann"]), written(tmp_path, ROWS, name="test.csv")
    splits = loaded(path, person="who", test=test)
    assert (len(splits.train), len(splits.test)) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"person": "whom"}, "person names 'whom', which it has no column for; did you mean 'who'?"),
        ({"person": "sold"}, "person 'sold' is no column to learn from, nor the target"),
        ({"person": "age"}, "person 'age' is no column to learn from, nor the target"),
        ({"person": "who", "columns": ["who", "age", "hue", "price"]}, "take it out of columns"),
    ],
)
def test_the_column_of_ids_is_no_other(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        loaded(owned(tmp_path, ["ann", "bob"]), **changes)
    assert message in str(refusal.value)
