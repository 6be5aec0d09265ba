"""What a recipe may say. An unknown key, a wrong type or an impossible value is refused before anything runs.

The tables that choose a component (``[clip] kind = "local"``) are made from what is registered: `hoarfrost.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from hoarfrost.errors import InvalidValue
from hoarfrost.recipes.base import Table as Table
from hoarfrost.recipes.data import Data as Data
from hoarfrost.recipes.tables import Augment as Augment
from hoarfrost.recipes.tables import Loop as Loop
from hoarfrost.recipes.tables import Privacy as Privacy
from hoarfrost.registry import Component, components
from hoarfrost.registry.component import EMPTY, Groups
from hoarfrost.registry.docstrings import meanings
from hoarfrost.registry.types import MOST_ENTRIES, File, Label, recipe_type

LONGEST_NAME = 50  # a folder is named after it

KEYS = {"model": "name"}  # the key that chooses a component; "kind" in other tables, and "kind" is understood in all
DEFAULTS = {"clip": "local", "loss": "cross_entropy"}  # what is chosen where a table does not say


class ComponentTable(Table):
    """A table that chooses a component. Its other keys are the component's arguments."""

    _component: ClassVar[Component]

    @model_validator(mode="after")
    def _what_the_component_refuses(self) -> ComponentTable:
        self._component.check_keys(_built(_arguments(self), self._component.table))
        return self


def build(wanted: ComponentTable, at: str, **given: Any) -> Any:
    """The component that a table chooses; ``at`` is the table's place in the recipe, for messages.

    >>> build(table("clip", "local")(norm=0.5), "clip")
    Local(norm=0.5)
    """
    return wanted._component.build(at, _built(_arguments(wanted), at), **given)


def _built(arguments: dict[str, Any], at: str) -> dict[str, Any]:
    """Arguments with the components in place of the tables that choose them."""

    def each(value: Any, where: str) -> Any:
        if isinstance(value, ComponentTable):
            return build(value, where)
        if isinstance(value, tuple):
            return tuple(each(entry, f"{where}[{number}]") for number, entry in enumerate(value))
        if isinstance(value, dict):
            return {key: each(entry, f"{where}.{key}") for key, entry in value.items()}
        return value

    return {name: each(value, f"{at}.{name}") for name, value in arguments.items()}


def table(name: str, kind: str) -> type[ComponentTable]:
    """The table ``name`` of a recipe, as it is where it chooses ``kind``.

    >>> table("freeze", "random")(rate=0.9).model_dump(include={"kind", "rate", "cooling"})
    {'kind': 'random', 'rate': 0.9, 'cooling': None}
    """
    return _table_of(components(name)[kind])


@cache
def _table_of(of: Component) -> type[ComponentTable]:
    fields: dict[str, Any] = {KEYS.get(of.table, "kind"): (Literal[of.kind], of.kind)}
    for argument in of.arguments:
        fields[argument.name] = (
            recipe_type(argument.type, _choosing),
            ... if argument.default is EMPTY else argument.default,
        )
    if of.table == "freeze":
        fields["also"] = (Freeze | None, None)
    made = create_model(f"{of.table}-{of.kind}", __base__=ComponentTable, __doc__=of.summary, **fields)
    made._component, made._one_of, made._at_most_one = of, of.one_of, of.at_most_one
    return made


def _choosing(table: str) -> Any:
    return Annotated[Any, Chooses(table), Label(f"table such as [{table}]")]


def _arguments(wanted: ComponentTable) -> dict[str, Any]:
    """What is said, or has a default."""
    names = [argument.name for argument in wanted._component.arguments]
    return {name: value for name in names if (value := getattr(wanted, name)) is not None}


@dataclass(frozen=True)
class Chooses:
    """Marks a key of a recipe that is the table of a component. Looks at what is registered when a recipe is checked:
    a component may have been registered since.
    """

    table: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.chosen, core_schema.any_schema())

    def chosen(self, given: Any) -> ComponentTable:
        """The table, checked."""
        if isinstance(given, ComponentTable) and given._component.table == self.table:
            return given
        if not isinstance(given, Mapping):
            raise PydanticKnownError("dict_type")
        key, given = KEYS.get(self.table, "kind"), renamed(self.table, given)
        kind = given.get(key, DEFAULTS.get(self.table))
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": repr(key)})
        found = self.table_of(kind)
        if found is None:
            tags = ", ".join(map(repr, components(self.table)))
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": repr(key), "tag": str(kind), "expected_tags": tags}
            )
        return found.model_validate(given)

    def table_of(self, kind: object) -> type[ComponentTable] | None:
        """The table where it chooses ``kind``; None if there is no such component."""
        known = components(self.table)
        return _table_of(known[kind]) if isinstance(kind, str) and kind in known else None


