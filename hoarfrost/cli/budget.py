"""`hoarfrost budget`: the privacy cost of training, without training."""

import json
import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hoarfrost.cli.group import command_group

if TYPE_CHECKING:
    from hoarfrost.budget import Plan, Statement

app = command_group("Compute epsilon, noise or steps for private training.")


class Accountant(StrEnum):
    """The composition method."""

    pld = "pld"
    rdp = "rdp"


Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta)-privacy.")]
Epsilon = Annotated[float, typer.Option(help="The target epsilon.")]
NoiseMultiplier = Annotated[float, typer.Option(help="Standard deviation of the noise, divided by the clipping norm.")]
SampleRate = Annotated[float | None, typer.Option(help="The probability that an example is in a batch.")]
BatchSize = Annotated[
    float | None, typer.Option(help="Expected batch size. Use with --size, instead of --sample-rate.")
]
Size = Annotated[int | None, typer.Option(help="Number of training examples.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps.")]
Epochs = Annotated[float | None, typer.Option(help="Number of passes over the data, instead of --steps.")]
By = Annotated[
    Accountant, typer.Option("--accountant", help="pld is nearly exact; rdp is an upper bound, somewhat larger.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def epsilon(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    size: Size = None,
    steps: Steps = None,
    epochs: Epochs = None,
    accountant: By = Accountant.pld,
    as_json: Json = False,
) -> None:
    """Epsilon, from the noise multiplier and the number of steps."""
    plan = _plan(
        sample_rate, batch_size, size, _length(steps, epochs), noise_multiplier=noise_multiplier, delta=delta,
        accountant=accountant.value,
    )  # fmt: skip
    statement = plan.statement()
    _answer(as_json, str(statement), statement)


@app.command()
def noise(
    epsilon: Epsilon,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    size: Size = None,
    steps: Steps = None,
    epochs: Epochs = None,
    accountant: By = Accountant.pld,
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier for a target epsilon."""
    plan = _plan(
        sample_rate, batch_size, size, _length(steps, epochs), epsilon=epsilon, delta=delta, accountant=accountant.value
    )
    statement = plan.statement()
    shown = math.ceil(plan.noise_multiplier * 1e4) / 1e4  # rounded up, to stay within the budget
    _answer(as_json, f"noise multiplier {shown:.4f}\n{statement}", statement, target_epsilon=epsilon)


@app.command("steps")
def steps_(
    epsilon: Epsilon,
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    size: Size = None,
    accountant: By = Accountant.pld,
    as_json: Json = False,
) -> None:
    """The largest number of steps for a target epsilon."""
    plan = _plan(
        sample_rate, batch_size, size, {}, noise_multiplier=noise_multiplier, delta=delta, accountant=accountant.value
    )
    count = plan.steps_within(epsilon)
    statement = plan.statement(steps=count)
    text = f"{count} steps, {count * plan.sample_rate:.4g} epochs\n{statement}"
    _answer(as_json, text, statement, target_epsilon=epsilon)


def _plan(
    sample_rate: float | None, batch_size: float | None, size: int | None, length: dict[str, Any], **privacy: Any
) -> "Plan":
    """The plan, as training would make it; warns if delta is too large for the number of examples."""
    from hoarfrost.budget import Plan
    from hoarfrost.errors import InvalidValue

    if (sample_rate is None) == (batch_size is None):
        raise InvalidValue("give either --sample-rate, or --batch-size with --size")
    if batch_size is not None and size is None:
        raise InvalidValue("--batch-size needs --size, the number of training examples")
    known = 1 if size is None else size  # with a sampling rate, nothing but the advice depends on it
    plan = Plan.solve(size=known, sample_rate=sample_rate, batch_size=batch_size, **length, **privacy)
    if plan.delta_advice:
        from hoarfrost.cli.errors import report

        report(f"warning: {plan.delta_advice}")
    return plan


def _length(steps: int | None, epochs: float | None) -> dict[str, Any]:
    from hoarfrost.errors import InvalidValue

    if (steps is None) == (epochs is None):
        raise InvalidValue("give either --steps or --epochs")
    return {"steps": steps, "epochs": epochs}


def _answer(as_json: bool, text: str, statement: "Statement", **asked: Any) -> None:
    if not as_json:
        print(text)
        return
    (training,) = statement.releases
    fields = {**statement.as_dict(), **training.as_dict(), **asked}
    for of_a_run in ("seeded", "warning", "releases", "kind"):
        fields.pop(of_a_run)
    print(json.dumps(fields, indent=2, allow_nan=False))
