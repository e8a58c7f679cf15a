"""torchrun's options as `rankdeck run` takes them: what the others mean, and why some are refused.

Options end at the first word that is none, as torchrun's do: what follows is the script's own. Read
run_options.py next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from typer.core import TyperCommand

from rankdeck.base.errors import ConfigError, DeviceError, MachineError, Problem
from rankdeck.base.phrases import marked, phrase

_HOSTS = marked(
    "Runs of several hosts are not there yet: leave it out for a run on this machine, or use torchrun."
)
_LOGS = marked("Leave it out: every rank's output is shown, and kept in the run's logs.")
_OTHER = marked("Leave it out, or use torchrun for this run.")
_LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]", "[0:0:0:0:0:0:0:1]")


def _is_one(value: str) -> bool:
    return value in ("1", "1:1")


def _never(value: str) -> bool:
    return False


REFUSED: dict[str, tuple[Callable[[str], bool], str]] = {
    "--nnodes": (_is_one, _HOSTS),
    "--node-rank": (lambda value: value == "0", _HOSTS),
    "--rdzv-backend": (_never, _HOSTS),
    "--rdzv-endpoint": (_never, _HOSTS),
    "--rdzv-id": (_never, _HOSTS),
    "--rdzv-conf": (_never, _HOSTS),
    "--master-addr": (_LOCAL.__contains__, _HOSTS),
    "--local-addr": (_LOCAL.__contains__, _HOSTS),
    "--role": (lambda value: value == "default", _OTHER),
    "--redirects": (lambda value: value == "0", _LOGS),
    "-r": (lambda value: value == "0", _LOGS),
    "--local-ranks-filter": (_never, _LOGS),
    "--duplicate-stdout-filters": (_never, _LOGS),
    "--duplicate-stderr-filters": (_never, _LOGS),
    "--logs-specs": (_never, _LOGS),
    "--event-log-handler": (lambda value: value == "null", _OTHER),
    "--numa-binding": (_never, _OTHER),
    "--shutdown-timeout": (
        _never,
        marked("Leave it out: a stop gives ranks 30 s, and rankdeck stop --now none."),
    ),
}
"""Options with a value: which of their values mean what happens anyway, and what to do about the others."""
WITHOUT_EFFECT = ("--tee", "-t", "--monitor-interval", "--start-method", "--signals-to-handle")
"""Options with a value whose every value means what happens anyway, or nothing for processes of their own."""
REFUSED_FLAGS = {
    "--run-path": marked("Leave it out: python FILE is what runs."),
    "--virtual-local-rank": _OTHER,
}


class ScriptCommand(TyperCommand):
    """A command that takes torchrun's options beside its own, and leaves the script's alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ours, theirs = split(args, self.values())
        left, problems = _without_torchrun(ours)
        if problems:
            raise ConfigError(problems[0].message, problems=problems)
        # With "--" in between, nothing of the script's is taken for an option.
        try:
            return super().parse_args(ctx, [*left, "--", *theirs])
        except Exception as error:
            unknown = getattr(error, "option_name", None)
            if unknown is None or not any(word.partition("=")[0] == "--entry" for word in ours):
                raise
            raise ConfigError(
                phrase("No such option: {unknown}", unknown=unknown),
                code="usage",
                advice=phrase(
                    "More arguments for the entry's script stand behind --, as in: -- {unknown}",
                    unknown=unknown,
                ),
            ) from None

    def values(self) -> set[str]:
        """Options that a value follows."""
        own = (parameter for parameter in self.params if parameter.param_type_name == "option")
        return {name for option in own if not getattr(option, "is_flag", False) for name in option.opts}


def split(words: Sequence[str], with_value: set[str]) -> tuple[list[str], list[str]]:
    """(options, the script with its arguments) of a command line; a "--" between the two is left out."""
    known = with_value | set(REFUSED) | set(WITHOUT_EFFECT)
    ours, rest = list[str](), list(words)
    while rest:
        word = rest[0]
        if word == "--":
            return ours, rest[1:]
        if not word.startswith("-") or word == "-":
            break
        ours.append(rest.pop(0))
        if "=" not in word and _dashed(word) in known and rest:
            ours.append(rest.pop(0))
    return ours, rest


def _dashed(option: str) -> str:
    """torchrun takes underscores for dashes."""
    return option.replace("_", "-") if option.startswith("--") else option


def _without_torchrun(words: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """The words without options that need nothing done, and a problem for each that cannot be."""
    left, problems, rest = list[str](), list[Problem](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = _parted(word)
        if name in REFUSED_FLAGS:
            problems.append(_refusal(name, "", REFUSED_FLAGS[name]))
        elif name in REFUSED or name in WITHOUT_EFFECT:
            value = value if equals else (rest.pop(0) if rest else "")
            is_fine, advice = REFUSED.get(name, (lambda _: True, ""))
            if not is_fine(value):
                problems.append(_refusal(name, value, advice))
        else:
            left.append(name + equals + value)
    return left, problems


def _parted(word: str) -> tuple[str, str, str]:
    """("--tee", "=", "3") of "--tee=3" and of "-t3"."""
    if word[:2] in ("-t", "-r") and len(word) > 2:
        return word[:2], "=", word[2:].removeprefix("=")
    name, equals, value = word.partition("=")
    return _dashed(name), equals, value


def _refusal(name: str, value: str, advice: str) -> Problem:
    return Problem(
        "torchrun-option",
        phrase("rankdeck run does not take {option}.", option=f"{name} {value}".strip()),
        path=name,
        advice=phrase(advice),
    )


def number_of_ranks(text: str, gpus: Sequence[str] | None) -> int:
    """What --nproc-per-node says: a number, or gpu, cpu or auto. `gpus` are those that --devices names.

    Raises:
        ConfigError: it is none of these.
        DeviceError, MachineError: there are no GPUs to count.
    """
    if text == "cpu":
        return os.cpu_count() or 1
    if text in ("gpu", "auto"):
        try:
            num_gpus = len(gpus) if gpus else _num_visible_gpus()
        except (DeviceError, MachineError):
            if text == "gpu":
                raise
            num_gpus = 0
        if text == "gpu" and not num_gpus:
            raise DeviceError(
                phrase("--nproc-per-node gpu: no GPU is visible."),
                advice=phrase("Write a number, or --devices cpu:2."),
            )
        return num_gpus or os.cpu_count() or 1
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 1024:
        return int(text)
    raise ConfigError(
        phrase("--nproc-per-node {text} is not a number of ranks.", text=text),
        code="ranks",
        path="script.ranks",
        advice=phrase("Write a number from 1 to 1024, or gpu, cpu or auto."),
    )


def _num_visible_gpus() -> int:
    from rankdeck.launch.choose import visible_gpus
    from rankdeck.telemetry.listing import list_gpus

    return len(visible_gpus(list_gpus(), os.environ))
