"""A component is registered once, on its own class: what follows from that, and what is refused."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

import hoarfrost
from hoarfrost import validate
from hoarfrost.audit import battery
from hoarfrost.clipping import Local
from hoarfrost.data import Splits, digits
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer, RunInfo
from hoarfrost.recipes import freezers, networks, optimizers, read_recipe, schedules, schema, sources, to_toml
from hoarfrost.recipes.reference import reference
from hoarfrost.registry import Component, Positive, Rate, Share, component, components, forget, loaded
from hoarfrost.registry.registration import _REGISTERED, READ, TABLES
from hoarfrost.registry.source import read
from tests.support.recipes import tiny

PACKAGE = Path(hoarfrost.__file__).parent


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test registers is not there in the next one."""
    for table in TABLES:
        loaded(table)
    before = dict(_REGISTERED)
    yield
    _REGISTERED.clear()
    _REGISTERED.update(before)


def test_a_new_clipping_style_is_its_class_and_nothing_else() -> None:
    @component("clip", "capped", examples=lambda: [Capped(norm=0.6, cap=3.0)])
    @dataclass(frozen=True)
    class Capped(Local):
        """As `Local`, but longer gradients than ``cap`` are dropped.

        Args:
            cap: the longest gradient that counts.
            mode: what happens to the others.
            bands: not used.
        """

        cap: float = 10.0
        mode: Literal["drop", "keep"] = "drop"
        bands: tuple[Share, ...] = ()

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.cap < self.norm:
                raise InvalidValue(f"cap must be at least norm, got {self.cap}")

    # The table of a recipe, with the base class's key and default.
    recipe = tiny(clip={"kind": "capped", "cap": 2, "bands": [0.5]})
    assert recipe.clip.model_dump() == {"kind": "capped", "norm": 1.0, "cap": 2.0, "mode": "drop", "bands": (0.5,)}
    assert '[clip]\nkind = "capped"\nnorm = 1.0\ncap = 2.0\n' in to_toml(recipe)
    for wrong, message in (
        ({"cap": "2"}, "valid number"),
        ({"cap": float("inf")}, "cap must be finite"),
        ({"cap": 1e31}, "cap must be at most 1e\\+30"),
        ({"norm": 0}, "norm must be above 0"),
        ({"mode": "lose"}, "'drop' or 'keep'"),
        ({"bands": [1.0]}, "less than 1"),
        ({"kap": 2}, "Extra inputs"),
        ({"cap": 0.5}, "cap must be at least norm"),  # which the class itself says
    ):
        with pytest.raises(ValidationError, match=message):
            tiny(clip={"kind": "capped", **wrong})
    with pytest.raises(InvalidValue, match=r"digits.toml: clip\.cap must be at least norm, got 0\.5$"):
        read_recipe("digits", ["clip.kind=capped", "clip.cap=0.5"])
    # The object.
    assert schema.build(recipe.clip, "clip") == Capped(norm=1.0, cap=2.0, bands=(0.5,))
    # The reference, and the comment beside the key.
    assert '### `kind = "capped"`\n\nAs `Local`, but longer' in reference()
    assert "| `cap` | number | `10.0` | The longest gradient that counts. |" in reference()
    assert "cap = 2.0        # the longest gradient that counts\n" in to_toml(recipe, explained=True)
    # The audits.
    assert battery.clipping()["capped"] == Capped(norm=0.6, cap=3.0)
    assert "capped, nothing frozen, SGD" in map(str, battery.configurations())


