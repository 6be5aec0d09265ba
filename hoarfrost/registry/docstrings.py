"""What a docstring says: its summary, and the meaning of each argument."""

import inspect
import re
from collections.abc import Mapping

_ARGUMENT = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")


def summary(doc: str | None) -> str:
    """The first paragraph, in one line.

    >>> summary("Clips.\\n\\n    Args:\\n        norm: how far.")
    'Clips.'
    """
    return " ".join(inspect.cleandoc(doc or "").split("\n\n")[0].split())


def meanings(doc: str | None) -> Mapping[str, str]:
    """What stands below "Args:", by name.

    >>> dict(meanings("Clips.\\n\\n    Args:\\n        norm, other: how\\n            far.\\n        last: the end."))
    {'norm': 'how far.', 'other': 'how far.', 'last': 'the end.'}
    """
    found: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(doc or "").splitlines():
        if not line.startswith(" "):
            inside = line == "Args:" or (inside and not line)
        elif inside and (match := _ARGUMENT.fullmatch(line)):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif inside:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found
