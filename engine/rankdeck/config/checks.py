"""Problems of a configuration, found all at once and said in words, each with its path and line.

`ProblemReport` gathers them; `choice` and `find_card` check what the catalogue's cards offer. Read rules.py
for what is checked where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from pydantic import BaseModel, ValidationError

from rankdeck.base.errors import Problem, closest, did_you_mean, one_of
from rankdeck.base.parsing import Place, TomlTable, line_of
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.config.catalog import DATA, LOSSES, MODELS, OPTIMIZERS, SCHEDULES, STRATEGIES, CatalogCard
from rankdeck.config.schema import Choice

CARDS: dict[Place, tuple[str, Mapping[str, CatalogCard]]] = {
    ("model",): ("model", MODELS),
    ("data",): ("data set", DATA),
    ("loss",): ("loss", LOSSES),
    ("train", "optimizer"): ("optimizer", OPTIMIZERS),
    ("train", "schedule"): ("schedule", SCHEDULES),
    ("strategy",): ("strategy", STRATEGIES),
}
_NOT_AN_OPTION: dict[Place, str] = {
    ("model",): marked("{option} is not an option of model {use}."),
    ("data",): marked("{option} is not an option of data set {use}."),
    ("train", "optimizer"): marked("{option} is not an option of optimizer {use}."),
    ("train", "schedule"): marked("{option} is not an option of schedule {use}."),
    ("strategy",): marked("{option} is not an option of strategy {use}."),
}
OTHER_NAMES = {
    "batch_size": "train.global_batch",
    "lr": "train.optimizer.lr",
    "learning_rate": "train.optimizer.lr",
}
"""Other programs' names for options of ours."""
_NO_CARD: dict[Place, str] = {
    ("model",): marked('There is no model called "{use}".'),
    ("data",): marked('There is no data set called "{use}".'),
    ("loss",): marked('There is no loss called "{use}".'),
    ("train", "optimizer"): marked('There is no optimizer called "{use}".'),
    ("train", "schedule"): marked('There is no schedule called "{use}".'),
    ("strategy",): marked('There is no strategy called "{use}".'),
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
        self,
        table_type: type[BaseModel],
        place: Place,
        values: Any,
        card: tuple[Place, str] | None = None,
    ) -> BaseModel | None:
        """None where something is wrong with the table. `card` is whose options these are: its place and its
        name.
        """
        if not isinstance(values, dict):
            dotted = ".".join(place)
            message = phrase("{option} must be a table.", option=dotted)
            self.add("wrong-type", place, message, phrase("Write [{table}] above its options.", table=dotted))
            return None
        try:
            return table_type.model_validate(_without_booleans(table_type, values))
        except ValidationError as error:
            for item in error.errors():
                # A union or a tuple adds names of types to the place; only keys and indices are a person's.
                inner = tuple(
                    str(part) for part in item["loc"] if str(part).isidentifier() or isinstance(part, int)
                )
                if item["type"] == "extra_forbidden":
                    self._add_unknown(table_type, place + inner, item, card)
                else:
                    self._add_pydantic(place + inner, item)
            return None

    def check_own_code(self, place: Place, use: str) -> bool:
        """Whether `use` can name a person's own code; what it names is looked for once the run begins."""
        module, _, name = use.rpartition(":")
        is_file = module.endswith(".py") and "\0" not in module
        if name.isidentifier() and (is_file or all(part.isidentifier() for part in module.split("."))):
            return True
        message = phrase(
            "{option} = {value} names no code.", option=".".join((*place, "use")), value=_shown(use)
        )
        advice = phrase('Write "package.module:name" or "path/to/file.py:name".')
        self.add("wrong-value", (*place, "use"), message, advice)
        return False

    def _add_unknown(
        self, table_type: type[BaseModel], place: Place, item: Any, card: tuple[Place, str] | None
    ) -> None:
        dotted = ".".join(place)
        if card is None:
            message = phrase("{option} is not an option.", option=dotted)
        else:
            message = phrase(_NOT_AN_OPTION[card[0]], option=dotted, use=card[1])
        known = [name for name in table_type.model_fields if name != "options"]
        advice = did_you_mean(place[-1], known)
        elsewhere = OTHER_NAMES.get(place[-1].lower()) if card is None else None
        if elsewhere is not None:
            advice = phrase('Did you mean "{word}"?', word=elsewhere)
        if advice is None:
            none = phrase("It has no options.")
            advice = phrase("Known: {names}.", names=one_of(known)) if known else none
        cure = {dotted: None}
        if elsewhere is not None:
            cure[elsewhere] = item["input"]
        elif (meant := closest(place[-1], known)) is not None:
            cure[".".join((*place[:-1], meant))] = item["input"]
        self.add("unknown-option", place, message, advice, cure)

    def _add_pydantic(self, place: Place, item: Any) -> None:
        dotted, kind = ".".join(place), item["type"]
        if kind == "missing":
            message = phrase("{option} is missing.", option=dotted)
            self.add("missing", place, message, phrase("Add {key} = ...", key=place[-1]))
            return
        wrong, right = _words(dotted, item)
        value = None if any(part.isdigit() for part in place) else _nearest(kind, item)
        cure = {} if value is None else {dotted: value}
        self.add("wrong-value", place, wrong, right, cure)


