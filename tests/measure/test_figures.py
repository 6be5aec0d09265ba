"""Figures about private data land in `not-private/` alone, and say what they are."""

import csv
from pathlib import Path

import pytest

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import figures

ROWS = [{"step": 0, "angle": 12.5}, {"step": 10, "angle": 30.0}]


def drawn(folder: Path, *, mark: bool = True) -> tuple[Path, Path, Path]:
    with figures.drawing():
        figure, (axes, _) = figures.panels(2)
        for style, label in zip(figures.lines(), ("first", "second"), strict=False):
            axes.plot([0, 1], [0, 1], label=label, **style)
        figures.legend(figure, axes)
        if not mark:
            for text in list(figure.texts):
                text.set_text("")
        return figures.save_figure(figure, ROWS, folder, "angles")


def test_a_figure_has_a_picture_in_two_formats_and_its_numbers(tmp_path: Path) -> None:
    svg, png, table = drawn(tmp_path / "not-private")
    assert svg.read_text("utf-8").startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    read = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert read == [{key: str(value) for key, value in row.items()} for row in ROWS]


@pytest.mark.parametrize("place", [".", "private", "not-private-2"])
def test_it_is_written_nowhere_else(tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidValue, match="not below a folder called not-private"):
        drawn(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_link_does_not_lead_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "not-private").symlink_to(tmp_path / "public")
    with pytest.raises(InvalidValue, match="not below a folder called not-private"):
        drawn(tmp_path / "not-private")


def test_a_figure_without_its_mark_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="does not say that it is not private"):
        drawn(tmp_path / "not-private", mark=False)


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    svg, _, _ = drawn(tmp_path / "not-private")
    before = svg.read_bytes()
    drawn(tmp_path / "not-private")
    assert svg.read_bytes() == before