def renamed(table: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of a table that chooses a component, with "kind" under the name that this table has for it.

    >>> renamed("model", {"kind": "mlp", "hidden": [8]})
    {'hidden': [8], 'name': 'mlp'}
    """
    key = KEYS.get(table, "kind")
    if key in given or "kind" not in given:
        return given
    return {name: value for name, value in given.items() if name != "kind"} | {key: given["kind"]}


Model = Annotated[Any, Chooses("model")]
Peft = Annotated[Any, Chooses("peft")]
Loss = Annotated[Any, Chooses("loss")]
Optimizer = Annotated[Any, Chooses("optimizer")]
Schedule = Annotated[Any, Chooses("schedule")]
Clip = Annotated[Any, Chooses("clip")]
Freeze = Annotated[Any, Chooses("freeze")]
Measures = Annotated[
    tuple[Annotated[Any, Chooses("measure")], ...],
    Field(strict=False, min_length=1, max_length=MOST_ENTRIES),
    Label("tables such as [[measure]]"),
]


def meaning(of: type[Table], key: str) -> str:
    """What a key of a table means, as a docstring says it.

    >>> meaning(table("clip", "local"), "kind")
    'Gradients longer than ``norm`` are shortened to it: factor min(1, C/‖g‖).'
    """
    if not issubclass(of, ComponentTable):
        return meanings(of.__doc__)[key]
    if key == "also":
        return "a second freezer: what either of them freezes is frozen."
    said = {argument.name: argument.meaning for argument in of._component.arguments}
    return said.get(key, of._component.summary)


def load_tokenizer(wanted: ComponentTable) -> Any:
    """The tokenizer of the model that a recipe chooses; the model's keys are its arguments."""
    return wanted._component.load_tokenizer("model", _arguments(wanted))


def build_what_needs_no_data(recipe: Recipe) -> None:
    """Lets the components refuse what their constructors check, as far as they are built from the recipe alone.

    >>> from hoarfrost.recipes import read_recipe
    >>> build_what_needs_no_data(read_recipe("digits", ["freeze.kind=layers", "freeze.first=1.5"]))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: freeze.first is a number of layers, or a share below 1, got 1.5
    """
    for at, chosen in recipe:
        while isinstance(chosen, ComponentTable):
            if not chosen._component.given:
                build(chosen, at)
            at, chosen = f"{at}.also", getattr(chosen, "also", None)


def alternatives(name: str) -> Groups:
    """Keys of a table that say one thing in different ways, whatever it chooses.

    >>> alternatives("freeze")
    (('first', 'names', 'train'), ('step', 'fraction', 'epoch', 'epsilon'), ('public', 'reference'))
    """
    return tuple(group for each in forms(name) for group in (*each._one_of, *each._at_most_one))


def file_keys(name: str) -> tuple[str, ...]:
    """The keys of a table that are paths of files, whatever it chooses.

    >>> file_keys("data"), file_keys("freeze"), file_keys("loop")
    (('path', 'test'), ('path', 'reference'), ())
    """
    fields = ((key, field) for each in forms(name) for key, field in each.model_fields.items())
    return tuple(key for key, field in fields if any(isinstance(part, File) for part in _parts(field)))


def forms(name: str) -> tuple[type[Table], ...]:
    """What a table of the recipe can look like: one form, or one for each component that it can choose.

    >>> forms("privacy"), forms("name"), "clip-local" in [form.__name__ for form in forms("clip")]
    ((<class 'hoarfrost.recipes.tables.Privacy'>,), (), True)
    """
    mark = _table_or_choice(Recipe, name)
    if isinstance(mark, Chooses):
        return tuple(map(_table_of, components(mark.table).values()))
    return () if mark is None else (mark,)


def several(name: str) -> bool:
    """Whether a recipe may have several tables of that name.

    >>> several("measure"), several("clip")
    (True, False)
    """
    return any(get_origin(part) is tuple for part in _parts(Recipe.model_fields[name]))


def table_at(above: type[Table], key: str, given: Any) -> type[Table] | None:
    """The table that stands under a key; of a component, the one that the given table chooses. None if there is none.

    >>> table_at(Recipe, "privacy", {}), table_at(Recipe, "name", "x")
    (<class 'hoarfrost.recipes.tables.Privacy'>, None)
    """
    mark = _table_or_choice(above, key)
    if not isinstance(mark, Chooses):
        return mark
    if not isinstance(given, Mapping):
        return None
    return mark.table_of(renamed(mark.table, given).get(KEYS.get(mark.table, "kind"), DEFAULTS.get(mark.table)))


def _table_or_choice(above: type[Table], key: str) -> type[Table] | Chooses | None:
    field = above.model_fields.get(key)
    for each in () if field is None else _parts(field):
        if isinstance(each, Chooses) or (isinstance(each, type) and issubclass(each, Table)):
            return each
    return None


def _parts(field: FieldInfo) -> Iterator[Any]:
    """What a key's type is made of, and what marks it."""
    waiting = [field.annotation, *field.metadata]
    while waiting:
        yield (each := waiting.pop(0))
        waiting += get_args(each)


_TEXTS = 'take model.name = "transformers"'


class Recipe(Table):
    """One training run.

    Args:
        name: the name of the run; by default that of the recipe's file. The run folder is named after it.
        data: what is trained on.
        augment: random changes to the training images; none without this table.
        model: what is trained.
        peft: adapters that are put into a pretrained model, and trained with its head while all else is frozen; none
            without this table.
        loss: what is minimized: it decides whether classes or real numbers are learned.
        optimizer: how the weights move.
        schedule: how the learning rate changes; not at all without this table.
        clip: how the examples' gradients are clipped.
        freeze: which coordinates do not move, and when; all move without this table.
        privacy: the budget.
        measure: what is measured on the way, without noise, into ``not-private/measure.jsonl``; nothing without it. No
            epsilon covers that file.
        loop: what changes neither the guarantee nor the budget.

    >>> Recipe.model_validate({
    ...     "data": {"name": "digits"}, "model": {"name": "mlp"}, "optimizer": {"kind": "sgd", "lr": 1.0},
    ...     "privacy": {"epsilon": 3.0, "delta": 1e-4, "batch_size": 250, "epochs": 20},
    ... }).clip.norm
    1.0
    """

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$", max_length=LONGEST_NAME), Label("text")] = "run"
    data: Data
    augment: Augment | None = None
    model: Model
    peft: Peft | None = None
    loss: Loss = Field(default_factory=lambda: table("loss", DEFAULTS["loss"])())
    optimizer: Optimizer
    schedule: Schedule | None = None
    clip: Clip = Field(default_factory=lambda: table("clip", DEFAULTS["clip"])())
    freeze: Freeze | None = None
    privacy: Privacy
    measure: Measures | None = None
    loop: Loop = Loop()

    @model_validator(mode="after")
    def _people_bring_rows(self) -> Recipe:
        if (self.data.person is None) != (self.privacy.per_person is None):
            raise InvalidValue(
                "data.person (the column that says whose a row is) and privacy.per_person (the most rows of a person "
                "that take part in a step) belong together"
            )
        return self

    @model_validator(mode="after")
    def _texts_have_a_tokenizer(self) -> Recipe:
        of = self.model._component
        if self.data.text is not None and of.tokenizer is None:
            raise InvalidValue(
                f"data.text needs a model with a tokenizer, and model.name = {of.kind} has none: {_TEXTS}"
            )
        if self.data.text is None and of.tokenizer is not None:
            raise InvalidValue(
                f"model.name = {of.kind} reads texts: say which column of a table holds them (data.text)"
            )
        if self.data.text is not None and self.augment is not None:
            raise InvalidValue("augment changes images, and data.text is for texts: leave out one of them")
        return self

    @model_validator(mode="after")
    def _adapters_have_a_place(self) -> Recipe:
        of = self.model._component
        if self.peft is not None and "adapters" not in of.given:
            raise InvalidValue(f"peft is for pretrained models, and model.name is {of.kind}: {_TEXTS}")
        if self.peft is not None and getattr(self.model, "train", None) is not None:
            raise InvalidValue("model.train and peft both say what is trained: leave out one of them")
        return self

    @model_validator(mode="after")
    def _speed_has_something_to_work_on(self) -> Recipe:
        if self.loop.group_by_length and (self.data.text is None or self.loop.max_physical_batch is None):
            raise InvalidValue(
                "loop.group_by_length puts texts of like length into the same chunk: it needs data.text, and "
                "loop.max_physical_batch, which says how many examples a chunk may have"
            )
        if self.loop.cache_frozen and self.peft is None and getattr(self.model, "train", None) is None:
            raise InvalidValue(
                "loop.cache_frozen keeps what layers return that are frozen for the whole run, and here all are "
                f"trained: {_TEXTS}, and say what is trained (model.train)"
            )
        return self

    @model_validator(mode="after")
    def _everything_is_measured_once(self) -> Recipe:
        kinds = [each.kind for each in self.measure or ()]
        twice = [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]
        if twice:
            raise InvalidValue(f"measure names {twice[0]} twice: leave one out")
        return self

    @model_validator(mode="after")
    def _views_differ(self) -> Recipe:
        if self.loop.views > 1 and self.augment is None:
            raise InvalidValue(
                f"loop.views = {self.loop.views} without [augment] would repeat the very same example: say how views "
                "differ, such as augment.shift = 1"
            )
        return self
