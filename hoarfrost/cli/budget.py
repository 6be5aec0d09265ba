"""`hoarfrost budget`: the privacy cost of training, without training."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hoarfrost.budget import Statement

app = typer.Typer(
    help="Compute epsilon, noise or steps for private training.",
    no_args_is_help=False,
    rich_markup_mode=None,
)


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


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Compute epsilon, noise or steps for private training."""
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
    """Epsilon, from the noise multiplier and the number of steps."""
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
    """The smallest noise multiplier for a target epsilon."""
    from hoarfrost import budget

    sampling = Sampling.of(sample_rate, batch_size, size)
    sampling.warn(delta)
    count = sampling.steps(steps, epochs)
    sigma = budget.noise_multiplier(epsilon, delta, sampling.rate, count, accountant.value)
    training = budget.Gaussian(noise_multiplier=sigma, sample_rate=sampling.rate, steps=count)
    statement = budget.Statement.of(training, delta, accountant.value)
    shown = math.ceil(sigma * 1e4) / 1e4  # rounded up, so that the printed number stays within the budget
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
    """The sampling rate, and the number of examples if it is known."""

    rate: float
    size: int | None

    @classmethod
    def of(cls, sample_rate: float | None, batch_size: float | None, size: int | None) -> "Sampling":
        """From a sampling rate, or from a batch size and the number of examples."""
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
        from hoarfrost.sampling.poisson import Poisson  # as in training

        assert batch_size is not None
        return cls(Poisson.of_batch(batch_size, size).sample_rate, size)

    def steps(self, steps: int | None, epochs: float | None) -> int:
        """The number of steps, as `make_private` would count them."""
        from hoarfrost import validate
        from hoarfrost.errors import InvalidValue

        if (steps is None) == (epochs is None):
            raise InvalidValue("give either --steps or --epochs")
        if steps is not None:
            validate.whole(steps=steps)
            return steps
        from hoarfrost.sampling.poisson import Poisson

        assert epochs is not None
        validate.positive(epochs=epochs)
        validate.finite(epochs=epochs)
        return max(1, Poisson(sample_rate=self.rate, size=self.size or 1).epoch_boundary(epochs))

    def warn(self, delta: float) -> None:
        """Prints a warning if delta is too large for the number of examples."""
        if self.size is not None:
            from hoarfrost.cli.errors import report
            from hoarfrost.train.words import delta_advice

            if advice := delta_advice(delta, self.size):
                report(f"warning: {advice}")


def _answer(as_json: bool, text: str, statement: "Statement", **asked: Any) -> None:
    if not as_json:
        print(text)
        return
    (training,) = statement.releases
    fields = {**statement.as_dict(), **training.as_dict(), **asked}
    for of_a_run in ("seeded", "warning", "releases", "kind"):
        fields.pop(of_a_run)
    print(json.dumps(fields, indent=2, allow_nan=False))
