"""`hoarfrost budget`: what training would cost, without training."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hoarfrost.budget import Statement

app = typer.Typer(
    help="What private training costs, and what a budget allows.",
    no_args_is_help=False,
    rich_markup_mode=None,
)


class Accountant(StrEnum):
    """How releases are composed."""

    pld = "pld"
    rdp = "rdp"


Delta = Annotated[float, typer.Option(help="The probability with which epsilon may fail to hold.")]
Epsilon = Annotated[float, typer.Option(help="The budget.")]
NoiseMultiplier = Annotated[float, typer.Option(help="Standard deviation of the noise over the clipping norm.")]
SampleRate = Annotated[float | None, typer.Option(help="The chance of each example to be in a step.")]
BatchSize = Annotated[float | None, typer.Option(help="Instead of --sample-rate, with --size: the expected batch.")]
Size = Annotated[int | None, typer.Option(help="How many training examples there are.")]
Steps = Annotated[int | None, typer.Option(help="How many steps are taken.")]
Epochs = Annotated[float | None, typer.Option(help="Instead of --steps: how many passes over the data.")]
By = Annotated[Accountant, typer.Option("--accountant", help="pld is nearly exact, rdp somewhat above it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """What private training costs, and what a budget allows."""
    if context.invoked_subcommand is None:
        print(context.get_help())


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
    """How much privacy so many steps with so much noise cost."""
    from hoarfrost.budget import Gaussian, Statement

    sampling = Sampling.of(sample_rate, batch_size, size)
    sampling.warn(delta)
    training = Gaussian(
        noise_multiplier=noise_multiplier, sample_rate=sampling.rate, steps=sampling.steps(steps, epochs)
    )
    statement = Statement.of(training, delta, accountant.value)
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
    """The smallest noise with which so many steps stay within epsilon."""
    from hoarfrost import budget

    sampling = Sampling.of(sample_rate, batch_size, size)
    sampling.warn(delta)
    count = sampling.steps(steps, epochs)
    sigma = budget.noise_multiplier(epsilon, delta, sampling.rate, count, accountant.value)
    training = budget.Gaussian(noise_multiplier=sigma, sample_rate=sampling.rate, steps=count)
    statement = budget.Statement.of(training, delta, accountant.value)
    shown = math.ceil(sigma * 1e4) / 1e4  # up: who copies the number must not overspend
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
    """How many steps stay within epsilon."""
    from hoarfrost import budget

    sampling = Sampling.of(sample_rate, batch_size, size)
    sampling.warn(delta)
    count = budget.steps(epsilon, delta, sampling.rate, noise_multiplier, accountant.value)
    training = budget.Gaussian(noise_multiplier=noise_multiplier, sample_rate=sampling.rate, steps=count)
    statement = budget.Statement.of(training, delta, accountant.value)
    text = f"{count} steps, {count * sampling.rate:.4g} epochs\n{statement}"
    _answer(as_json, text, statement, target_epsilon=epsilon)


@dataclass(frozen=True)
class Sampling:
    """Each example's chance to be in a step, and the number of examples if it is known."""

    rate: float
    size: int | None

    @classmethod
    def of(cls, sample_rate: float | None, batch_size: float | None, size: int | None) -> "Sampling":
        """From one of the two ways to say it."""
        from hoarfrost import validate
        from hoarfrost.errors import InvalidValue

        if (sample_rate is None) == (batch_size is None):
            raise InvalidValue("give either --sample-rate, or --batch-size with --size")
        if size is not None:
            validate.whole(size=size)
        if sample_rate is not None:
            validate.rate(sample_rate=sample_rate)
            return cls(sample_rate, size)
        if size is None:
            raise InvalidValue("--batch-size needs --size, the number of training examples")
        from hoarfrost.epochs import rate_of  # the very one that training uses

        return cls(rate_of(size, batch_size, None), size)

    def steps(self, steps: int | None, epochs: float | None) -> int:
        """The number of steps, as `make_private` would count them."""
        from hoarfrost import validate
        from hoarfrost.errors import InvalidValue

        if (steps is None) == (epochs is None):
            raise InvalidValue("give either --steps or --epochs")
        if steps is not None:
            validate.whole(steps=steps)
            return steps
        from hoarfrost.epochs import first_step

        assert epochs is not None
        validate.positive(epochs=epochs)
        return max(1, first_step(epochs, self.rate))

    def warn(self, delta: float) -> None:
        """Says so on standard error if delta is too large for the data."""
        if self.size is not None:
            from hoarfrost.cli.oneline import complain
            from hoarfrost.train.formatting import delta_advice

            if advice := delta_advice(delta, self.size):
                complain(f"warning: {advice}")


def _answer(as_json: bool, text: str, statement: "Statement", **asked: Any) -> None:
    if not as_json:
        print(text)
        return
    (training,) = statement.releases
    facts = {**statement.as_dict(), **training.as_dict(), **asked}
    for about_a_run in ("seeded", "warning", "releases", "kind"):
        facts.pop(about_a_run)
    print(json.dumps(facts, indent=2, allow_nan=False))