def fill_ins_told(report: ProblemReport, tables: TomlTable, place: Place = ()) -> TomlTable:
    """The tables without what is still to be filled in, which is told."""
    filled = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            filled[key] = fill_ins_told(report, value, (*place, key))
        elif value != FILL_IN:
            filled[key] = value
        else:
            here = (*place, key)
            message = phrase("{option} is still to be filled in.", option=".".join(here))
            advice = phrase(
                'Write what belongs there instead of "{mark}"; comments near it may say more.', mark=FILL_IN
            )
            report.add("fill-in", here, message, advice)
    return filled


class _Boolean:
    """true or false where a number belongs: pydantic takes them for 1 and 0."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __str__(self) -> str:
        return str(self._value).lower()


def _without_booleans(table_type: type[BaseModel], values: Mapping[str, object]) -> dict[str, object]:
    fields = table_type.model_fields
    return {
        key: _marked(value) if key in fields and not _takes_booleans(fields[key].annotation) else value
        for key, value in values.items()
    }


def _marked(value: Any) -> Any:
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return _Boolean(value) if isinstance(value, bool) else value


def _takes_booleans(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_booleans, get_args(annotation)))


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


_NOT_A_LIST = marked("{option} = {value} is not a list.")
_NOT_A_NUMBER = marked("{option} = {value} is not a number."), phrase("Write a number, as in 0.1.")
_NOT_A_TABLE = (
    marked("{option} = {value} is not a table."),
    phrase("Write a table, as in {table}.", table="{ layers = 4 }"),
)
_FORMS = {
    "int": (
        marked("{option} = {value} is not a whole number."),
        phrase("Write a whole number, as in 32."),
    ),
    "float": _NOT_A_NUMBER,
    "finite": (marked("{option} = {value} is not a finite number."), _NOT_A_NUMBER[1]),
    "bool": (marked("{option} = {value} is neither true nor false."), phrase("Write true or false.")),
    "string": (
        marked("{option} = {value} is not text in quotes."),
        phrase('Write text in quotes, as in "gpt".'),
    ),
    "list": (_NOT_A_LIST, phrase("Write a list, as in [256, 256].")),
    "tuple": (_NOT_A_LIST, phrase("Write a list, as in [0.9, 0.999].")),
    "dict": _NOT_A_TABLE,
    "model": _NOT_A_TABLE,
}
"""What is wrong and what to write, by the first word of pydantic's type of an error."""
_TOO_SMALL = marked("{option} = {value} is too small.")
_TOO_LARGE = marked("{option} = {value} is too large.")
_BOUNDS = {
    "greater_than_equal": (_TOO_SMALL, marked("Use at least {bound}."), "ge"),
    "greater_than": (_TOO_SMALL, marked("Use more than {bound}."), "gt"),
    "less_than_equal": (_TOO_LARGE, marked("Use at most {bound}."), "le"),
    "less_than": (_TOO_LARGE, marked("Use less than {bound}."), "lt"),
}
_LENGTHS = {
    "too_short": marked("{option} = {value} has too few entries."),
    "too_long": marked("{option} = {value} has too many entries."),
}


def _choices(item: Any) -> list[str]:
    expected: str = item["ctx"]["expected"].replace("'", "")
    return expected.replace(" or ", ", ").split(", ")


