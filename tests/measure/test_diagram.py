"""Reliability diagrams: one panel for each run, always the same text, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import warnings
from xml.etree import ElementTree

import matplotlib
import pytest

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.measure import Calibration, reliability_diagram
from hoarfrost.measure.diagram import NAME, figure_of
from tests.measure.settings import CASES, drawn


def runs(count: int) -> dict[str, Calibration]:
    return {f"run-{number}": Calibration.of(*drawn(100, 3, seed=number)) for number in range(count)}


@pytest.mark.parametrize(
    ("count", "grid"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3))]
)
def test_there_is_a_pair_of_panels_for_each_run_in_rows_of_three(count: int, grid: tuple[int, int]) -> None:
    axes = figure_of(runs(count)).axes
    assert [each.get_title() for each in axes[::2]] == list(runs(count))
    assert len(axes) == 2 * count
    shape = axes[0].get_gridspec().get_geometry()  # type: ignore[union-attr]
    assert shape == (2 * grid[0], grid[1])
    assert {each.get_ylim() for each in axes[::2]} == {(0.0, 1.0)}  # the same axes everywhere
    assert len({each.get_ylim() for each in axes[1::2]}) == 1
    assert {each.get_xlim() for each in axes} == {(0.0, 1.0)}


def test_bars_gaps_and_lines_are_where_the_figures_are() -> None:
    found = Calibration.of(*drawn(200, 3, scale=4.0))
    above, below = figure_of({"run": found}).axes
    full = [each for each in found.bins if each.count]
    bars, gaps = above.patches[::2], above.patches[1::2]
    assert len(bars) == len(gaps) == len(full) < len(found.bins)
    for bar, gap, each in zip(bars, gaps, full, strict=True):
        assert (bar.get_x(), bar.get_y(), bar.get_height()) == (each.low, 0, each.accuracy)  # type: ignore[attr-defined]
        assert gap.get_y() == each.accuracy  # type: ignore[attr-defined]
        assert gap.get_y() + gap.get_height() == pytest.approx(each.confidence)  # type: ignore[attr-defined]
        assert gap.get_hatch()
        assert bar.get_facecolor() != gap.get_facecolor()
    over = {gap.get_hatch() for gap, each in zip(gaps, full, strict=True) if each.mean_confidence > each.mean_accuracy}
    under = {gap.get_hatch() for gap, each in zip(gaps, full, strict=True) if each.mean_confidence < each.mean_accuracy}
    assert (len(over), len(under)) == (1, 1)
    assert over != under
    assert [bar.get_height() for bar in below.patches] == [each.count / 200 for each in found.bins]  # type: ignore[attr-defined]
    assert [at.get_xdata()[0] for at in below.lines] == [found.confidence, found.accuracy]  # type: ignore[index]
    words = above.texts[0].get_text()
    for text in (
        f"accuracy {found.accuracy:.1%}",
        f"NLL {found.nll:.3f}",
        f"ECE {found.ece:.1%}",
        f"MCE {found.mce:.1%}",
    ):
        assert text in words


@pytest.mark.parametrize("case", CASES)
def test_every_calibration_can_be_drawn(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = reliability_diagram({case: Calibration.of(*CASES[case](), bins_of="mass")})
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_runs_give_the_same_text_in_every_process() -> None:
    script = (
        "import hashlib, torch\n"
        "from hoarfrost.measure import Calibration, reliability_diagram\n"
        "found = Calibration.of(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))\n"
        "print(hashlib.sha256(reliability_diagram({'a': found, 'b': found}).encode()).hexdigest())"
    )
    said = {subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(said) == 1
    assert "<dc:date>" not in reliability_diagram(runs(1))


def test_neither_style_nor_state_of_matplotlib_matter_or_change() -> None:
    plain = reliability_diagram(runs(2))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "mine", "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        assert reliability_diagram(runs(2)) == plain
        assert dict(matplotlib.rcParams) == before
    script = (
        "import sys, torch\n"
        "from hoarfrost.measure import Calibration, reliability_diagram\n"
        "reliability_diagram({'a': Calibration.of(torch.zeros(1, 2), torch.tensor([0]))})\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("$x_2$ {\\frac", "$x_2$ {\\frac"),  # no formula
        ("<b>&amp; --> </svg>", None),
        ("a\nb\x1b[31m", "a b\\x1b[31m"),
        ("m" * 100 + "-20260101", "m" * (NAME // 2) + "…" + "m" * (NAME - NAME // 2 - 10) + "-20260101"),
        ("\U0001f9ca \u6f22\u5b57 \udc80", None),  # without a glyph, and without a character
        ("", ""),
    ],
)
def test_a_name_is_text_whatever_it_is(name: str, shown: str | None) -> None:
    found = Calibration.of(*drawn(20, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = reliability_diagram({name: found})
    assert ElementTree.fromstring(text.encode()).tag.endswith("svg")
    if shown is not None:
        assert figure_of({name: found}).axes[0].get_title() == shown


def test_a_name_is_no_formula() -> None:
    assert "<!-- $x_2$ -->" in reliability_diagram({"$x_2$": Calibration.of(*drawn(20, 2))})


def test_no_runs_are_refused() -> None:
    with pytest.raises(InvalidValue, match="a reliability diagram needs at least one run, got none"):
        reliability_diagram({})


def test_without_matplotlib_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"needs matplotlib, .* pip install 'hoarfrost\[plot\]'"):
        reliability_diagram(runs(1))
