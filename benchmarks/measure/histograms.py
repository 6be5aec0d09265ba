"""How long gradients are at the first, the middle and the last step, with and without random freezing."""

import argparse

from benchmarks.measure.arms import DENSE, FASHION, SHORT, Rows, missing, trained

MEASURE = "measure=[{kind='clipping', every=30}]"
ARMS = {
    "nothing frozen": (DENSE,),
    "Random 0.9": ("freeze={kind='random', rate=0.9, cooling=4}",),
}


def main(options: argparse.Namespace) -> None:
    """Trains the arms; draw their folders with `hoarfrost measure histogram`."""
    rows = Rows("histograms", options)
    for arm, seed in missing(rows, ARMS, options):
        result, found = trained("histograms", arm, seed, FASHION, (*SHORT, *ARMS[arm], MEASURE), options)
        looks = found["clipping"]
        chosen = {"first": looks[0], "middle": looks[len(looks) // 2], "last": looks[-1]}
        kept = ("step", "bounds", "share_clipped", "histogram", "R", "alignment", "alignment_bound")
        rows.add(
            {
                "arm": arm, "seed": seed, "accuracy": result.test_accuracy,
                **{name: {key: row[key] for key in kept} for name, row in chosen.items()},
            }
        )  # fmt: skip
