"""Check the types of a Python caller's arguments, and reword command-line errors for Python callers.

The commands perform all other checks. Read runs.py next.
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
"""Pairs of a pattern in command-line messages and its replacement in Python syntax."""
_CODE_KEYS = tuple(key for section in ("model", "data", "loss") for key in (section, f"{section}.use"))
_RANK_WORDS = ("gpu", "cpu", "auto")


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Reword errors raised inside the block in terms of Python arguments.

    Each problem's headline, unless it equals the error's message, and each problem's advice become notes. A
    traceback prints the notes below the message.
    """
    try:
        yield
    except RankdeckError as error:
        error.problems = [_translate_problem(original) for original in error.problems]
        error.message, error.advice = (
            _translate_text(error.message),
            _translate_text(error.advice or "") or None,
        )
        error.args = (error.message,)
        for problem in error.problems:
            texts = [problem.headline(error.file), problem.advice]
            if note := "\n".join(word for word in texts if word and word != error.message):
                error.add_note(note)
        raise


def _translate_problem(problem: Problem) -> Problem:
    texts = {
        "message": _translate_text(problem.message),
        "advice": _translate_text(problem.advice or "") or None,
    }
    return problem.replace_fields(
        **{name: text for name, text in texts.items() if text != getattr(problem, name)}
    )


def _translate_text(text: str) -> str:
    for of_commands, of_callers in _CLI_REPLACEMENTS:
        text = re.sub(of_commands, of_callers, text)
    return text


def argument_error(name: str, value: Any, template: str, advice: str) -> ConfigError:
    """Return a ConfigError such as `{name} = {value} is not a whole number.`, with the value shortened."""
    return ConfigError(
        phrase(template, name=name, value=_shorten_repr(value)),
        code="argument",
        path=name,
        advice=advice,
    )


def _file_advice(value: Any) -> str:
    """Return advice on how to pass a function, class or object to the ranks through a file."""
    name = getattr(value, "__name__", "make")
    template = tr_noop(
        "Move the definition, with everything that it needs, to a file, and refer to it as "
        '"mine.py:{name}". In a notebook, start the cell with %%writefile mine.py.'
    )
    if not hasattr(value, "__name__"):
        template = tr_noop(
            "In a file, define a function that creates the object, and refer to the function "
            'as "mine.py:{name}". In a notebook, start the cell with %%writefile mine.py.'
        )
    return phrase(template, name=name if name.isidentifier() else "make")


def _shorten_repr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_texts(**arguments: Any) -> None:
    """Check that each argument is text or None; an argument for a path may also be a path object.

    Raises:
        ConfigError: an argument has another type; the first such argument is reported.
    """
    for name, value in arguments.items():
        paths = os.PathLike if name in ("script", "python", "runs", "path_or_name") else ()
        if value is not None and not isinstance(value, (str, paths) if paths else str):
            is_devices = name == "devices"
            advice = (
                phrase('Pass a string, as in devices="cpu:2".') if is_devices else phrase("Pass a string.")
            )
            raise argument_error(name, value, tr_noop("{name} = {value} is not a string."), advice)


def check_numbers(ranks: Any, max_restarts: Any, observe: Any) -> None:
    """Check the arguments `ranks`, `max_restarts` and `observe` of `run`.

    Raises:
        ConfigError: an argument has a value that `run` does not accept.
    """
    # bool is a subclass of int: `ranks=True` would otherwise mean one rank.
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool) and 1 <= ranks <= 1024
    if not (ranks is None or is_number or ranks in _RANK_WORDS):
        raise argument_error(
            "ranks",
            ranks,
            tr_noop("{name} = {value} is not a valid number of ranks."),
            phrase("Write a number from 1 to 1024, or gpu, cpu or auto."),
        )
    is_number = isinstance(max_restarts, int) and not isinstance(max_restarts, bool) and max_restarts >= 0
    if not (max_restarts is None or is_number):
        raise argument_error(
            "max_restarts",
            max_restarts,
            tr_noop("{name} = {value} is not a valid number of restarts."),
            phrase("Write a whole number, 0 or greater."),
        )
    if observe is not None and observe not in OBSERVE_LEVELS:
        raise argument_error(
            "observe",
            observe,
            tr_noop("{name} = {value} is not a valid observe level."),
            phrase("Use none, light, full or check."),
        )


