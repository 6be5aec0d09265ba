"""Data sets by name, from files, and augmented: deterministic, checked, and never unpickled."""

import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import TensorDataset

from hoarfrost import data
from hoarfrost.errors import InvalidValue, MissingExtra


def tensors() -> dict[str, Tensor]:
    return {
        "x_train": torch.rand(6, 1, 4, 4),
        "y_train": torch.tensor([0, 1, 2, 0, 1, 2]),
        "x_test": torch.rand(3, 1, 4, 4),
        "y_test": torch.tensor([2, 1, 0]),
    }


def saved(path: Path, tensors: dict[str, Tensor]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})
    else:
        save_file(tensors, path)
    return path


def test_digits_are_1500_to_train_on_and_297_others_to_test_on() -> None:
    splits = data.load("digits")
    x, _ = splits.train.tensors
    assert (len(splits.train), len(splits.test), splits.shape, splits.classes) == (1500, 297, (1, 8, 8), 10)
    assert x.dtype == torch.float32
    assert (x.min(), x.max()) == (0, 1)
    everything = torch.cat([x, splits.test.tensors[0]]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797


def test_digits_are_split_the_same_way_for_ever() -> None:
    labels = data.load("digits").test.tensors[1]
    assert labels[:12].tolist() == [2, 2, 9, 8, 8, 3, 6, 0, 4, 4, 7, 6]
    assert labels.bincount().min() >= 20  # every digit is there to be tested


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'hoarfrost\[data\]'"):
        data.load("digits")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="no data set named 'imagenet'; available: digits, mnist, "):
        data.load("imagenet")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_gives_back_what_was_saved(tmp_path: Path, suffix: str) -> None:
    given = tensors()
    splits = data.from_file(saved(tmp_path / f"mine{suffix}", given))
    assert torch.equal(splits.train.tensors[0], given["x_train"])
    assert torch.equal(splits.test.tensors[1], given["y_test"])
    assert splits.classes == 3


def test_pixels_are_scaled_and_token_ids_stay_whole(tmp_path: Path) -> None:
    pixels = tensors() | {"x_train": torch.full((6, 2), 255, dtype=torch.uint8), "x_test": torch.zeros(3, 2)}
    assert data.from_file(saved(tmp_path / "pixels.npz", pixels)).train.tensors[0].unique().tolist() == [1.0]
    tokens = tensors() | {"x_train": torch.ones(6, 2, dtype=torch.int32), "x_test": torch.ones(3, 2, dtype=torch.int32)}
    assert data.from_file(saved(tmp_path / "tokens.npz", tokens)).train.tensors[0].dtype == torch.int64


