"""torchrun's options that `rankdeck run` ignores, and those that it refuses.

Options end at the first argument that is not an option, as in torchrun: this argument is the script, and
those after it belong to the script. Read run_options.py next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from typer.core import TyperCommand

from rankdeck.base.errors import ConfigError, DeviceError, MachineError, Problem
from rankdeck.base.phrases import phrase, tr_noop

_MULTI_HOST_ADVICE = tr_noop(
    "rankdeck run starts ranks on this machine only. Omit the option, or use torchrun for several hosts."
)
_LOGS_ADVICE = tr_noop("Leave it out: every rank's output is shown, and saved in the run's logs.")
_OTHER_ADVICE = tr_noop("Leave it out, or use torchrun for this run.")
_LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1", "[::1]", "[0:0:0:0:0:0:0:1]")


def _is_single_node(value: str) -> bool:
    return value in ("1", "1:1")


def _is_never_supported(value: str) -> bool:
    return False


UNSUPPORTED_OPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "--nnodes": (_is_single_node, _MULTI_HOST_ADVICE),
    "--node-rank": (lambda value: value == "0", _MULTI_HOST_ADVICE),
    "--rdzv-backend": (_is_never_supported, _MULTI_HOST_ADVICE),
    "--rdzv-endpoint": (_is_never_supported, _MULTI_HOST_ADVICE),
    "--rdzv-id": (_is_never_supported, _MULTI_HOST_ADVICE),
    "--rdzv-conf": (_is_never_supported, _MULTI_HOST_ADVICE),
    "--master-addr": (_LOCAL_ADDRESSES.__contains__, _MULTI_HOST_ADVICE),
    "--local-addr": (_LOCAL_ADDRESSES.__contains__, _MULTI_HOST_ADVICE),
    "--role": (lambda value: value == "default", _OTHER_ADVICE),
    "--redirects": (lambda value: value == "0", _LOGS_ADVICE),
    "-r": (lambda value: value == "0", _LOGS_ADVICE),
    "--local-ranks-filter": (_is_never_supported, _LOGS_ADVICE),
    "--duplicate-stdout-filters": (_is_never_supported, _LOGS_ADVICE),
    "--duplicate-stderr-filters": (_is_never_supported, _LOGS_ADVICE),
    "--logs-specs": (_is_never_supported, _LOGS_ADVICE),
    "--event-log-handler": (lambda value: value == "null", _OTHER_ADVICE),
    "--numa-binding": (_is_never_supported, _OTHER_ADVICE),
    "--shutdown-timeout": (
        _is_never_supported,
        tr_noop("Leave it out: a stop gives ranks 30 s to exit; rankdeck stop --now stops them at once."),
    ),
}
"""Options that take a value, mapped to (function that checks whether a value can be ignored, advice for all
other values)."""
IGNORED_OPTIONS = ("--tee", "-t", "--monitor-interval", "--start-method", "--signals-to-handle")
"""Options that take a value and have no effect here, whatever the value."""
UNSUPPORTED_FLAGS = {
    "--run-path": tr_noop("Leave it out: Rankdeck runs the script as python FILE."),
    "--virtual-local-rank": _OTHER_ADVICE,
}


class ScriptCommand(TyperCommand):
    """Command that accepts torchrun's options besides its own, and does not parse the script's arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ours, theirs = split_script_arguments(args, self.value_options())
        left, problems = _remove_torchrun_options(ours)
        if problems:
            raise ConfigError(problems[0].message, problems=problems)
        # After "--", click takes none of the script's arguments for an option.
        try:
            return super().parse_args(ctx, [*left, "--", *theirs])
        except Exception as error:
            unknown = getattr(error, "option_name", None)
            # With --entry no script separates the two kinds of options, so an unknown option is probably the
            # script's.
            if unknown is None or not any(word.partition("=")[0] == "--entry" for word in ours):
                raise
            raise ConfigError(
                phrase("No such option: {unknown}", unknown=unknown),
                code="usage",
                advice=phrase(
                    "Write further arguments for the entry's script after --, as in: -- {unknown}",
                    unknown=unknown,
                ),
            ) from None

    def value_options(self) -> set[str]:
        """Return the names of the options that take a value."""
        options = (parameter for parameter in self.params if parameter.param_type_name == "option")
        return {name for option in options if not getattr(option, "is_flag", False) for name in option.opts}


def split_script_arguments(argv: Sequence[str], with_value: set[str]) -> tuple[list[str], list[str]]:
    """Split a command line into (options, script with its arguments); a "--" between them is dropped.
    `with_value` are the command's own options that take a value."""
    value_options = with_value | set(UNSUPPORTED_OPTIONS) | set(IGNORED_OPTIONS)
    ours, rest = list[str](), list(argv)
    while rest:
        word = rest[0]
        if word == "--":
            return ours, rest[1:]
        if not word.startswith("-") or word == "-":
            break
        ours.append(rest.pop(0))
        if "=" not in word and _with_dashes(word) in value_options and rest:
            ours.append(rest.pop(0))
    return ours, rest


def _with_dashes(option: str) -> str:
    """Replace the underscores in a long option with dashes; torchrun accepts both spellings."""
    return option.replace("_", "-") if option.startswith("--") else option


def _remove_torchrun_options(arguments: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Return the arguments without torchrun options that have no effect, and a problem per refused option."""
    left, problems, rest = list[str](), list[Problem](), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = _split_option(word)
        if name in UNSUPPORTED_FLAGS:
            problems.append(_unsupported_option(name, "", UNSUPPORTED_FLAGS[name]))
        elif name in UNSUPPORTED_OPTIONS or name in IGNORED_OPTIONS:
            value = value if equals else (rest.pop(0) if rest else "")
            is_fine, advice = UNSUPPORTED_OPTIONS.get(name, (lambda _: True, ""))
            if not is_fine(value):
                problems.append(_unsupported_option(name, value, advice))
        else:
            left.append(name + equals + value)
    return left, problems


def _split_option(word: str) -> tuple[str, str, str]:
    """Split "--tee=3", "-t=3" or "-t3" into (name, "=", value); the last two are "" if there is no value."""
    if word[:2] in ("-t", "-r") and len(word) > 2:
        return word[:2], "=", word[2:].removeprefix("=")
    name, equals, value = word.partition("=")
    return _with_dashes(name), equals, value


def _unsupported_option(name: str, value: str, advice: str) -> Problem:
    return Problem(
        "torchrun-option",
        phrase("rankdeck run does not support {option}.", option=f"{name} {value}".strip()),
        path=name,
        advice=phrase(advice),
    )


def parse_num_ranks(text: str, gpus: Sequence[str] | None) -> int:
    """Return the number of ranks for a value of --nproc-per-node (a number, gpu, cpu or auto).

    `gpus` are the GPUs that --devices names.

    Raises:
        ConfigError: the text is neither a number nor one of these words.
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
                phrase("The option --nproc-per-node gpu needs a GPU, but none is visible."),
                advice=phrase("Write a number, or use --devices cpu:2."),
            )
        # As under torchrun, auto counts the GPUs, or without any the processors.
        return num_gpus or os.cpu_count() or 1
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 1024:
        return int(text)
    raise ConfigError(
        phrase("The value {text} of --nproc-per-node is not a number of ranks.", text=text),
        code="ranks",
        path="script.ranks",
        advice=phrase("Write a number from 1 to 1024, or gpu, cpu or auto."),
    )


def _num_visible_gpus() -> int:
    from rankdeck.launch.device_selection import visible_gpus
    from rankdeck.telemetry.listing import list_gpus

    return len(visible_gpus(list_gpus(), os.environ))