def test_a_new_freezer_is_its_class_and_nothing_else() -> None:
    @component("freeze", "biases", examples=lambda: [(Biases(every=1), 0.9)])
    class Biases(Freezer):
        """Biases are frozen in some steps.

        Args:
            every: so many steps lie between them.
        """

        def __init__(self, every: int = 2) -> None:
            validate.whole(every=every)
            self.every = every

        def __repr__(self) -> str:
            return f"Biases(every={self.every})"

        def live(self, step: int, info: RunInfo) -> dict[str, bool]:
            return {name: len(shape) > 1 or step % self.every > 0 for name, shape in info.shapes.items()}

    wanted = tiny(freeze={"kind": "biases", "also": {"kind": "layers", "step": 3, "also": {"kind": "biases"}}})
    freezer = freezers.build(wanted.freeze, nn.Linear(2, 2), wanted.data)
    assert repr(freezer) == "Biases(every=2) & Layers(step=3) & Biases(every=2)"
    with pytest.raises(InvalidValue, match=r"freeze\.also\.every must be a whole number, 1 or above, got 0"):
        read_recipe("digits", ["freeze.kind=layers", "freeze.also.kind=biases", "freeze.also.every=0"])
    assert "| `every` | whole number | `2` | So many steps lie between them. |" in reference()
    assert battery.freezing()["Biases(every=1)"].share == 0.9


def test_an_optimizer_a_schedule_a_model_and_a_data_set_of_ones_own() -> None:
    @component("optimizer", "plain", examples=lambda: [("plain", {"lr": 0.1})])
    class Plain(torch.optim.SGD):
        """SGD."""

        def __init__(self, params: Any, lr: Positive) -> None:
            super().__init__(params, lr=lr)

    @component("schedule", "constant")
    @dataclass(frozen=True)
    class Constant(schedules.Schedule):
        """A constant."""

        value: Rate = 1.0

        def multiplier(self, step: int, steps: int, sample_rate: float) -> float:
            return self.value

    @component("model", "one-layer", takes=(1, 8, 8))
    def one_layer(classes: int, bias: bool = True) -> nn.Module:
        """One layer."""
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=bias))

    @component("data", "few-digits")
    def few_digits() -> Splits:
        """The digits."""
        return digits()

    recipe = tiny(
        optimizer={"kind": "plain", "lr": 0.5}, schedule={"kind": "constant", "value": 0.25},
        model={"name": "one-layer", "bias": False}, data={"name": "few-digits"},
    )  # fmt: skip
    model = networks.build(recipe.model, sources.load(recipe.data))
    assert sum(p.numel() for p in model.parameters()) == 640
    optimizer = optimizers.build(recipe.optimizer, model.parameters())
    assert type(optimizer) is Plain
    schedules.build(recipe.schedule, optimizer, steps=3, sample_rate=0.5)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert type(battery.optimizers()["plain"](model.parameters())) is Plain
    wide = torch.utils.data.TensorDataset(torch.zeros(2, 1, 9, 9), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InvalidValue, match="the model one-layer takes examples of shape"):
        networks.build(recipe.model, Splits(wide, wide, 2))


def test_what_cannot_be_registered_is_refused_where_it_is_defined() -> None:
    with pytest.raises(InvalidValue, match=r"there is a clip 'local' already, hoarfrost\.clipping\.local:Local"):

        @component("clip", "local")
        class Second:
            pass

    with pytest.raises(InvalidValue, match="the argument cap cannot be a recipe's key: it has no type; annotate it"):

        @component("clip", "untyped")
        class Untyped:
            def __init__(self, cap=1.0) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidValue, match="the argument mask cannot be a recipe's key: Tensor cannot be written"):

        @component("freeze", "tensor")
        class OfTensor:
            def __init__(self, mask: Tensor) -> None: ...

    with pytest.raises(InvalidValue, match=r"a recipe cannot write \*args"):

        @component("freeze", "any")
        class OfAnything:
            def __init__(self, *args: float) -> None: ...

    with pytest.raises(InvalidValue, match="no table 'noise' of a recipe chooses a component"):
        component("noise", "loud")
    assert "untyped" not in components("clip")


def test_the_same_class_may_be_defined_again_as_in_a_notebook() -> None:
    def define(default: float) -> None:
        @component("schedule", "again")
        @dataclass
        class Again:
            value: float = default

    define(1.0)
    assert tiny(schedule={"kind": "again"}).schedule.value == 1.0
    define(2.0)
    assert tiny(schedule={"kind": "again"}).schedule.value == 2.0
    forget("schedule", "again")
    with pytest.raises(ValidationError, match="again"):
        tiny(schedule={"kind": "again"})


