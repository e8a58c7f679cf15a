"""What a Python caller passed: its kind is checked here, and what commands would say of it names arguments.

Everything else is refused where a command refuses it. Read runs.py next.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rankdeck.adopt.toml_writer import format_inline
from rankdeck.base.errors import ConfigError, Problem, RankdeckError
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.script import OBSERVE_LEVELS

_CLI_REPLACEMENTS = (
    (r"--nproc-per-node (\S+)", r"ranks=\1"),
    (r"--devices ([a-z]+:[\w,]+)", r'devices="\1"'),
    (r"--set train\.steps=50", '{"train.steps": 50}'),
    (r"--set (?=\")", "overrides: "),
    (r"--runs\b", "runs"),
    (r"--python\b", "python"),
    (r"rankdeck (run|train) ([\w./-]*\w)", r'rankdeck.\1("\2")'),
    (r"run with -m\b", "run with module=True"),
)
"""What commands say, and what a caller writes."""
_CODE_KEYS = tuple(key for section in ("model", "data", "loss") for key in (section, f"{section}.use"))
_RANK_WORDS = ("gpu", "cpu", "auto")


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Errors name arguments; their other problems and their advice stand below them in a traceback."""
    try:
        yield
    except RankdeckError as error:
        error.problems = [_translate_problem(one) for one in error.problems]
        error.message, error.advice = (
            _translate_text(error.message),
            _translate_text(error.advice or "") or None,
        )
        error.args = (error.message,)
        for problem in error.problems:
            words = [problem.headline(error.file), problem.advice]
            if told := "\n".join(word for word in words if word and word != error.message):
                error.add_note(told)
        raise


def _translate_problem(problem: Problem) -> Problem:
    said = {
        "message": _translate_text(problem.message),
        "advice": _translate_text(problem.advice or "") or None,
    }
    return problem.replace_fields(
        **{name: words for name, words in said.items() if words != getattr(problem, name)}
    )


def _translate_text(text: str) -> str:
    for of_commands, of_callers in _CLI_REPLACEMENTS:
        text = re.sub(of_commands, of_callers, text)
    return text


def argument_error(name: str, value: Any, template: str, advice: str) -> ConfigError:
    """`{name} = {value} is no whole number.`, shortened."""
    return ConfigError(
        phrase(template, name=name, value=_shorten_repr(value)),
        code="argument",
        path=name,
        advice=advice,
    )


def _file_advice(value: Any) -> str:
    """How ranks get a function, a class, or an object, that a caller has."""
    name = getattr(value, "__name__", "make")
    template = tr_noop(
        'Put it in a file with all that it needs, and name it there, as in "mine.py:{name}". In a notebook '
        "begin its cell with %%writefile mine.py."
    )
    if not hasattr(value, "__name__"):
        template = tr_noop(
            'Put a function that makes it in a file, and name that, as in "mine.py:{name}". In a notebook '
            "begin its cell with %%writefile mine.py."
        )
    return phrase(template, name=name if name.isidentifier() else "make")


def _shorten_repr(value: Any) -> str:
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 60 else shown[:57] + "..."


def check_texts(**given: Any) -> None:
    """Arguments that are text, or a path where their name says so, or None.

    Raises: ConfigError for the first that is neither.
    """
    for name, value in given.items():
        paths = os.PathLike if name in ("script", "python", "runs", "path_or_name") else ()
        if value is not None and not isinstance(value, (str, paths) if paths else str):
            is_devices = name == "devices"
            advice = phrase('As in devices="cpu:2".') if is_devices else phrase("Write it as text.")
            raise argument_error(name, value, tr_noop("{name} = {value} is no text."), advice)