def _nearest(kind: str, item: Any) -> Any:
    """The value that is allowed and nearest to what was given, where there is one."""
    if kind == "literal_error":
        return closest(str(item["input"]), _choices(item)) if isinstance(item["input"], str) else None
    return item["ctx"][_BOUNDS[kind][2]] if kind.endswith("_equal") and kind in _BOUNDS else None


def _words(option: str, item: Any) -> tuple[Phrase, Phrase | None]:
    """(what is wrong with a value, what to write instead)."""
    kind, context, value = item["type"], item.get("ctx", {}), _shown(item["input"])
    if kind == "literal_error":
        wrong = phrase("{option} = {value} is not one of the choices.", option=option, value=value)
        words, close = context["expected"].replace("'", ""), closest(str(item["input"]), _choices(item))
        if close is None:
            return wrong, phrase("Use {choices}.", choices=words)
        return wrong, phrase('Did you mean "{word}"? Use {choices}.', word=close, choices=words)
    if kind in _BOUNDS:
        words, use, bound = _BOUNDS[kind]
        return phrase(words, option=option, value=value), phrase(use, bound=context[bound])
    if (form := kind.partition("_")[0]) in _FORMS:
        words, right = _FORMS[form]
        return phrase(words, option=option, value=value), right
    if kind in _LENGTHS:
        return phrase(_LENGTHS[kind], option=option, value=value), None
    reason = item["msg"]
    return phrase(
        "{option} = {value} is not valid ({reason}).", option=option, value=value, reason=reason
    ), None


def find_card(report: ProblemReport, place: Place, use: str) -> CatalogCard | None:
    """The card that `use` names; None, with the problem in `report`, where there is no such card."""
    cards = CARDS[place][1]
    card = cards.get(use)
    if card is None:
        key, meant = (*place, "use"), closest(use, cards)
        cure = None if meant is None else {".".join(key): meant}
        advice = _other_cards(place, meant, one_of(cards))
        report.add("unknown-choice", key, phrase(_NO_CARD[place], use=use), advice, cure)
    return card


def _other_cards(place: Place, meant: str | None, choices: str) -> Phrase:
    if place not in OWN_CODE:
        if meant is None:
            return phrase("Use {choices}.", choices=choices)
        return phrase('Did you mean "{word}"?', word=meant)
    if meant is None:
        return phrase('Use {choices}. Your own is written "module:name".', choices=choices)
    return phrase('Did you mean "{word}"? Your own is written "module:name".', word=meant)


def choice(report: ProblemReport, place: Place, values: Any, default: str) -> Choice | None:
    """The card that the table names, or the default, with its options, validated.

    None where something is wrong with them, which is in `report` then.
    """
    dotted, cards = ".".join(place), CARDS[place][1]
    if isinstance(values, str):
        values = {"use": values}
    if not isinstance(values, dict):
        message = phrase("{option} must be a table.", option=dotted)
        table = f'{{ use = "{next(iter(cards))}" }}'
        report.add(
            "wrong-type", place, message, phrase("Write {table} = {value}.", table=dotted, value=table)
        )
        return None
    use = values.get("use", default)
    if not isinstance(use, str):
        message = phrase("{option} is not text in quotes.", option=f"{dotted}.use")
        report.add("wrong-type", (*place, "use"), message, phrase("Use {choices}.", choices=one_of(cards)))
        return None
    given = {key: value for key, value in values.items() if key != "use"}
    if ":" in use and place in OWN_CODE:
        return Choice(use=use, options=given) if report.check_own_code(place, use) else None
    card = find_card(report, place, use)
    if card is None:
        return None
    for key in [key for key in given if key not in card.options.model_fields]:
        owners = one_of(other.name for other in cards.values() if key in other.options.model_fields)
        if owners:
            del given[key]
            option = f"{dotted}.{key}"
            message = phrase(
                "{option} is an option of {owners}, not of {use}.", option=option, owners=owners, use=use
            )
            advice = phrase("Leave it out, or set {key} to {owners}.", key=f"{dotted}.use", owners=owners)
            report.add("foreign-option", (*place, key), message, advice, {option: None})
    options = report.validate(card.options, place, given, (place, use))
    if options is None:
        return None
    return Choice(use=use, options=options.model_dump(exclude_none=True, mode="json"))