def facts(each: Component) -> Sequence[Any]:
    arguments = [(key.name, str(key.type), key.default, key.meaning) for key in each.arguments]
    return [each.kind, each.where, each.summary, arguments, each.given, each.one_of, each.at_most_one, each.takes]


@pytest.mark.parametrize("table", READ)
def test_what_is_read_from_the_source_is_what_an_import_finds(table: str) -> None:
    found = read(READ[table], table)
    assert set(found) == set(loaded(table))
    for kind, each in loaded(table).items():
        assert each.target is not None
        assert facts(found[kind]) == facts(each)


def test_every_registration_in_the_library_is_found() -> None:
    written = sum(path.read_text().count("\n@component(") for path in PACKAGE.rglob("*.py"))
    fetched = 3  # data sets that are registered in a loop
    assert sum(len(components(table)) for table in TABLES) == written + fetched


CONFIGURATIONS = {
    f"local, {freeze}, {optimizer}"
    for freeze in (
        "nothing frozen", "one tensor frozen", "Layers(first=1, step=0)",
        "Random(rate=0.5, cooling=None, redraw='never', granularity='element', velocity='stands', posterior=False, "
        "seed=0)",
        "Random(rate=0.5, cooling=None, redraw='never', granularity='channel', velocity='stands', posterior=False, "
        "seed=0)",
        "Random(rate=0.3, cooling=None, redraw='never', granularity='element', velocity='stands', posterior=False, "
        "seed=0) & Layers(first=1, step=0)",
        "RandomTensors(share=0.666667, seed=0)",
    )
    for optimizer in ("SGD", "momentum", "Nesterov", "RMSprop", "Adam", "AdamW")
}  # fmt: skip


def test_audits_try_at_least_these() -> None:
    assert set(map(str, battery.configurations())) >= CONFIGURATIONS


def test_imports_go_one_way() -> None:
    for room, never in (
        ("registry", ("train", "recipes", "models", "data", "clipping", "freezing", "audit", "cli")),
        ("recipes", ("train", "audit", "cli")),
        ("clipping", ("recipes", "train")),
        ("freezing", ("recipes", "train")),
        ("models", ("recipes", "train")),
        ("data", ("recipes", "train")),
    ):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
                    for name in names:
                        assert not name.startswith(tuple(f"hoarfrost.{each}" for each in never)), f"{path}: {name}"


def test_a_wrong_component_is_refused_without_importing_torch() -> None:
    script = (
        "import sys\n"
        "from hoarfrost.errors import InvalidValue\n"
        "from hoarfrost.recipes import read_recipe\n"
        "for wrong in (['clip.norm=-1'], ['freeze.kind=random', 'freeze.rate=2'], ['freeze.kind=pruned'],\n"
        "              ['model={name=\"lenet\", width=3}'], ['optimizer.lr=0'], ['schedule.warmup=1.0']):\n"
        "    try:\n"
        "        read_recipe('digits', wrong)\n"
        "    except InvalidValue:\n"
        "        continue\n"
        "    print('not refused', wrong)\n"
        "print([name for name in ('torch', 'numpy', 'dp_accounting') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_recipe_s_tables_do_not_change_when_a_component_is_imported() -> None:
    """Or a recipe that was read before torch was there would not be equal to one that was read afterwards."""
    assert loaded("freeze")["random"].target is not None
    assert components("freeze")["random"].target is None
    assert schema.table("freeze", "random") is schema.table("freeze", "random")


def test_arguments_that_the_source_does_not_show_are_refused() -> None:
    """A field from a base class in another file: reading the file alone would miss it."""
    with pytest.raises(InvalidValue, match=r"Local: write its arguments out: its file shows norm, it has norm, more"):

        @component("clip", "local")
        @dataclass(frozen=True)
        class More(Local):
            more: float = 1.0

            __module__ = "hoarfrost.clipping.local"
            __qualname__ = "Local"