BAD: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing part": ({"y_test": None}, "does not contain y_test; it contains x_test, x_train, y_train"),
    "lengths": ({"y_train": torch.zeros(5, dtype=torch.long)}, "x_train and y_train differ in length"),
    "no examples": ({"x_test": torch.zeros(0, 1, 4, 4)}, "x_test is empty"),
    "labels not whole": ({"y_train": torch.zeros(6)}, "y_train must hold integers"),
    "labels one-hot": ({"y_train": torch.zeros(6, 3, dtype=torch.long)}, "y_train must have one dimension"),
    "labels negative": ({"y_test": torch.tensor([0, -1, 1])}, "classes are counted from 0"),
    "shapes": ({"x_test": torch.zeros(3, 1, 5, 5)}, r"shape \(1, 4, 4\), test examples \(1, 5, 5\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_together_are_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, message = BAD[case]
    given = {name: value for name, value in (tensors() | changes).items() if value is not None}
    path = saved(tmp_path / "bad.npz", given)
    with pytest.raises(InvalidValue, match=message) as caught:
        data.from_file(path)
    assert str(path) in str(caught.value)


def test_a_label_beyond_the_stated_classes_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.safetensors", tensors())
    assert data.from_file(path, classes=5).classes == 5
    with pytest.raises(InvalidValue, match=r"y_train holds a label outside of 0 to 1$"):
        data.from_file(path, classes=2)


def test_fractions_are_the_targets_of_a_regression(tmp_path: Path) -> None:
    given = tensors() | {"y_train": torch.randn(6, dtype=torch.float64), "y_test": torch.randn(3).half()}
    splits = data.from_file(saved(tmp_path / "mine.npz", given))
    assert (splits.classes, splits.outputs) == (None, 1)
    assert torch.equal(splits.train.tensors[1], given["y_train"].float())
    assert {part.tensors[1].dtype for part in (splits.train, splits.test)} == {torch.float32}
    assert splits.scaled([0.5], [2.0]).classes is None
    assert data.from_file(saved(tmp_path / "mine.npz", tensors())).outputs == 3


def test_integers_are_real_numbers_where_that_is_said(tmp_path: Path) -> None:
    given = tensors() | {"y_train": torch.tensor([-5, 3_000_000, 0, 1, 2, 3]), "y_test": torch.tensor([0.5, 1.0, 2.0])}
    splits = data.from_file(saved(tmp_path / "mine.safetensors", given), real_targets=True)
    assert splits.classes is None
    assert splits.train.tensors[1].tolist() == [-5.0, 3e6, 0.0, 1.0, 2.0, 3.0]


BAD_TARGETS: dict[str, tuple[dict[str, Tensor], str]] = {
    "NaN": ({"y_train": torch.tensor([1.0, torch.nan, 0, 0, 0, 0])}, "y_train holds a target that is not a finite"),
    "infinite": ({"y_test": torch.tensor([1.0, torch.inf, 0])}, "y_test holds a target that is not a finite"),
    "beyond float32": ({"y_test": torch.tensor([1.0, 1e300, 0], dtype=torch.float64)}, "y_test holds a target that is"),
    "rows": ({"y_train": torch.zeros(6, 1)}, r"y_train must have one dimension \(a number for each example\)"),
    "lengths": ({"y_train": torch.zeros(5)}, "x_train and y_train differ in length; give one target for each"),
    "test labels": (
        {"y_test": torch.tensor([0, 1, 2])},
        "y_train must hold integers .* as y_test does, or y_test real",
    ),
    "train labels": ({"y_train": torch.arange(6)}, "y_test must hold integers .* as y_train does, or y_train real"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_targets_that_cannot_be_learned_are_refused_without_values(tmp_path: Path, case: str) -> None:
    changes, message = BAD_TARGETS[case]
    good = tensors() | {"y_train": torch.randn(6), "y_test": torch.randn(3)}
    path = saved(tmp_path / "bad.npz", good | changes)
    with pytest.raises(InvalidValue, match=message) as caught:
        data.from_file(path)
    assert not re.search("nan|inf$|1e|[56]", str(caught.value).removeprefix(str(path)))


def test_real_numbers_have_no_classes() -> None:
    x, y = torch.zeros(4, 2), torch.randn(4)
    with pytest.raises(
        InvalidValue, match="classes is for integer labels, and y_train and y_test are real numbers: leave"
    ):
        data.Splits.of(x, y, x, y, classes=3)


# What is wrong with 137 examples, of which one has a label or a value that nobody else has.
TELLING: dict[str, dict[str, Tensor]] = {
    "negative label": {"y_train": torch.tensor([-4242] + [0] * 136)},
    "label beyond the classes": {"y_train": torch.tensor([4242] + [0] * 136)},
    "enormous label": {"y_train": torch.tensor([4242 << 40] + [0] * 136)},
    "negative test label": {"y_test": torch.tensor([-4242, 0, 0])},
    "one label too few": {"y_train": torch.zeros(136, dtype=torch.long)},
    "labels in rows": {"y_train": torch.zeros(137, 2, dtype=torch.long)},
    "labels that are fractions": {"y_train": torch.full((137,), 4242.5)},
    "fractions where classes are stated": {"y_train": torch.full((137,), 4242.5), "y_test": torch.zeros(3)},
    "examples of another shape": {"x_test": torch.full((3, 3), 4242.5)},
}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("case", TELLING)
def test_a_message_tells_no_value_and_not_how_many_examples_there_are(tmp_path: Path, case: str, suffix: str) -> None:
    good = {"x_train": torch.zeros(137, 2), "y_train": torch.zeros(137, dtype=torch.long)}
    good |= {"x_test": torch.zeros(3, 2), "y_test": torch.zeros(3, dtype=torch.long)}
    path = saved(tmp_path / f"mine{suffix}", good | TELLING[case])
    with pytest.raises(InvalidValue) as caught:
        data.from_file(path, classes=7)
    message = str(caught.value).removeprefix(str(path))
    assert re.search("[xy]_train|[xy]_test|training examples", message)  # it says where to look
    assert not re.search("42|137|136", message)


def test_labels_of_any_integer_type_are_read(tmp_path: Path) -> None:
    for dtype in (np.uint8, np.int8, np.uint16, np.int32, np.uint64):
        y = np.array([0, 1, 2], dtype)
        np.savez(tmp_path / "mine.npz", x_train=np.zeros((3, 2)), y_train=y, x_test=np.zeros((3, 2)), y_test=y)
        splits = data.from_file(tmp_path / "mine.npz")
        assert splits.train.tensors[1].tolist() == [0, 1, 2]


def test_compressed_and_column_by_column_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    x = np.random.RandomState(0).rand(50, 300, 7)  # more than is read in one go
    y = np.arange(50)
    np.savez_compressed(tmp_path / "mine.npz", x_train=np.asfortranarray(x), y_train=y, x_test=x[:9], y_test=y[:9])
    splits = data.from_file(tmp_path / "mine.npz")
    assert torch.equal(splits.train.tensors[0], torch.from_numpy(x).float())
    assert torch.equal(splits.test.tensors[0], torch.from_numpy(x[:9]).float())


def test_only_the_four_parts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    opened = zipfile.ZipFile.open

    def spy(self: zipfile.ZipFile, member: zipfile.ZipInfo, *rest: object) -> object:
        read.append(member.filename)
        return opened(self, member, *rest)

    path = saved(tmp_path / "mine.npz", tensors() | {"more": torch.zeros(3)})
    monkeypatch.setattr(zipfile.ZipFile, "open", spy)
    data.from_file(path)
    assert set(read) == {"x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy"}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_would_not_fit_into_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = saved(tmp_path / f"mine{suffix}", tensors())
    monkeypatch.setattr("hoarfrost.data.array_header.free_memory", lambda: 2000)
    assert data.from_file(path)
    monkeypatch.setattr("hoarfrost.data.array_header.free_memory", lambda: 1000)
    with pytest.raises(InvalidValue, match="need more memory than is free"):
        data.from_file(path)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't allocate memory: you tried to allocate 137 bytes")]
)
def test_memory_that_runs_out_is_told_without_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    path = saved(tmp_path / "mine.npz", tensors())
    monkeypatch.setattr("hoarfrost.data.user_files.Splits.of", fails)
    with pytest.raises(InvalidValue, match=r"need more memory than is free$") as caught:
        data.from_file(path)
    assert caught.value.__suppress_context__  # nor below it


def test_data_that_shrinks_well_is_not_taken_for_a_bomb(tmp_path: Path) -> None:
    x, y = np.zeros((6, 1 << 18)), np.zeros(6, np.int64)  # twelve megabytes, a thousand times smaller in the file
    np.savez_compressed(tmp_path / "zeros.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert (tmp_path / "zeros.npz").stat().st_size * 200 < x.nbytes * 2
    assert data.from_file(tmp_path / "zeros.npz").shape == (1 << 18,)


def test_a_pickle_in_an_archive_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "hostile.npz"
    np.savez(path, x_train=np.array([{"run": "me"}], dtype=object), y_train=[0], x_test=[0.0], y_test=[0])
    with pytest.raises(InvalidValue, match=r"hostile\.npz: x_train holds Python objects: a pickle could run code"):
        data.from_file(path)


@pytest.mark.parametrize("name", ["rubbish.npz", "rubbish.safetensors"])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not an archive at all")
    with pytest.raises(InvalidValue, match=r"is not a (zip|safetensors) file"):
        data.from_file(tmp_path / name)


@pytest.mark.parametrize("name", ["absent.npz", "absent.safetensors"])
def test_a_missing_file_is_one_clear_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValue, match="no data file at"):
        data.from_file(tmp_path / name)
    with pytest.raises(InvalidValue, match=r"neither a \.safetensors nor a \.npz"):
        data.from_file(tmp_path / "table.csv")


def test_augmentation_moves_the_picture_and_never_the_label() -> None:
    picture = torch.zeros(1, 1, 8, 8)
    picture[0, 0, 4, 4] = 1
    shifted = data.Augmented(TensorDataset(picture, torch.tensor([7])), shift=1)
    seen = set()
    for _ in range(200):
        image, label = shifted[0]
        assert (label, image.shape, image.sum()) == (7, (1, 8, 8), 1)
        seen.add(tuple(image.nonzero()[0].tolist()[1:]))
    assert seen == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}


def test_mirroring_happens_half_of_the_time() -> None:
    picture = torch.arange(4.0).reshape(1, 1, 1, 4)
    flipped = data.Augmented(TensorDataset(picture, torch.tensor([0])), flip=True)
    mirrored = sum(flipped[0][0].flatten()[0].item() == 3 for _ in range(400))
    assert 140 < mirrored < 260


def test_only_images_are_augmented() -> None:
    with pytest.raises(InvalidValue, match="for images"):
        data.Augmented(TensorDataset(torch.zeros(3, 5), torch.zeros(3)), shift=1)
    with pytest.raises(InvalidValue, match="a shift of 8 pixels"):
        data.Augmented(TensorDataset(torch.zeros(3, 1, 8, 8), torch.zeros(3)), shift=8)


def test_examples_are_scaled_by_public_constants_channel_by_channel() -> None:
    x = torch.rand(5, 3, 4, 4)
    labels = torch.tensor([0, 1, 2, 1, 0])
    splits = data.Splits.of(x, labels, x[:2], labels[:2])
    mean, std = [0.1, 0.2, 0.3], [1.0, 2.0, 4.0]
    scaled = splits.scaled(mean, std)
    for channel in range(3):
        torch.testing.assert_close(scaled.train.tensors[0][:, channel], (x[:, channel] - mean[channel]) / std[channel])
    torch.testing.assert_close(scaled.test.tensors[0], scaled.train.tensors[0][:2])
    torch.testing.assert_close(splits.scaled([0.5], [2.0]).train.tensors[0], (x - 0.5) / 2)
    assert torch.equal(splits.train.tensors[0], x)
    with pytest.raises(InvalidValue, match="mean has 2 values, and an example has 3 channels"):
        splits.scaled([0.1, 0.2], [1.0])
    words = data.Splits.of(labels[:, None], labels, labels[:, None], labels)
    with pytest.raises(InvalidValue, match="real numbers; these are integers"):
        words.scaled([0.0], [2.0])
