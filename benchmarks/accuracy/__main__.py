"""python -m benchmarks.accuracy [EXPERIMENT ...]: trains what is missing in benchmarks/results/accuracy/."""

import argparse
from pathlib import Path

from benchmarks.accuracy import clipping, experiments
from benchmarks.accuracy.experiments import SEEDS
from benchmarks.accuracy.runs import Results, run
from benchmarks.accuracy.tables import FOLDER

EXPERIMENTS = {**experiments.EXPERIMENTS, **clipping.EXPERIMENTS}


def main() -> None:
    """One experiment after the other, on one core; start a second process for other experiments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="*", choices=[*EXPERIMENTS, []], help=", ".join(EXPERIMENTS))
    parser.add_argument("--seed", type=int, action="append", help=f"default: {SEEDS}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the results are")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.experiments or EXPERIMENTS:
        run(EXPERIMENTS[name], Results(arguments.folder / f"{name}.json"), arguments.seed or SEEDS)


if __name__ == "__main__":
    main()
