"""From half of the budget on only layer k is trained, and the last one: which layer still gains?"""

import argparse

from benchmarks.measure.arms import DENSE, FASHION, SHORT, Rows, missing, trained

EPSILON = 1.5  # spent before all other layers are frozen, of 3
LAYERS = ("0", "3", "7", "9")  # of the network's Sequential, the last of them its output
LAST = LAYERS[-1]
ARMS = {
    "all layers": (DENSE,),
    **{
        f"layer {number}": (f"freeze={{kind='layers', train=['{name}', '{LAST}'], epsilon={EPSILON}}}",)
        for number, name in enumerate(LAYERS, 1)
    },
}


def main(options: argparse.Namespace) -> None:
    """Trains the arms; their folders' metrics.jsonl have the accuracy after every epoch."""
    rows = Rows("one_layer", options)
    for arm, seed in missing(rows, ARMS, options):
        overrides = (*SHORT, "loop.evaluate_every=1", *ARMS[arm])
        if options.quick and arm != "all layers":
            overrides = (*overrides, "freeze.step=2")
        result, _ = trained("one_layer", arm, seed, FASHION, overrides, options)
        rows.add({"arm": arm, "seed": seed, "accuracy": result.test_accuracy, "density": result.density})
