"""A recipe small enough to run in a test, and how to vary it."""

from typing import Any

from hoarfrost.train import Recipe

# The noise is given and RDP is the accountant, so that nothing is calibrated.
TINY: dict[str, dict[str, Any]] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "optimizer": {"kind": "sgd", "lr": 0.5},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 300, "steps": 7, "accountant": "rdp"},
    "loop": {"threads": 1},
}


def tiny(**changes: Any) -> Recipe:
    """The tiny recipe with keys replaced: ``tiny(privacy__steps=3)``. None takes a key out."""
    given = {table: dict(entries) for table, entries in TINY.items()}
    for key, value in changes.items():
        table, _, entry = key.partition("__")
        if entry:
            given.setdefault(table, {})[entry] = value
        else:
            given[table] = dict(value) if isinstance(value, dict) else value  # not the caller's own
    return Recipe.model_validate(
        {
            table: {key: value for key, value in entries.items() if value is not None}
            if isinstance(entries, dict)
            else entries
            for table, entries in given.items()
        }
    )


# Tables of a recipe file, as text.
GOOD = {
    "data": 'name = "digits"',
    "model": 'name = "mlp"\nhidden = [8]',
    "optimizer": 'kind = "sgd"\nlr = 0.5',
    "privacy": 'noise_multiplier = 1.0\ndelta = 1e-4\nbatch_size = 2\nsteps = 1\naccountant = "rdp"',
}


def changed(top: str = "", **tables: str) -> str:
    """A recipe that is as it should be, but for these tables."""
    return "\n".join([top, *(f"[{table}]\n{entries}" for table, entries in (GOOD | tables).items())]) + "\n"
