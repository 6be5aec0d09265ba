"""``python -m hoarfrost``: the command line."""

from hoarfrost.cli import main

if __name__ == "__main__":
    main()
