"""Problems of a configuration, found all at once and said in words, each with its path and line.

`ProblemReport` gathers them; `choice` and `find_card` check what the catalogue's cards offer. Read rules.py
for what is checked where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from rankdeck.base.errors import Problem, closest, did_you_mean, one_of
from rankdeck.config.catalog import DATA, LOSSES, MODELS, OPTIMIZERS, SCHEDULES, STRATEGIES, CatalogCard
from rankdeck.config.schema import Choice
from rankdeck.config.toml_lines import Place, line_of

CARDS: dict[Place, tuple[str, Mapping[str, CatalogCard]]] = {
    ("model",): ("model", MODELS),
    ("data",): ("data set", DATA),
    ("loss",): ("loss", LOSSES),
    ("train", "optimizer"): ("optimizer", OPTIMIZERS),
    ("train", "schedule"): ("schedule", SCHEDULES),
    ("strategy",): ("strategy", STRATEGIES),
}
FILL_IN = "?"
"""What a configuration has in the place of a value that only the person knows."""
OWN_CODE = {("model",), ("data",), ("loss",), ("train", "optimizer")}


class ProblemReport:
    """Problems found so far, each with the line of its path."""

    def __init__(self, lines: dict[Place, int | None], problems: list[Problem]) -> None:
        self.lines = lines
        self.problems = list(problems)

    def add(
        self,
        code: str,
        place: Place,
        message: str,
        advice: str | None = None,
        cure: Mapping[str, Any] | None = None,
    ) -> None:
        self.take(Problem(code, message, path=".".join(place), advice=advice, cure=dict(cure or {})))

    def take(self, problem: Problem) -> None:
        """A problem that another room found, with the line of its path."""
        line = line_of(self.lines, tuple((problem.path or "").split(".")))
        self.problems.append(msgspec.structs.replace(problem, line=line))

    def validate(
        self, table_type: type[BaseModel], place: Place, values: Any, owner: str = ""
    ) -> BaseModel | None:
        if not isinstance(values, dict):
            self.add(
                "wrong-type",
                place,
                f"{'.'.join(place)} must be a table.",
                f"Write [{'.'.join(place)}] above its options.",
            )
            return None
        try:
            return table_type.model_validate(values)
        except ValidationError as error:
            for item in error.errors():
                # A union or a tuple adds names of types to the place; only keys and indices are a person's.
                inner = tuple(
                    str(part) for part in item["loc"] if str(part).isidentifier() or isinstance(part, int)
                )
                self._add_pydantic(table_type, place + inner, item, owner)
            return None

    def _add_pydantic(self, table_type: type[BaseModel], place: Place, item: Any, owner: str) -> None:
        dotted, kind = ".".join(place), item["type"]
        if kind == "extra_forbidden":
            known = [name for name in table_type.model_fields if name != "options"]
            whose = f" of {owner}" if owner else ""
            advice = did_you_mean(place[-1], known) or (
                f"Known: {one_of(known)}." if known else "It has no options."
            )
            cure = {dotted: None}
            if (meant := closest(place[-1], known)) is not None:
                cure[".".join((*place[:-1], meant))] = item["input"]
            self.add("unknown-option", place, f"{dotted} is not an option{whose}.", advice, cure)
        elif kind == "missing":
            self.add("missing", place, f"{dotted} is missing.", f"Add {place[-1]} = ...")
        else:
            wrong, right = _words(kind, item)
            value = None if any(part.isdigit() for part in place) else _nearest(kind, item)
            cure = {} if value is None else {dotted: value}
            self.add("wrong-value", place, f"{dotted} = {_shown(item['input'])} {wrong}.", right, cure)


def fill_ins_told(report: ProblemReport, tables: dict[str, Any], place: Place = ()) -> dict[str, Any]:
    """The tables without what is still to be filled in, which is told."""
    filled = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            filled[key] = fill_ins_told(report, value, (*place, key))
        elif value != FILL_IN:
            filled[key] = value
        else:
            here = (*place, key)
            message = f"{'.'.join(here)} is still to be filled in."
            advice = f'Write what belongs there instead of "{FILL_IN}"; comments near it may say more.'
            report.add("fill-in", here, message, advice)
    return filled


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


_FORMS = {
    "int": ("is not a whole number", "Write a whole number, as in 32."),
    "float": ("is not a number", "Write a number, as in 0.1."),
    "finite": ("is not a finite number", "Write a number, as in 0.1."),
    "bool": ("is neither true nor false", "Write true or false."),
    "string": ("is not text in quotes", 'Write text in quotes, as in "gpt".'),
    "list": ("is not a list", "Write a list, as in [256, 256]."),
    "tuple": ("is not a list", "Write a list, as in [0.9, 0.999]."),
    "dict": ("is not a table", "Write a table, as in { layers = 4 }."),
    "model": ("is not a table", "Write a table, as in { layers = 4 }."),
}
"""What is wrong and what to write, by the first word of pydantic's type of an error."""
_BOUNDS = {
    "greater_than_equal": ("is too small", "at least", "ge"),
    "greater_than": ("is too small", "more than", "gt"),
    "less_than_equal": ("is too large", "at most", "le"),
    "less_than": ("is too large", "less than", "lt"),
}
_LENGTHS = {"too_short": "has too few entries", "too_long": "has too many entries"}


