"""Turns TOML into a RunConfig, or into a list of all problems with path, line and advice.

Every key has a default, so a file may be short. Checks within and between tables are in rules.py.
"""

from __future__ import annotations

import errno
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rankdeck.base.errors import ConfigError, Problem, did_you_mean, format_choices
from rankdeck.base.files import MAX_TOML_BYTES
from rankdeck.base.home import expand_home
from rankdeck.base.names import validate_name
from rankdeck.base.parsing import KeyPath, TomlTable, key_lines, parse_toml
from rankdeck.base.phrases import phrase
from rankdeck.config.checks import ProblemReport, find_spec, report_placeholders, validate_choice
from rankdeck.config.naming import explicit_name
from rankdeck.config.rules import TABLE_RULES, CheckedTables, check_combinations
from rankdeck.config.schema import Choice, RunConfig, Table

_TOP_LEVEL_FIELDS = RunConfig.model_fields
_SECTIONS = {
    name: field.annotation
    for name, field in _TOP_LEVEL_FIELDS.items()
    if name != "strategy" and isinstance(field.annotation, type) and issubclass(field.annotation, Table)
}


_SCRIPT_ADVICE = phrase(
    "This file belongs to a script's run and is not a configuration: `rankdeck resume` starts "
    "the script again, and `rankdeck adopt` turns the run into a configuration."
)


class ConfigChanges(TypedDict, total=False):
    """Changes from the command line, applied in the order of the keys below.

    `strategy` replaces the whole strategy table; `overrides` have the form "train.steps=50".
    """

    strategy: str | None
    devices: str | None
    name: str | None
    overrides: Iterable[str]


def load(
    path: Path, *, folder: Path | None = None, to_plan: bool = False, **changes: Unpack[ConfigChanges]
) -> RunConfig:
    """Load a configuration file and apply the command line's changes.

    Relative paths are resolved against `folder`, by default the file's own folder. `to_plan`: see
    `from_text`.

    Raises:
        ConfigError: the file or a change is invalid; the error lists every problem with path, line and
            advice.
    """
    try:
        with path.open("rb") as file:  # may be a pipe, as in <(command)
            # A pipe has no size to check beforehand; a byte above the limit shows that the file is too large.
            data = file.read(MAX_TOML_BYTES + 1)
        if len(data) > MAX_TOML_BYTES:
            raise OSError(errno.EFBIG, phrase("it is larger than {most} bytes", most=MAX_TOML_BYTES))
        text = data.decode("utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or phrase("it is not UTF-8 text")
        message = phrase("{file} cannot be read: {why}.", file=path, why=why)
        raise ConfigError(message, code="unreadable", path=str(path)) from None
    try:
        folder = folder or path.resolve().parent
        return from_text(text, folder=folder, stem=path.stem, to_plan=to_plan, **changes)
    except ConfigError as error:
        error.file = str(path)
        raise


def from_text(
    text: str,
    *,
    folder: Path,
    stem: str = "run",
    resolve: Callable[[Path], Path] = Path.resolve,
    to_plan: bool = False,
    **changes: Unpack[ConfigChanges],
) -> RunConfig:
    """Build a configuration from text; see `load`.

    `resolve` makes a path absolute. The app's editor, which calls this at each keystroke, passes
    `Path.absolute`, which follows no symlinks and does not access the disk. If `to_plan` is True, the
    strategy may be incompatible with the other options, because a plan also covers other strategies.
    """
    try:
        tables = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            phrase("This is not TOML: {why}.", why=error),
            code="toml",
            line=_toml_error_line(str(error), text),
            advice=phrase("Fix that line."),
        ) from None
    lines = key_lines(text)
    for key in ("strategy", "devices", "name"):
        if (value := changes.get(key)) is not None:
            # The whole table is replaced: options of the file's choice do not fit another one.
            tables[key] = value if key == "name" else {"use": value}
            _clear_lines(lines, (key,))
    problems = []
    for override in changes.get("overrides", ()):
        key_path = _override_path(override)
        if problem := _apply_override(tables, override):
            problems.append(problem)
        else:
            _clear_lines(lines, key_path)
    try:
        return from_dict(tables, folder=folder, stem=stem, resolve=resolve, lines=lines, problems=problems)
    except ConfigError:
        # A plan also covers strategies other than the chosen one, so check the rest without it.
        chosen = validate_choice(ProblemReport({}, []), ("strategy",), tables.get("strategy", {}), "single")
        if not to_plan or problems or chosen is None:
            raise
        try:
            rest = from_dict(tables | {"strategy": "single"}, folder=folder, stem=stem, resolve=resolve)
        except ConfigError:
            rest = None
        if rest is None:
            raise
    return rest.model_copy(update={"strategy": chosen})