def check_numbers(ranks: Any, max_restarts: Any, observe: Any) -> None:
    """Raises: ConfigError where one of them is not what `run` takes."""
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool) and 1 <= ranks <= 1024
    if not (ranks is None or is_number or ranks in _RANK_WORDS):
        raise argument_error(
            "ranks",
            ranks,
            tr_noop("{name} = {value} is no number of ranks."),
            phrase("Write a number from 1 to 1024, or gpu, cpu or auto."),
        )
    is_number = isinstance(max_restarts, int) and not isinstance(max_restarts, bool) and max_restarts >= 0
    if not (max_restarts is None or is_number):
        raise argument_error(
            "max_restarts",
            max_restarts,
            tr_noop("{name} = {value} is no number of restarts."),
            phrase("Write a whole number from 0 on."),
        )
    if observe is not None and observe not in OBSERVE_LEVELS:
        raise argument_error(
            "observe",
            observe,
            tr_noop("{name} = {value} is not a way to watch a script."),
            phrase("Use none, light or full."),
        )


def script_command(script: Any, args: Iterable[Any]) -> list[str]:
    """The script and its arguments as a command line has them.

    Raises: ConfigError for what is no single word.
    """
    advice = phrase(
        'Give each word for itself, as in rankdeck.run("train.py", "--lr", 0.1); those of a list as *words.'
    )
    if not isinstance(script, str | os.PathLike) or not os.fspath(script):
        raise argument_error(
            "script",
            script,
            tr_noop("{name} = {value} is no script."),
            phrase('Write its path, as in rankdeck.run("train.py", "--lr", 0.1).'),
        )
    return [os.fspath(script), *(_argument_text(f"args[{at}]", one, advice) for at, one in enumerate(args))]


def environment_pairs(env: Any) -> list[str]:
    """Variables as NAME=VALUE.

    Raises: ConfigError for what is no table of them.
    """
    advice = phrase('As in env={"LEVEL": 3}.')
    if env is not None and not isinstance(env, Mapping):
        raise argument_error("env", env, tr_noop("{name} = {value} is no table of variables."), advice)
    for key in env or ():
        if not isinstance(key, str) or not key or "=" in key:
            shown, told = _shorten_repr(env), repr(key)
            raise ConfigError(
                phrase("env = {value} is no table of variables: {key} is no name.", value=shown, key=told),
                code="argument",
                path="env",
                advice=advice,
            )
    return [f"{key}={_argument_text(f'env[{key!r}]', value, advice)}" for key, value in (env or {}).items()]


def _argument_text(name: str, value: Any, advice: str) -> str:
    """Text, a path, a number, or a number of numpy's."""
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(plain, str | int | float | os.PathLike):
        return str(plain)
    raise argument_error(name, value, tr_noop("{name} = {value} is no text and no number."), advice)


def override_arguments(overrides: Any) -> list[str]:
    """Each as a command line has it: train.steps=50.

    Raises: ConfigError for what is no table of options.
    """
    advice = phrase('Write a table, as in {"train.steps": 50}.')
    if isinstance(overrides, Mapping):
        return [f"{key}={format_inline(to_toml_tables(value, str(key)))}" for key, value in overrides.items()]
    if isinstance(overrides, str) or not isinstance(overrides, Iterable | None):
        raise argument_error(
            "overrides", overrides, tr_noop("{name} = {value} is no table of options."), advice
        )
    words = list(overrides or ())
    check_texts(overrides=next((one for one in words if not isinstance(one, str)), None))
    return words


def to_toml_tables(value: Any, place: str = "config") -> Any:
    """What TOML can say: without what is None, paths as text, numpy's numbers and arrays as Python's.

    Raises: ConfigError for what it cannot say.
    """
    if isinstance(value, Mapping):
        start = "" if place == "config" else f"{place}."
        told = {str(key): inner for key, inner in value.items() if inner is not None}
        return {key: to_toml_tables(inner, f"{start}{key}") for key, inner in told.items()}
    if isinstance(value, list | tuple):
        return [to_toml_tables(inner, place) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, str | int | float):
        return value
    if callable(value) or place in _CODE_KEYS:
        raise argument_error(
            place,
            value,
            tr_noop("{name} = {value} is an object of this process, and ranks are processes of their own."),
            _file_advice(value),
        )
    raise argument_error(
        place,
        value,
        tr_noop("{name} = {value} is nothing that a configuration can say."),
        phrase("Write text, a number, a list or a table."),
    )
