"""Collects all problems in a configuration, each with its path, its line and advice.

`ProblemReport` collects the problems; `validate_choice` and `find_spec` check choices against the catalog.
Read rules.py for the checks within and between tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from pydantic import BaseModel, ValidationError

from rankdeck.base.errors import Problem, closest, did_you_mean, format_choices
from rankdeck.base.parsing import KeyPath, TomlTable, find_line
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.config.catalog import DATA, LOSSES, MODELS, OPTIMIZERS, SCHEDULES, STRATEGIES, CatalogSpec
from rankdeck.config.schema import Choice

CATALOGS: dict[KeyPath, tuple[str, Mapping[str, CatalogSpec]]] = {
    ("model",): ("model", MODELS),
    ("data",): ("data set", DATA),
    ("loss",): ("loss", LOSSES),
    ("train", "optimizer"): ("optimizer", OPTIMIZERS),
    ("train", "schedule"): ("schedule", SCHEDULES),
    ("strategy",): ("strategy", STRATEGIES),
}
_UNKNOWN_OPTION: dict[KeyPath, str] = {
    ("model",): tr_noop("{option} is not an option of model {use}."),
    ("data",): tr_noop("{option} is not an option of data set {use}."),
    ("train", "optimizer"): tr_noop("{option} is not an option of optimizer {use}."),
    ("train", "schedule"): tr_noop("{option} is not an option of schedule {use}."),
    ("strategy",): tr_noop("{option} is not an option of strategy {use}."),
}
OTHER_NAMES = {
    "batch_size": "train.global_batch",
    "lr": "train.optimizer.lr",
    "learning_rate": "train.optimizer.lr",
}
"""Option names of other programs, mapped to the corresponding options of Rankdeck."""
_UNKNOWN_SPEC: dict[KeyPath, str] = {
    ("model",): tr_noop('There is no model called "{use}".'),
    ("data",): tr_noop('There is no data set called "{use}".'),
    ("loss",): tr_noop('There is no loss called "{use}".'),
    ("train", "optimizer"): tr_noop('There is no optimizer called "{use}".'),
    ("train", "schedule"): tr_noop('There is no schedule called "{use}".'),
    ("strategy",): tr_noop('There is no strategy called "{use}".'),
}
PLACEHOLDER = "?"
"""Value of an option that the user still has to fill in."""
USER_CODE_TABLES = {("model",), ("data",), ("loss",), ("train", "optimizer")}


class ProblemReport:
    """Problems found so far, each with its line in the file."""

    def __init__(self, lines: dict[KeyPath, int | None], problems: list[Problem]) -> None:
        self.lines = lines
        self.problems = list(problems)

    def add(
        self,
        code: str,
        key_path: KeyPath,
        message: str,
        advice: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.append(Problem(code, message, path=".".join(key_path), advice=advice, cure=dict(changes or {})))

    def append(self, problem: Problem) -> None:
        """Append a problem, and set its line to that of its option in the file."""
        line = find_line(self.lines, tuple((problem.path or "").split(".")))
        self.problems.append(msgspec.structs.replace(problem, line=line))

    def validate(
        self,
        table_type: type[BaseModel],
        key_path: KeyPath,
        values: Any,
        card: tuple[KeyPath, str] | None = None,
    ) -> BaseModel | None:
        """Validate a table; return None and report the problems if it is invalid.

        `card` is the (table path, name) of the choice that the table's options belong to.
        """
        if not isinstance(values, dict):
            dotted = ".".join(key_path)
            message = phrase("{option} must be a table.", option=dotted)
            self.add(
                "wrong-type", key_path, message, phrase("Write [{table}] above its options.", table=dotted)
            )
            return None
        try:
            return table_type.model_validate(_without_booleans(table_type, values))
        except ValidationError as error:
            for item in error.errors():
                # A union or a tuple adds type names to the path; only keys and indices are in the user's
                # file.
                inner = tuple(
                    str(part) for part in item["loc"] if str(part).isidentifier() or isinstance(part, int)
                )
                if item["type"] == "extra_forbidden":
                    self._add_unknown_option(table_type, key_path + inner, item, card)
                else:
                    self._add_pydantic_error(key_path + inner, item)
            return None

    def check_user_code(self, key_path: KeyPath, use: str) -> bool:
        """Return whether `use` has the form of a reference to user code; report a problem if it does not.

        Whether the code exists is checked only when the run starts.
        """
        module, _, name = use.rpartition(":")
        is_file = module.endswith(".py") and "\0" not in module
        if name.isidentifier() and (is_file or all(part.isidentifier() for part in module.split("."))):
            return True
        message = phrase(
            "{option} = {value} is not a valid reference to code.",
            option=".".join((*key_path, "use")),
            value=_format_value(use),
        )
        advice = phrase('Write "package.module:name" or "path/to/file.py:name".')
        self.add("wrong-value", (*key_path, "use"), message, advice)
        return False

    def _add_unknown_option(
        self, table_type: type[BaseModel], key_path: KeyPath, item: Any, card: tuple[KeyPath, str] | None
    ) -> None:
        dotted = ".".join(key_path)
        if card is None:
            message = phrase("{option} is not an option.", option=dotted)
        else:
            message = phrase(_UNKNOWN_OPTION[card[0]], option=dotted, use=card[1])
        # `options` is a field of Choice only: in TOML the options are next to `use`.
        field_names = [name for name in table_type.model_fields if name != "options"]
        advice = did_you_mean(key_path[-1], field_names)
        elsewhere = OTHER_NAMES.get(key_path[-1].lower()) if card is None else None
        if elsewhere is not None:
            advice = phrase('Did you mean "{word}"?', word=elsewhere)
        if advice is None:
            none = phrase("Leave it out: there are no options to set.")
            advice = (
                phrase("Valid names: {names}.", names=format_choices(field_names)) if field_names else none
            )
        changes = {dotted: None}
        if elsewhere is not None:
            changes[elsewhere] = item["input"]
        elif (meant := closest(key_path[-1], field_names)) is not None:
            changes[".".join((*key_path[:-1], meant))] = item["input"]
        self.add("unknown-option", key_path, message, advice, changes)

    def _add_pydantic_error(self, key_path: KeyPath, item: Any) -> None:
        dotted, kind = ".".join(key_path), item["type"]
        if kind == "missing":
            message = phrase("{option} is missing.", option=dotted)
            self.add("missing", key_path, message, phrase("Add {key} = ...", key=key_path[-1]))
            return
        wrong, right = _message_and_advice(dotted, item)
        value = None if any(part.isdigit() for part in key_path) else _nearest_allowed(kind, item)
        # Changes address options by dotted key, and an entry of a list has none.
        changes = {} if value is None else {dotted: value}
        self.add("wrong-value", key_path, wrong, right, changes)


def report_placeholders(report: ProblemReport, tables: TomlTable, key_path: KeyPath = ()) -> TomlTable:
    """Return the tables with their placeholders removed, and report each placeholder."""
    filled = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            filled[key] = report_placeholders(report, value, (*key_path, key))
        elif value != PLACEHOLDER:
            filled[key] = value
        else:
            here = (*key_path, key)
            message = phrase("{option} has no value yet.", option=".".join(here))
            advice = phrase(
                'Replace "{mark}" with a value. Nearby comments in the file may explain which '
                "values are valid.",
                mark=PLACEHOLDER,
            )
            report.add("fill-in", here, message, advice)
    return filled


class _MisplacedBoolean:
    """A boolean in place of a number: pydantic would accept true and false as 1 and 0."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __str__(self) -> str:
        return str(self._value).lower()


