"""Who is compared with whom. Every arm is a built-in recipe with some values replaced.

Clipping styles are compared in `benchmarks.accuracy.clipping`.
"""

from dataclasses import dataclass

SEEDS = (1, 2, 3)
DENSE = "freeze=none"  # takes the recipe's [freeze] out


@dataclass(frozen=True)
class Runs:
    """Arms that are trained apart from each other."""

    title: str
    recipe: str
    arms: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Branches:
    """DP-SGD, and for each of these numbers of steps a branch that leaves it a few steps earlier, with layers frozen.

    Up to there the two are the same, noise included; the last steps of the branch have batches and noise of their own.
    A branch is what the recipe trains if it is told to end there.
    """

    title: str
    recipe: str
    ends: dict[str, int]  # the budget by the paper's account, and its number of steps
    last: int = 20


EXPERIMENTS: dict[str, Runs | Branches] = {
    "layers-mnist": Branches("MNIST", "mnist-layers", {"1": 138, "2": 543, "3": 1163}),
    "layers-fashion-mnist": Branches("Fashion-MNIST", "fashion-mnist-layers", {"1": 187, "2": 715, "3": 1519}),
    "random-fashion-mnist": Runs(
        "Fashion-MNIST, ε 3",
        "fashion-mnist-random",
        {
            "DP-SGD": (DENSE, "privacy.epochs=20"),
            "DP-SGD, as long as the others": (DENSE,),
            "Random 0.5": ("freeze.rate=0.5",),
            "Random 0.7": ("freeze.rate=0.7",),
            "Random 0.9": (),
            "Random 0.9, redrawn at every step": ("freeze.redraw=step",),
            "Ranked 0.9": ("freeze.kind=ranked",),
        },
    ),
    "pruned-fashion-mnist": Runs(
        "Fashion-MNIST, LeNet, ε 1",
        "fashion-mnist-pruned",
        {
            "DP-SGD": (DENSE,),
            **{f"{1 - keep:.1f} pruned by public MNIST": (f"freeze.keep={keep}",) for keep in (0.7, 0.5, 0.3)},
            **{
                f"{1 - keep:.1f} pruned by the private data, not private": (
                    f"freeze.keep={keep}", "freeze.public=fashion-mnist", "freeze.private=false",
                )
                for keep in (0.7, 0.5, 0.3)
            },
        },
    ),
}  # fmt: skip