def _override_path(override: str) -> KeyPath:
    return tuple(part.strip() for part in override.partition("=")[0].split("."))


def _clear_lines(lines: dict[KeyPath, int | None], key_path: KeyPath) -> None:
    """Remove the line numbers of a key that the command line has set: a problem with its value must not point
    into the file."""
    for inside in [path for path in lines if path[: len(key_path)] == key_path]:
        del lines[inside]
    lines[key_path] = None


def from_dict(
    tables: TomlTable,
    *,
    folder: Path,
    stem: str = "run",
    resolve: Callable[[Path], Path] = Path.resolve,
    lines: dict[KeyPath, int | None] | None = None,
    problems: list[Problem] | None = None,
) -> RunConfig:
    """Build a configuration from nested tables, as `to_dict` returns them.

    Raises:
        ConfigError: the tables are invalid; the error lists every problem.
    """
    report = ProblemReport(lines or {}, problems or [])
    filled = report_placeholders(report, tables)
    # With placeholders left, checks between tables would complain about values that are only missing.
    is_filled_in, tables = filled == tables, filled
    raw_folder = tables.get("folder")
    base = Path(raw_folder) if isinstance(raw_folder, str) else folder
    values: dict[str, Any] = {"folder": str(resolve(base))}
    for key in tables:
        if key not in _TOP_LEVEL_FIELDS:
            report.add(
                "unknown-option",
                (key,),
                phrase("{key} is not a valid table in a configuration.", key=key),
                _SCRIPT_ADVICE
                if key == "script"
                else did_you_mean(key, _TOP_LEVEL_FIELDS)
                or phrase("Valid names: {names}.", names=format_choices(_TOP_LEVEL_FIELDS)),
            )
    values["name"] = explicit_name(tables, stem)
    if not isinstance(tables.get("name", ""), str):
        message, advice = (
            phrase('The value of "name" must be text in quotes.'),
            phrase('Write name = "my run".'),
        )
        report.add("wrong-type", ("name",), message, advice)
    try:
        validate_name(values["name"])
    except ConfigError as error:
        report.add("wrong-value", ("name",), error.message, error.problem.as_phrase("advice"))
    if raw_folder is not None and not isinstance(raw_folder, str):
        message, advice = (
            phrase('The value of "folder" must be text in quotes.'),
            phrase('Write folder = "path".'),
        )
        report.add("wrong-type", ("folder",), message, advice)
    for section in _SECTIONS:
        values[section] = _validate_section(report, section, tables.get(section, {}))
    values["strategy"] = validate_choice(report, ("strategy",), tables.get("strategy", {}), "single")
    if is_filled_in and all(values[key] is not None for key in ("train", "strategy", "devices", "hosts")):
        checked = CheckedTables(**{name: values[name] for name in CheckedTables._fields})
        values["strategy"] = check_combinations(report, checked)
    if report.problems:
        problems = sorted(report.problems, key=lambda problem: problem.line or 0)
        raise ConfigError(problems[0].as_phrase("message"), problems=problems)
    return _with_absolute_paths(RunConfig(**values), base, resolve)