def _choices(item: Any) -> list[str]:
    expected: str = item["ctx"]["expected"].replace("'", "")
    return expected.replace(" or ", ", ").split(", ")


def _nearest(kind: str, item: Any) -> Any:
    """The value that is allowed and nearest to what was given, where there is one."""
    if kind == "literal_error":
        return closest(str(item["input"]), _choices(item)) if isinstance(item["input"], str) else None
    return item["ctx"][_BOUNDS[kind][2]] if kind.endswith("_equal") and kind in _BOUNDS else None


def _words(kind: str, item: Any) -> tuple[str, str | None]:
    """(what is wrong with a value, what to write instead)."""
    context = item.get("ctx", {})
    if kind == "literal_error":
        choices = context["expected"].replace("'", "")
        close = did_you_mean(str(item["input"]), _choices(item))
        return "is not one of the choices", f"{close + ' ' if close else ''}Use {choices}."
    if kind in _BOUNDS:
        wrong, words, bound = _BOUNDS[kind]
        return wrong, f"Use {words} {context[bound]}."
    other = _LENGTHS.get(kind, f"is not valid ({item['msg']})")
    return _FORMS.get(kind.partition("_")[0], (other, None))


def find_card(
    report: ProblemReport, place: Place, what: str, cards: Mapping[str, CatalogCard], use: str
) -> CatalogCard | None:
    """The card that `use` names; None, with the problem in `report`, where there is no such card."""
    card = cards.get(use)
    if card is None:
        advice = did_you_mean(use, cards) or f"Use {one_of(cards)}."
        if place in OWN_CODE:
            advice += ' Your own is written "module:name".'
        key, meant = (*place, "use"), closest(use, cards)
        cure = None if meant is None else {".".join(key): meant}
        report.add("unknown-choice", key, f'There is no {what} called "{use}".', advice, cure)
    return card


def choice(report: ProblemReport, place: Place, values: Any, default: str) -> Choice | None:
    """The card that the table names, or the default, with its options, validated.

    None where something is wrong with them, which is in `report` then.
    """
    dotted = ".".join(place)
    what, cards = CARDS[place]
    if isinstance(values, str):
        values = {"use": values}
    if not isinstance(values, dict):
        report.add(
            "wrong-type",
            place,
            f"{dotted} must be a table.",
            f'Write {dotted} = {{ use = "{next(iter(cards))}" }}.',
        )
        return None
    use = values.get("use", default)
    if not isinstance(use, str):
        report.add(
            "wrong-type", (*place, "use"), f"{dotted}.use is not text in quotes.", f"Use {one_of(cards)}."
        )
        return None
    given = {key: value for key, value in values.items() if key != "use"}
    if ":" in use and place in OWN_CODE:
        return Choice(use=use, options=given)
    card = find_card(report, place, what, cards, use)
    if card is None:
        return None
    for key in [key for key in given if key not in card.options.model_fields]:
        owners = one_of(other.name for other in cards.values() if key in other.options.model_fields)
        if owners:
            del given[key]
            message = f"{dotted}.{key} is an option of {owners}, not of {use}."
            advice = f"Leave it out, or set {dotted}.use to {owners}."
            report.add("foreign-option", (*place, key), message, advice, {f"{dotted}.{key}": None})
    options = report.validate(card.options, place, given, owner=f"{what} {use}")
    if options is None:
        return None
    return Choice(use=use, options=options.model_dump(exclude_none=True, mode="json"))
