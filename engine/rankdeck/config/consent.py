"""Which code of others a run's configuration executes, and whether the person has agreed to that.

A run's folder may come from anywhere, and what its configuration names is called with the arguments that
stand there. What a person starts here is agreed to, and so is what a question was answered with yes for: both
are kept outside of every run, in the person's own state, by a digest of what is executed and not by the run's
place. So a folder that was copied in vouches for nothing, and one that was moved is known still. Who asks is
cli/trust.py, and the app.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rankdeck.base import files
from rankdeck.base.home import state_dir
from rankdeck.base.masking import mask_arguments
from rankdeck.config.schema import RunConfig
from rankdeck.config.script import ScriptConfig


@dataclass(frozen=True)
class Execution:
    """`words` say what is executed, an entry for each; `digest` is that of all that decides what it does."""

    words: tuple[str, ...]
    digest: str


def execution_of(config: RunConfig | ScriptConfig) -> Execution | None:
    """None for a configuration that uses the catalogue alone: it executes nothing of others."""
    if isinstance(config, ScriptConfig):
        folder = Path(config.script.folder).absolute()
        told = config.script.model_dump(exclude={"python_source"}) | {"folder": str(folder)}
        return _execution([_script_words(config, folder)], told)
    calls = config.own_calls()
    folder = Path(config.folder or ".").absolute()
    words = [_call_words(use, arguments, folder) for use, arguments in calls.values()]
    return _execution(words, {"folder": str(folder), **calls}) if calls else None


def is_agreed(execution: Execution) -> bool:
    """Whether the person has started this here, or said yes to it."""
    try:
        return execution.digest in files.read_bytes(_agreed_file()).decode("ascii", "replace").split()
    except OSError:
        return False


def is_known(config: RunConfig | ScriptConfig) -> bool:
    """Whether nothing of others is executed, or all of it is agreed to."""
    execution = execution_of(config)
    return execution is None or is_agreed(execution)


def agree(execution: Execution) -> None:
    """Remember it. Where that fails, the question comes again."""
    if is_agreed(execution):
        return
    try:
        _agreed_file().parent.mkdir(parents=True, exist_ok=True)
        with open(_agreed_file(), "a", encoding="ascii") as file:
            file.write(f"{execution.digest}\n")
    except OSError:
        pass


def agree_to_start(config: RunConfig | ScriptConfig) -> None:
    """A person starts this: that is an answer."""
    execution = execution_of(config)
    if execution is not None:
        agree(execution)


def _agreed_file() -> Path:
    return state_dir() / "agreed"


def _execution(words: list[str], told: dict[str, Any]) -> Execution:
    text = json.dumps(told, sort_keys=True, default=str)
    return Execution(tuple(words), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest())


def _call_words(use: str, arguments: dict[str, Any], folder: Path) -> str:
    """'/home/me/model.py:Model(width=64)'; of a module the folder that it is looked for in first, too."""
    module, _, name = use.rpartition(":")
    call = f":{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if module.endswith(".py"):
        return f"{folder / module}{call}"
    return f"{module}{call} [{folder}]"


def _script_words(config: ScriptConfig, folder: Path) -> str:
    variables = [f"{name}={value}" for name, value in config.script.environment.items()]
    return f"{shlex.join(mask_arguments([*variables, *config.command()]))} [{folder}]"
