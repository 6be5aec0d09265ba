"""What a clipping style cannot be is refused in one line, by name, and leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from hoarfrost import budget
from hoarfrost.cli import app
from hoarfrost.clipping import Adaptive, Automatic, Clipper, Global, Local, PerGroup, PerLayer, Schedule
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import schema
from hoarfrost.train import read_recipe
from tests.support.freezing import PLAN, ledger, make, net, step

anything: Any = lambda x: x  # noqa: E731 - what type checkers would refuse, too
NORMS = {"Local": Local, "Global": Global, "Automatic": Automatic, "Adaptive": lambda norm: Adaptive(start=norm)}
NUMBERS = {
    "0": (0.0, "(norm|start) must be above 0, got 0"),
    "negative": (-1.0, r"(norm|start) must be above 0, got -1"),
    "infinite": (math.inf, "(norm|start) must be finite, got inf"),
    "NaN": (math.nan, "(norm|start) must be a number, got nan"),
    "text": ("1", "(norm|start) must be a number, got '1'"),
    "true": (True, "(norm|start) must be a number, got True"),
    "nothing": (None, "(norm|start) must be a number, got None"),
    "a tensor": (torch.tensor(1.0), "(norm|start) must be a number, got tensor"),
}


def refusal(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("style", NORMS)
def test_a_norm_that_is_none_is_refused(style: str, case: str) -> None:
    value, words = NUMBERS[case]
    refusal(lambda: NORMS[style](anything(value)), words)


STAGE = (0, Local(1.0))
FLAT = r"takes a style that clips one norm, such as Local\(1\.0\) or Global\(1\.0\), not "
ARGUMENTS: dict[str, tuple[Callable[[], object], str]] = {
    # Adaptive
    "quantile 0": (lambda: Adaptive(quantile=0.0), "quantile must lie strictly between 0 and 1, got 0"),
    "quantile 1": (lambda: Adaptive(quantile=1.0), "quantile must lie strictly between 0 and 1, got 1"),
    "quantile NaN": (lambda: Adaptive(quantile=math.nan), "quantile must be a number, got nan"),
    "quantile text": (lambda: Adaptive(quantile=anything("half")), "quantile must be a number, got 'half'"),
    "rate 0": (lambda: Adaptive(rate=0.0), "rate must be above 0, got 0"),
    "rate negative": (lambda: Adaptive(rate=-0.2), "rate must be above 0, got -0.2"),
    "rate infinite": (lambda: Adaptive(rate=math.inf), "rate must be finite, got inf"),
    "rate NaN": (lambda: Adaptive(rate=math.nan), "rate must be a number, got nan"),
    "cost 0": (lambda: Adaptive(cost=0.0), "cost must lie strictly between 0 and 1, got 0"),
    "cost 1": (lambda: Adaptive(cost=1.0), "cost must lie strictly between 0 and 1, got 1"),
    "cost negative": (lambda: Adaptive(cost=-0.1), "cost must lie strictly between 0 and 1, got -0.1"),
    "style word": (lambda: Adaptive(style=anything("flat")), "style must be one of local, global, got 'flat'"),
    "style class": (lambda: Adaptive(style=anything(Local)), "style must be one of local, global, got <class"),
    "style list": (lambda: Adaptive(style=anything(["local"])), r"style must be one of local, global, got \['local'\]"),
    "tiny start": (lambda: Adaptive(start=1e-11), r"start must lie from 1e-10 to 1e\+10, got 1e-11"),
    "huge start": (lambda: Adaptive(start=1e11), r"start must lie from 1e-10 to 1e\+10, got 1e\+11|100000000000"),
    # Automatic, Global
    "stability": (lambda: Automatic(stability=-0.1), "stability must not be negative, got -0.1"),
    "infinite stability": (lambda: Automatic(stability=math.inf), "stability must be finite, got inf"),
    "edge": (lambda: Global(edge=1.0), "edge must lie from 0 to below 1, got 1"),
    "narrow edge": (lambda: Global(edge=0.001), "edge must be 0, for analysis, or from 0.01 to below 1, got 0.001"),
    # PerLayer, PerGroup
    "layers of a schedule": (lambda: PerLayer(anything(Schedule(STAGE))), f"PerLayer {FLAT}Schedule"),
    "layers of layers": (lambda: PerLayer(anything(PerLayer(Local()))), f"PerLayer {FLAT}PerLayer"),
    "layers of groups": (lambda: PerLayer(anything(PerGroup({"*": Local()}))), f"PerLayer {FLAT}PerGroup"),
    "layers of a word": (lambda: PerLayer(anything("local")), f"PerLayer {FLAT}'local'"),
    "layers of a class": (lambda: PerLayer(anything(Local)), f"PerLayer {FLAT}<class"),
    "layers of a number": (lambda: PerLayer(anything(1.0)), f"PerLayer {FLAT}1.0"),
    "layers, noise word": (
        lambda: PerLayer(Local(), noise=anything("loud")),
        'noise must be "equal" or "proportional", got \'loud\'',
    ),
    "groups of a schedule": (lambda: PerGroup({"*": anything(Schedule(STAGE))}), rf"the group '\*' {FLAT}Schedule"),
    "groups of layers": (lambda: PerGroup({"*": anything(PerLayer(Local()))}), rf"the group '\*' {FLAT}PerLayer"),
    "groups of groups": (
        lambda: PerGroup({"*": anything(PerGroup({"*": Local()}))}),
        rf"the group '\*' {FLAT}PerGroup",
    ),
    "groups of a word": (lambda: PerGroup({"*": anything("local")}), rf"the group '\*' {FLAT}'local'"),
    "groups, noise word": (
        lambda: PerGroup({"*": Local()}, noise=anything("none")),
        'noise must be "equal" or "proportional", got \'none\'',
    ),
    "no groups": (lambda: PerGroup({}), "groups maps patterns of names to styles, .* got {}"),
    "a list of groups": (lambda: PerGroup(anything([("*", Local())])), "groups maps patterns of names to styles"),
    "a style for groups": (lambda: PerGroup(anything(Local())), r"groups maps patterns .* got Local\(norm=1.0\)"),
    "a number for a pattern": (lambda: PerGroup({anything(3): Local()}), r"patterns of groups are text, .* got 3"),
    # Schedule
    "no stages": (lambda: Schedule(), "a schedule has stages such as"),
    "a style for a stage": (lambda: Schedule(anything(Local())), "a schedule has stages such as"),
    "a stage of one": (lambda: Schedule(anything((0,))), "a schedule has stages such as"),
    "a stage of four": (lambda: Schedule(anything((0, Local(), 1.0, 2))), "a schedule has stages such as"),
    "a stage of a word": (lambda: Schedule(anything((0, "local"))), "takes a clipping style, .* not 'local'"),
    "backwards": (
        lambda: Schedule(STAGE, (0.9, Local()), (0.5, Local())),
        "a schedule goes forward: its stages begin at 0, 0.9, 0.5",
    ),
    "twice at once": (
        lambda: Schedule(STAGE, (0.5, Local()), (0.5, Global())),
        "a schedule goes forward: its stages begin at 0, 0.5, 0.5",
    ),
    "late": (lambda: Schedule((0.1, Local())), "the first stage of a schedule begins at 0, not at 0.1"),
    "after the end": (
        lambda: Schedule(STAGE, (1.0, Local())),
        "begins at the fraction 1 begins after the end of the run",
    ),
    "a percentage": (lambda: Schedule(STAGE, (95, Local())), "begins at the fraction 95 begins after the end"),
    "no learning rate": (lambda: Schedule((0, Local(), 0.0)), "learning_rate must be above 0, got 0"),
    "a negative learning rate": (lambda: Schedule((0, Local(), -1.0)), "learning_rate must be above 0, got -1"),
    "an infinite learning rate": (lambda: Schedule((0, Local(), math.inf)), "learning_rate must be finite, got inf"),
    "a learning rate in words": (
        lambda: Schedule((0, Local(), anything("1"))),
        "learning_rate must be a number, got '1'",
    ),
    "by what": (
        lambda: Schedule(STAGE, by=anything("day")),
        'by must be "fraction", "step", "epoch" or "epsilon", got \'day\'',
    ),
    "half a step": (lambda: Schedule(STAGE, (1.5, Local()), by="step"), "start must be a whole number, .* got 1.5"),
    "half an epoch": (lambda: Schedule(STAGE, (0.5, Local()), by="epoch"), "start must be a whole number, .* got 0.5"),
    "before 0": (lambda: Schedule(STAGE, (-1, Local()), by="step"), "start must not be negative, got -1"),
    "a start in words": (lambda: Schedule(STAGE, (anything("end"), Local())), "start must be a number, got 'end'"),
    "an endless start": (lambda: Schedule(STAGE, (math.inf, Local()), by="epsilon"), "start must be finite, got inf"),
    "a recipe's lists": (lambda: Schedule.from_recipe([Local(), Global()], [0]), "have an entry for every stage"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    refusal(*ARGUMENTS[case])


# What only the run can tell: its parameters, and how long it is.

GROUPS = "every trained parameter belongs to exactly one group"
IN_RUNS: dict[str, tuple[Any, str]] = {
    "no style": ("local", r"clip= takes a clipping style, such as hoarfrost.clip.Local\(1.0\), not 'local'"),
    "a class": (Local, "clip= takes a clipping style"),
    "a truth value": (True, "clip= takes a clipping style"),
    "a group without members": (
        PerGroup({"*": Local(), "head.*": Local()}),
        r"no trained parameter is named like the group 'head\.\*'; there are 0.weight, 0.bias, 3.weight",
    ),
    "overlapping groups": (
        PerGroup({"*": Local(), "*.bias": Local()}),
        rf"0.bias is in the groups '\*' and '\*.bias': {GROUPS}",
    ),
    "a parameter left out": (PerGroup({"*.weight": Local()}), f"0.bias is in no group: {GROUPS}"),
    "a step after the end": (
        Schedule(STAGE, (4, Global()), by="step"),
        r"the stage \(4, Global\(.*\)\) would begin after 4 steps, .* has 4",
    ),
    "an epoch after the end": (
        Schedule(STAGE, (2, Global(), 0.5), by="epoch"),
        r"\(2, Global\(.*\), 0.5\) would begin after 4 steps, .* has 4",
    ),
    "two stages in one step": (
        Schedule(STAGE, (0.3, Global()), (0.4, Local(3.0))),
        r"the stage \(0.3, Global\(.*\)\) would have no step: it and the next one begin after 1 steps",
    ),
    "a first stage without a step": (
        Schedule(STAGE, (0.2, Global())),
        "would have no step: it and the next one begin after 0 steps",
    ),
    "groups in a schedule": (
        Schedule(STAGE, (2, PerGroup({"*.weight": Local()})), by="step"),
        f"0.bias is in no group: {GROUPS}",
    ),
}


@pytest.mark.parametrize("case", IN_RUNS)
def test_what_cannot_be_in_this_run_is_refused_before_the_first_batch(case: str, tmp_path: Path) -> None:
    clip, words = IN_RUNS[case]
    books, model = ledger(tmp_path), net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    refusal(lambda: make(model, clip=clip, ledger=books.path, **PLAN), words)
    assert_untouched(model, before)
    assert budget.Ledger(books.path).entries == ()
    step(make(model, clip=Local(1.0), ledger=books.path, **PLAN))  # and can be tried again


def assert_untouched(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    F.cross_entropy(model(torch.randn(2, 1, 6, 6)), torch.tensor([0, 1])).backward()  # an ordinary model
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()


def test_fractions_need_a_length() -> None:
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    words = "a schedule by fractions needs to know how long the run is: give epochs= or steps="
    refusal(lambda: make(model, clip=Schedule(STAGE, (0.5, Global())), noise_multiplier=3.0), words)
    assert_untouched(model, before)
    step(make(model, clip=Schedule(STAGE, (5, Global()), by="step"), noise_multiplier=3.0))  # these need none


def test_an_epsilon_that_is_never_spent_is_refused_before_anything_is_charged() -> None:
    """What weights may have behind them is known with the first batch, after a checkpoint may have been loaded."""
    private = make(net(), clip=Schedule(STAGE, (500.0, Global()), by="epsilon"), **PLAN)
    refusal(lambda: step(private), r"the stage \(500, Global\(.*\)\) would begin after \d+ steps, and the run has 4")
    assert private.charged == 0
    assert private.epsilon() == 0


def test_a_parameter_that_is_not_trained_needs_no_group() -> None:
    model = net()
    optimizer = torch.optim.SGD([p for name, p in model.named_parameters() if name.endswith("weight")], lr=0.1)
    step(make(model, optimizer, clip=PerGroup({"*.weight": Local()}), **PLAN))


# Recipes.

LOCAL, SCHEDULE = "{kind='local'}", "kind='schedule',styles=[{kind='local'},{kind='global'}]"
READ: dict[str, tuple[str, str]] = {
    "norm": ("clip.norm=0", "clip.norm must be above 0, got 0"),
    "infinite": ("clip.norm=inf", "clip.norm must be finite, got inf"),
    "NaN": ("clip.norm=nan", "clip.norm must be a number, got nan"),
    "text": ("clip.norm='1'", "clip.norm: must be a valid number, got '1'"),
    "kind": ("clip={kind='locl'}", "clip.kind cannot be 'locl'; did you mean local?"),
    "quantile": ("clip={kind='adaptive',quantile=1}", "clip.quantile must lie strictly between 0 and 1, got 1"),
    "rate": ("clip={kind='adaptive',rate=0}", "clip.rate must be above 0, got 0"),
    "cost": ("clip={kind='adaptive',cost=1.5}", "clip.cost must lie strictly between 0 and 1, got 1.5"),
    "word": ("clip={kind='adaptive',style='flat'}", "clip.style: must be 'local' or 'global', got 'flat'"),
    "layers of a word": ("clip={kind='per-layer',style='local'}", "clip.style must be a table, got 'local'"),
    "a layer's norm": (
        "clip={kind='per-layer',style={kind='local',norm=-1}}",
        "clip.style.norm must be above 0, got -1",
    ),
    "noise": (f"clip={{kind='per-layer',style={LOCAL},noise='loud'}}", "clip.noise: must be 'equal' or 'proportional'"),
    "groups": ("clip={kind='per-group',groups=3}", "clip.groups must be a table, got 3"),
    "by": (f"clip={{{SCHEDULE},starts=[0,0.5],by='day'}}", "clip.by: must be 'fraction', 'step', 'epoch' or 'epsilon'"),
    "a learning rate": (
        f"clip={{{SCHEDULE},starts=[0,0.5],learning_rates=[1,0]}}",
        "learning_rates must be above 0, got 0",
    ),
    "a negative start": (f"clip={{{SCHEDULE},starts=[0,-1]}}", "starts must not be negative, got -1"),
}


@pytest.mark.parametrize("case", READ)
def test_a_recipe_says_which_key_is_wrong(case: str) -> None:
    override, words = READ[case]
    with pytest.raises(InvalidValue) as caught:
        read_recipe("digits", [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# The network of the recipe has the parameters 0.weight, 0.bias, 4.weight and 4.bias, and 120 steps.
TRAINED: dict[str, tuple[str, str]] = {
    "read": ("clip.norm=0", "digits.toml: clip.norm must be above 0, got 0"),
    "edge": ("clip={kind='global',edge=0.001}", "edge must be 0, for analysis, or from 0.01 to below 1, got 0.001"),
    "layers of layers": (
        f"clip={{kind='per-layer',style={{kind='per-layer',style={LOCAL}}}}}",
        "takes a style that clips one",
    ),
    "layers of a schedule": (
        f"clip={{kind='per-layer',style={{{SCHEDULE},starts=[0,0.5]}}}}",
        "takes a style that clips one",
    ),
    "no groups": ("clip={kind='per-group',groups={}}", "groups maps patterns of names to styles"),
    "nothing in a group": (
        f"clip={{kind='per-group',groups={{'*'={LOCAL},'head.*'={LOCAL}}}}}",
        "no trained parameter is named like the group",
    ),
    "left out": (f"clip={{kind='per-group',groups={{'0.*'={LOCAL}}}}}", "4.weight is in no group"),
    "overlapping": (
        f"clip={{kind='per-group',groups={{'*'={LOCAL},'0.*'={LOCAL}}}}}",
        "0.weight is in the groups '*' and '0.*'",
    ),
    "no stages": ("clip={kind='schedule',styles=[],starts=[]}", "a schedule has stages such as"),
    "too few starts": (f"clip={{{SCHEDULE},starts=[0]}}", "have an entry for every stage"),
    "backwards": (f"clip={{{SCHEDULE},starts=[0,0]}}", "a schedule goes forward"),
    "late": (f"clip={{{SCHEDULE},starts=[0.1,0.2]}}", "the first stage of a schedule begins at 0, not at 0.1"),
    "half a step": (
        f"clip={{{SCHEDULE},starts=[0,1.5],by='step'}}",
        "start must be a whole number, 0 or above, got 1.5",
    ),
    "a fraction after the end": (f"clip={{{SCHEDULE},starts=[0,1.5]}}", "begins after the end of the run"),
    "a step after the end": (
        f"clip={{{SCHEDULE},starts=[0,5000],by='step'}}",
        "would begin after 5000 steps, and the run has 120",
    ),
    "an epoch after the end": (f"clip={{{SCHEDULE},starts=[0,99],by='epoch'}}", "steps, and the run has 120"),
    "an epsilon that is never spent": (f"clip={{{SCHEDULE},starts=[0,50],by='epsilon'}}", "steps, and the run has 120"),
}


@pytest.mark.parametrize("case", TRAINED)
def test_train_refuses_in_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    override, words = TRAINED[case]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "digits", "--out", "run", "--set", override])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


RIGHT: dict[str, tuple[str, Clipper]] = {
    "groups": (
        "clip={kind='per-group',groups={'*.weight'={kind='local',norm=0.5},'*.bias'={kind='global'}},noise='proportional'}",
        PerGroup({"*.weight": Local(0.5), "*.bias": Global()}, noise="proportional"),
    ),
    "layers": ("clip={kind='per-layer',style={kind='adaptive',quantile=0.7}}", PerLayer(Adaptive(quantile=0.7))),
    "stages": (
        f"clip={{{SCHEDULE},starts=[0,10],learning_rates=[1,0.1],by='step'}}",
        Schedule((0, Local()), (10, Global(), 0.1), by="step"),
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_built_as_written(case: str) -> None:
    override, wanted = RIGHT[case]
    assert repr(schema.build(read_recipe("digits", [override]).clip, "clip")) == repr(wanted)
