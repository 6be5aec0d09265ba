"""python -m benchmarks.measure NAME [--quick]: adds what is missing to benchmarks/results/measure/NAME.json."""

import argparse
from importlib import import_module
from pathlib import Path

import torch

HELPERS = {"__init__", "__main__", "arms", "rows", "spread", "tables", "ways"}
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)


def main() -> None:
    """One measurement after the other, on one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it works; nothing is kept")
    parser.add_argument("--seed", type=int, action="append", help="default: what each script says")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        import_module(f"benchmarks.measure.{name}").main(options)


if __name__ == "__main__":
    main()
