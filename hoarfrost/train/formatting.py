"""How figures are told to a person. Epsilon is always rounded up."""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from hoarfrost.budget import Statement
from hoarfrost.budget.statement import PERSON

SEEDED = "seeded: do not release"
LABELS = {"ece": "ECE", "mse": "MSE", "r2": "R²"}
BESIDE = {"accuracy": "ece", "mse": "r2"}  # what is told in brackets after a figure


def epsilon(value: float) -> str:
    """Two decimals, rounded up; two significant digits if it is small.

    >>> epsilon(1.2301), epsilon(3.0), epsilon(0.00412), epsilon(math.inf)
    ('1.24', '3.00', '0.0042', '∞')
    """
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    digits = max(2, 1 - math.floor(math.log10(value)))
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


def spent(now: float, planned: float, seeded: bool) -> str:
    """What was spent, of how much.

    >>> spent(1.2301, 3.0, seeded=True)
    'ε 1.24 of 3.00 (seeded: do not release)'
    """
    warning = f" ({SEEDED})" if seeded else ""
    if math.isinf(planned):
        return f"not private{warning}"
    return f"ε {epsilon(now)} of {epsilon(planned)}{warning}"


def meaning(statement: Statement) -> str:
    """What epsilon and delta promise to the person behind an example.

    >>> from hoarfrost.budget import Gaussian
    >>> print(meaning(Statement.of(Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=2000), delta=1e-5)))
    Whether any one training example was there or not changes the probability
    of any outcome by a factor of at most e^2.76 = 15.8, plus 1e-05.
    """
    if not statement.private:
        return "This is not private: the weights may tell anything about the training examples."
    who = (
        "person was among the training data, with all their rows, or not"
        if statement.unit == PERSON
        else ("training example was there or not")
    )
    power = epsilon(statement.epsilon)
    return (
        f"Whether any one {who} changes the probability\n"
        f"of any outcome by a factor of at most e^{power} = {math.exp(min(float(power), 700)):.3g}, "
        f"plus {statement.delta:g}."
    )


def not_learned_advice(before: float, lowest: float, clip: str) -> str | None:
    """What to say if training hardly helped: the test loss did not fall by a hundredth.

    Args:
        before: the test loss before the first step.
        lowest: the lowest one after an epoch.
        clip: the clipping style, as it describes itself.

    >>> not_learned_advice(2.303, 1.2, "Local(norm=1.0)")
    >>> print(not_learned_advice(2.303, 2.298, "Local(norm=1.0)"))
    the test loss, 2.303 before training, hardly fell: try a smaller learning rate, or a clipping norm that fits the ...
    """
    if lowest < before - abs(before) / 100:
        return None
    if "global" in clip.lower():
        hint = (
            "global clipping may have dropped nearly all gradients, which no figure may show: try a larger norm with a "
            'smaller learning rate, or clip.kind=adaptive with clip.style="global" and clip.quantile=0.9, which finds '
            "the norm"
        )
    elif clip.startswith("Adaptive"):
        hint = "try a smaller learning rate, or a larger clip.quantile"
    else:
        hint = "try a smaller learning rate, or a clipping norm that fits the gradients (clip.kind=adaptive finds one)"
    return f"the test loss, {before:.3f} before training, hardly fell: {hint}"


def duration(seconds: float) -> str:
    """Seconds, or minutes, or hours.

    >>> duration(3.21), duration(75), duration(7300)
    ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float | None) -> str:
    """A share as a percentage.

    >>> percent(0.9562), percent(None)
    ('95.6 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def figure(name: str, value: float | None) -> str:
    """A metric of the test set.

    >>> figure("accuracy", 0.9562), figure("mse", 0.012345), figure("r2", math.nan)
    ('accuracy 95.6 %', 'MSE 0.0123', 'R² –')
    """
    if value is None or not math.isfinite(value):
        text = "–"
    else:
        text = percent(value) if name in ("accuracy", "ece") else f"{value:.3g}"
    return f"{LABELS.get(name, name)} {text}"


def main_figures(metric: str, figures: Mapping[str, float]) -> str:
    """The metric that a task is judged by, and the one beside it if it is known.

    >>> main_figures("accuracy", {"loss": 0.3, "accuracy": 0.9562, "ece": 0.0345}), main_figures("mse", {})
    ('accuracy 95.6 % (ECE 3.5 %)', 'MSE –')
    """
    beside = BESIDE.get(metric, "")
    more = f" ({figure(beside, figures[beside])})" if beside in figures else ""
    return figure(metric, figures.get(metric)) + more


def columns(rows: Sequence[tuple[str, str]]) -> str:
    """Labels on the left, texts on the right, aligned over all their lines."""
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(
        f"{label if first else '':<{width}}{line}"
        for label, text in rows
        for first, line in zip([True] + [False] * text.count("\n"), text.split("\n"), strict=True)
    )
