"""The file with which a run tells its calibration."""

import json
import os
from pathlib import Path

from hoarfrost.errors import InvalidValue
from hoarfrost.measure.calibration import Calibration
from hoarfrost.untrusted import line, shown_path, size_of

FILE = "calibration.json"
MOST_BYTES = 1 << 20


def read_calibration(folder: Path) -> Calibration:
    """The calibration on the test set that `hoarfrost train` left in a run folder. The file may come from anybody.

    >>> read_calibration(Path("runs/absent"))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: there is no run folder at runs/absent; give a folder that `hoarfrost train` made
    """
    where, path = shown_path(folder), folder / FILE
    if not os.path.isdir(folder):
        raise InvalidValue(f"there is no run folder at {where}; give a folder that `hoarfrost train` made")
    if not os.path.exists(path) and not os.path.isfile(folder / "recipe.toml"):
        raise InvalidValue(f"{where} is not a run folder: there is no recipe.toml in it")
    if not os.path.exists(path):
        raise InvalidValue(
            f"{where} has no {FILE}: `hoarfrost train` writes it when the run of a classifier ends. Finish or repeat "
            "the run, or leave it out if it is a regression"
        )
    if size_of(path, "calibration") > MOST_BYTES:
        raise InvalidValue(f"{shown_path(path)} is too large to be a calibration")
    try:
        return Calibration.from_dict(json.loads(path.read_text("utf-8")))
    except InvalidValue as error:
        raise InvalidValue(line(f"{shown_path(path)}: {error}")) from error
    except (ValueError, RecursionError) as error:  # ValueError: neither UTF-8 nor JSON
        raise InvalidValue(f"{shown_path(path)} is not JSON") from error
    except OSError as error:
        raise InvalidValue(f"cannot read {shown_path(path)}: {error.strerror}") from error