def script_command(script: Any, args: Iterable[Any]) -> list[str]:
    """Return the script and its arguments as a command line.

    Raises:
        ConfigError: `script` is not a path, or an argument is neither text nor a number.
    """
    advice = phrase(
        'Pass each argument separately, as in rankdeck.run("train.py", "--lr", 0.1). Unpack a list with *.'
    )
    if not isinstance(script, str | os.PathLike) or not os.fspath(script):
        raise argument_error(
            "script",
            script,
            tr_noop("{name} = {value} is not the path of a script."),
            phrase('Pass its path, as in rankdeck.run("train.py", "--lr", 0.1).'),
        )
    return [
        os.fspath(script),
        *(_argument_text(f"args[{at}]", argument, advice) for at, argument in enumerate(args)),
    ]


def environment_pairs(env: Any) -> list[str]:
    """Return the environment variables as NAME=VALUE pairs.

    Raises:
        ConfigError: `env` is not a mapping of variable names to values.
    """
    advice = phrase('Pass a dictionary, as in env={"LEVEL": 3}.')
    if env is not None and not isinstance(env, Mapping):
        raise argument_error(
            "env", env, tr_noop("{name} = {value} is not a dictionary of environment variables."), advice
        )
    for key in env or ():
        if not isinstance(key, str) or not key or "=" in key:
            env_text, key_text = _shorten_repr(env), repr(key)
            raise ConfigError(
                phrase(
                    "env = {value} is not a dictionary of environment variables: {key} is not a valid name.",
                    value=env_text,
                    key=key_text,
                ),
                code="argument",
                path="env",
                advice=advice,
            )
    return [f"{key}={_argument_text(f'env[{key!r}]', value, advice)}" for key, value in (env or {}).items()]


def _argument_text(name: str, value: Any, advice: str) -> str:
    """Return an argument (text, a path, a number or a numpy scalar) as text."""
    # numpy's scalars and 0-d arrays: most of them are not instances of int or float.
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(plain, str | int | float | os.PathLike):
        return str(plain)
    raise argument_error(name, value, tr_noop("{name} = {value} is neither a string nor a number."), advice)


def override_arguments(overrides: Any) -> list[str]:
    """Return the overrides in command-line form, such as train.steps=50.

    Raises:
        ConfigError: `overrides` is neither a mapping of options nor an iterable of strings.
    """
    advice = phrase('Pass a dictionary, as in {"train.steps": 50}.')
    if isinstance(overrides, Mapping):
        return [f"{key}={format_inline(to_toml_tables(value, str(key)))}" for key, value in overrides.items()]
    # A str is iterable too, and would become one override per character.
    if isinstance(overrides, str) or not isinstance(overrides, Iterable | None):
        raise argument_error(
            "overrides", overrides, tr_noop("{name} = {value} is not a dictionary of options."), advice
        )
    texts = list(overrides or ())
    check_texts(overrides=next((text for text in texts if not isinstance(text, str)), None))
    return texts


def to_toml_tables(value: Any, dotted_key: str = "config") -> Any:
    """Convert a value to types that TOML can represent.

    None values are dropped, paths become text, and numpy numbers and arrays become Python numbers and lists.

    Raises:
        ConfigError: TOML cannot represent the value.
    """
    if isinstance(value, Mapping):
        start = "" if dotted_key == "config" else f"{dotted_key}."
        entries = {str(key): inner for key, inner in value.items() if inner is not None}
        return {key: to_toml_tables(inner, f"{start}{key}") for key, inner in entries.items()}
    if isinstance(value, list | tuple):
        return [to_toml_tables(inner, dotted_key) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # numpy's arrays and scalars and torch's tensors have it, so neither library is imported.
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, str | int | float):
        return value
    if callable(value) or dotted_key in _CODE_KEYS:
        raise argument_error(
            dotted_key,
            value,
            tr_noop("{name} = {value} is an object in this process, but each rank is a separate process."),
            _file_advice(value),
        )
    raise argument_error(
        dotted_key,
        value,
        tr_noop("{name} = {value} cannot be expressed in a configuration."),
        phrase("Use a string, a number, a list or a dictionary."),
    )