def _validate_section(report: ProblemReport, section: str, values: Any) -> Any:
    """Validate a table, including its choices or arguments; return None if the table has a problem."""
    table_type = _SECTIONS[section]
    if not isinstance(values, dict):
        return report.validate(table_type, (section,), values)
    values = dict(values)
    before = len(report.problems)
    if section == "train":
        for key, default in (("optimizer", "adamw"), ("schedule", "constant")):
            # A default replaces an invalid choice, so that the rest of the table is validated too.
            values[key] = validate_choice(report, (section, key), values.get(key, {}), default) or Choice(
                use=default
            )
    table: Any = report.validate(table_type, (section,), values)
    if table is None:
        return None
    if section in ("model", "data", "loss"):
        table = _validate_catalog_table(report, section, table)
    elif section in TABLE_RULES:
        TABLE_RULES[section](report, table)
    return None if len(report.problems) > before else table


def _validate_catalog_table(report: ProblemReport, section: str, table: Any) -> Any:
    """Validate the options of a catalog choice and add defaults; leave arguments for user code unchanged."""
    if ":" in table.use:
        return table if report.check_user_code((section,), table.use) else None
    card = find_spec(report, (section,), table.use)
    if card is None or section == "loss":
        return card and table
    args = report.validate(card.options, (section, "args"), table.args, ((section,), table.use))
    return (
        None
        if args is None
        else table.model_copy(update={"args": args.model_dump(exclude_none=True, mode="json")})
    )


def _apply_override(tables: TomlTable, override: str) -> Problem | None:
    """Apply "--set key=value" to the tables; return a problem if the override is invalid.

    A value that is not TOML is used as text.
    """
    key, equals, raw = override.partition("=")
    parts = _override_path(override)
    if not equals or not all(parts):
        return Problem(
            "override",
            phrase('--set "{override}" is not key=value.', override=override),
            advice=phrase("Write it as --set train.steps=50."),
        )
    try:
        value = parse_toml(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    table = tables
    for part in parts[:-1]:
        inner = table.get(part)
        # The short form `strategy = "ddp"` becomes a table, so that --set can add an option to it.
        if inner is None or isinstance(inner, str):
            inner = {} if inner is None else {"use": inner}
            table[part] = inner
        if not isinstance(inner, dict):
            return Problem(
                "override",
                phrase('--set "{override}": {part} is not a table.', override=override, part=part),
                path=key,
                advice=phrase("Set {part} itself, or leave the override out.", part=part),
            )
        table = inner
    table[parts[-1]] = value
    if parts in (("train", "steps"), ("train", "epochs")):
        # steps and epochs exclude each other, so the command line's value removes the file's.
        table.pop("epochs" if parts[-1] == "steps" else "steps", None)
    return None


def _with_absolute_paths(config: RunConfig, base: Path, resolve: Callable[[Path], Path]) -> RunConfig:
    """Make paths in arguments and in references such as "path/to/file.py:factory" absolute, so that a copy of
    the configuration works in any folder."""
    tables = {}
    for section in ("model", "data", "loss"):
        table = getattr(config, section)
        update: dict[str, object] = {"use": _absolute_code(table.use, base, resolve)}
        args = getattr(table, "args", {})
        path = args.get("path")
        if isinstance(path, str) and not path.startswith("@"):
            update["args"] = {**args, "path": str(resolve(base / expand_home(path)))}
        tables[section] = table.model_copy(update=update)
    return config.model_copy(update=tables)


def _absolute_code(use: str, base: Path, resolve: Callable[[Path], Path]) -> str:
    module, colon, attribute = use.rpartition(":")
    if colon and module.endswith(".py"):
        return f"{resolve(base / expand_home(module))}:{attribute}"
    return use


def _toml_error_line(message: str, text: str) -> int | None:
    # TOMLDecodeError has no lineno before Python 3.14.
    _, marker, rest = message.rpartition("(at line ")
    if marker:
        return int(rest.split(",")[0])
    # tomllib reports an unclosed bracket or string at the end of the document, without a line.
    return len(text.splitlines()) if "end of document" in message else None
