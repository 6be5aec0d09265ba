"""When to freeze the lower half of the layers, and how many layers to freeze from the middle of the run on."""

import argparse

from benchmarks.measure.arms import DENSE, FASHION, SHORT, Rows, missing, trained

ARMS = {
    "nothing frozen": (DENSE,),
    **{
        f"2 layers from {share} on": (f"freeze={{kind='layers', first=2, fraction={share}}}",)
        for share in (0.0, 0.25, 0.5, 0.75, 0.9)
    },
    **{f"{first} layers from 0.5 on": (f"freeze={{kind='layers', first={first}, fraction=0.5}}",) for first in (1, 3)},
}


def main(options: argparse.Namespace) -> None:
    """Trains the arms. "2 layers from 0.5 on" is in both sweeps."""
    rows = Rows("when_to_freeze", options)
    for arm, seed in missing(rows, ARMS, options):
        result, _ = trained("when_to_freeze", arm, seed, FASHION, (*SHORT, *ARMS[arm]), options)
        rows.add({"arm": arm, "seed": seed, "accuracy": result.test_accuracy, "density": result.density})
