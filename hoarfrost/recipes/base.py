"""What all tables of a recipe have in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from hoarfrost.registry.component import Groups, check_groups


class Table(BaseModel):
    """A table of a recipe: its keys and no others, of exactly these types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
    # Keys that say one thing in different ways: of each group exactly one is said, or at most one.
    _one_of: ClassVar[Groups] = ()
    _at_most_one: ClassVar[Groups] = ()

    @model_validator(mode="after")
    def _says_one_thing_once(self) -> Table:
        check_groups(self._one_of, self._at_most_one, {key for key, value in self if value is not None})
        return self