def _without_booleans(table_type: type[BaseModel], values: Mapping[str, object]) -> dict[str, object]:
    fields = table_type.model_fields
    return {
        key: _wrap_booleans(value) if key in fields and not _takes_booleans(fields[key].annotation) else value
        for key, value in values.items()
    }


def _wrap_booleans(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrap_booleans(item) for item in value]
    return _MisplacedBoolean(value) if isinstance(value, bool) else value


def _takes_booleans(annotation: Any) -> bool:
    return annotation in (bool, Any) or any(map(_takes_booleans, get_args(annotation)))


def _format_value(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


_NOT_A_LIST = tr_noop("{option} = {value} is not a list.")
_NOT_A_NUMBER = tr_noop("{option} = {value} is not a number."), phrase("Write a number, as in 0.1.")
_NOT_A_TABLE = (
    tr_noop("{option} = {value} is not a table."),
    phrase("Write a table, as in {table}.", table="{ layers = 4 }"),
)
_TYPE_MESSAGES = {
    "int": (
        tr_noop("{option} = {value} is not a whole number."),
        phrase("Write a whole number, as in 32."),
    ),
    "float": _NOT_A_NUMBER,
    "finite": (tr_noop("{option} = {value} is not a finite number."), _NOT_A_NUMBER[1]),
    "bool": (tr_noop("{option} = {value} is neither true nor false."), phrase("Write true or false.")),
    "string": (
        tr_noop("{option} = {value} is not text in quotes."),
        phrase('Write text in quotes, as in "gpt".'),
    ),
    "list": (_NOT_A_LIST, phrase("Write a list, as in [256, 256].")),
    "tuple": (_NOT_A_LIST, phrase("Write a list, as in [0.9, 0.999].")),
    "dict": _NOT_A_TABLE,
    "model": _NOT_A_TABLE,
}
"""(problem, advice) by the first word of pydantic's error type."""
_TOO_SMALL = tr_noop("{option} = {value} is too small.")
_TOO_LARGE = tr_noop("{option} = {value} is too large.")
_BOUND_MESSAGES = {
    "greater_than_equal": (_TOO_SMALL, tr_noop("Choose a value of at least {bound}."), "ge"),
    "greater_than": (_TOO_SMALL, tr_noop("Choose a value greater than {bound}."), "gt"),
    "less_than_equal": (_TOO_LARGE, tr_noop("Choose a value of at most {bound}."), "le"),
    "less_than": (_TOO_LARGE, tr_noop("Choose a value less than {bound}."), "lt"),
}
_LENGTH_MESSAGES = {
    "too_short": tr_noop("{option} = {value} has too few entries."),
    "too_long": tr_noop("{option} = {value} has too many entries."),
}


def _expected_choices(item: Any) -> list[str]:
    # pydantic gives the choices as text only: 'a', 'b' or 'c'.
    expected: str = item["ctx"]["expected"].replace("'", "")
    return expected.replace(" or ", ", ").split(", ")


def _nearest_allowed(kind: str, item: Any) -> Any:
    """Return the allowed value closest to the rejected one in `item`, a pydantic error of type `kind`; None
    if there is no such value."""
    if kind == "literal_error":
        return (
            closest(str(item["input"]), _expected_choices(item)) if isinstance(item["input"], str) else None
        )
    return (
        item["ctx"][_BOUND_MESSAGES[kind][2]] if kind.endswith("_equal") and kind in _BOUND_MESSAGES else None
    )


def _message_and_advice(option: str, item: Any) -> tuple[Phrase, Phrase | None]:
    """Return (the problem with a value, what to write instead) for `item`, pydantic's error about
    `option`."""
    kind, context, value = item["type"], item.get("ctx", {}), _format_value(item["input"])
    if kind == "literal_error":
        wrong = phrase("{option} = {value} is not one of the choices.", option=option, value=value)
        text, close = (
            context["expected"].replace("'", ""),
            closest(str(item["input"]), _expected_choices(item)),
        )
        if close is None:
            return wrong, phrase("Use {choices}.", choices=text)
        return wrong, phrase('Did you mean "{word}"? Use {choices}.', word=close, choices=text)
    if kind in _BOUND_MESSAGES:
        text, use, bound = _BOUND_MESSAGES[kind]
        return phrase(text, option=option, value=value), phrase(use, bound=context[bound])
    if (form := kind.partition("_")[0]) in _TYPE_MESSAGES:
        text, right = _TYPE_MESSAGES[form]
        return phrase(text, option=option, value=value), right
    if kind in _LENGTH_MESSAGES:
        return phrase(_LENGTH_MESSAGES[kind], option=option, value=value), None
    reason = item["msg"]
    return phrase(
        "{option} = {value} is not valid ({reason}).", option=option, value=value, reason=reason
    ), None


def find_spec(report: ProblemReport, key_path: KeyPath, use: str) -> CatalogSpec | None:
    """Return the spec that `use` names; if the name is unknown, report it and return None."""
    cards = CATALOGS[key_path][1]
    card = cards.get(use)
    if card is None:
        key, meant = (*key_path, "use"), closest(use, cards)
        changes = None if meant is None else {".".join(key): meant}
        advice = _spec_advice(key_path, meant, format_choices(cards))
        report.add("unknown-choice", key, phrase(_UNKNOWN_SPEC[key_path], use=use), advice, changes)
    return card


def _spec_advice(key_path: KeyPath, meant: str | None, choices: str) -> Phrase:
    if key_path not in USER_CODE_TABLES:
        if meant is None:
            return phrase("Use {choices}.", choices=choices)
        return phrase('Did you mean "{word}"?', word=meant)
    if meant is None:
        return phrase('Use {choices}. For your own code, write "module:name".', choices=choices)
    return phrase('Did you mean "{word}"? For your own code, write "module:name".', word=meant)


def validate_choice(report: ProblemReport, key_path: KeyPath, values: Any, default: str) -> Choice | None:
    """Return the table's choice with validated options; `default` is the choice if the table names none.

    Returns None if the table is invalid; the problems are then in `report`.
    """
    dotted, cards = ".".join(key_path), CATALOGS[key_path][1]
    # `strategy = "ddp"` is short for `strategy = { use = "ddp" }`.
    if isinstance(values, str):
        values = {"use": values}
    if not isinstance(values, dict):
        message = phrase("{option} must be a table.", option=dotted)
        table = f'{{ use = "{next(iter(cards))}" }}'
        report.add(
            "wrong-type", key_path, message, phrase("Write {table} = {value}.", table=dotted, value=table)
        )
        return None
    use = values.get("use", default)
    if not isinstance(use, str):
        message = phrase("The value of {option} must be text in quotes.", option=f"{dotted}.use")
        report.add(
            "wrong-type", (*key_path, "use"), message, phrase("Use {choices}.", choices=format_choices(cards))
        )
        return None
    raw_options = {key: value for key, value in values.items() if key != "use"}
    if ":" in use and key_path in USER_CODE_TABLES:
        return Choice(use=use, options=raw_options) if report.check_user_code(key_path, use) else None
    card = find_spec(report, key_path, use)
    if card is None:
        return None
    # A list, because the loop deletes keys.
    for key in [key for key in raw_options if key not in card.options.model_fields]:
        owners = format_choices(other.name for other in cards.values() if key in other.options.model_fields)
        # Report an option of another choice here, and remove it so that validation does not report it again.
        if owners:
            del raw_options[key]
            option = f"{dotted}.{key}"
            message = phrase(
                "{option} is an option of {owners}, not of {use}.", option=option, owners=owners, use=use
            )
            advice = phrase("Leave it out, or set {key} to {owners}.", key=f"{dotted}.use", owners=owners)
            report.add("foreign-option", (*key_path, key), message, advice, {option: None})
    options = report.validate(card.options, key_path, raw_options, (key_path, use))
    if options is None:
        return None
    # JSON mode turns tuples into lists, and None is left out, because TOML has neither.
    return Choice(use=use, options=options.model_dump(exclude_none=True, mode="json"))
