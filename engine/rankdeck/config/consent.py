"""Which code of others a run's configuration executes, and whether the person has agreed to that.

A run's folder may come from anywhere, and what its configuration names is called with the arguments that
stand there. What a person starts here is agreed to, and so is what a question was answered with yes for: both
are kept outside of every run, in the person's own state, by a digest of what is executed and not by the run's
place. So a folder that was copied in vouches for nothing, and one that was moved is known still. Who asks is
cli/trust.py, and the app.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, DataError, ModelError, RankdeckError
from rankdeck.base.home import state_dir
from rankdeck.base.masking import mask_arguments
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.schema import RunConfig
from rankdeck.config.script import ScriptConfig


@dataclass(frozen=True)
class CodeExecution:
    """`descriptions` say what is executed, an entry for each; `digest` is that of all that decides what it
    does."""

    descriptions: tuple[str, ...]
    digest: str


def execution_of(config: RunConfig | ScriptConfig) -> CodeExecution | None:
    """None for a configuration that uses the catalogue alone: it executes nothing of others."""
    if isinstance(config, ScriptConfig):
        folder = Path(config.script.folder).absolute()
        told = config.script.model_dump(exclude={"python_source"}) | {"folder": str(folder)}
        return _make_execution([_describe_script(config, folder)], told)
    calls = config.user_calls()
    folder = Path(config.folder or ".").absolute()
    words = [_describe_call(use, arguments, folder) for use, arguments in calls.values()]
    return _make_execution(words, {"folder": str(folder), **calls}) if calls else None


def has_consent(execution: CodeExecution) -> bool:
    """Whether the person has started this here, or said yes to it."""
    try:
        return execution.digest in files.read_bytes(_consent_file()).decode("ascii", "replace").split()
    except OSError:
        return False


def has_config_consent(config: RunConfig | ScriptConfig) -> bool:
    """Whether nothing of others is executed, or all of it is agreed to."""
    execution = execution_of(config)
    return execution is None or has_consent(execution)


def record_consent(execution: CodeExecution) -> None:
    """Remember it. Where that fails, the question comes again."""
    if has_consent(execution):
        return
    try:
        _consent_file().parent.mkdir(parents=True, exist_ok=True)
        with open(_consent_file(), "a", encoding="ascii") as file:
            file.write(f"{execution.digest}\n")
    except OSError:
        pass


def record_start_consent(config: RunConfig | ScriptConfig) -> None:
    """A person starts this: that is an answer."""
    execution = execution_of(config)
    if execution is not None:
        record_consent(execution)


def _consent_file() -> Path:
    return state_dir() / "agreed"


def _make_execution(words: list[str], told: Mapping[str, object]) -> CodeExecution:
    text = json.dumps(told, sort_keys=True, default=str)
    return CodeExecution(
        tuple(words), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    )


def _describe_call(use: str, arguments: Mapping[str, object], folder: Path) -> str:
    """'/home/me/model.py:Model(width=64)'; of a module the folder that it is looked for in first, too."""
    module, _, name = use.rpartition(":")
    call = f":{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if module.endswith(".py"):
        return f"{folder / module}{call}"
    return f"{module}{call} [{folder}]"


def _describe_script(config: ScriptConfig, folder: Path) -> str:
    variables = [f"{name}={value}" for name, value in config.script.environment.items()]
    return f"{shlex.join(mask_arguments([*variables, *config.command()]))} [{folder}]"


# Files and folders that a configuration names are there, before anything of it runs.

_MISSING_CODE = {
    (False, False): tr_noop("{option}: {file} does not exist."),
    (True, False): tr_noop("{option}: {file} is no file."),
    (True, True): tr_noop("{option}: {file} is empty."),
}
"""By whether it is there, and a file."""


def check_paths(config: RunConfig) -> None:
    """Files and folders that the run will read exist and may be read.

    Raises:
        DataError, ModelError: one does not, or may not.
    """
    path = config.data.args.get("path")
    if isinstance(path, str) and not path.startswith("@") and ":" not in config.data.use:
        if not Path(path).exists():
            raise DataError(
                phrase("data.args.path = {path} does not exist.", path=path),
                path="data.args.path",
                advice=phrase("Correct the path."),
            )
        if not os.access(path, os.R_OK | (os.X_OK if Path(path).is_dir() else 0)):
            raise DataError(
                phrase("data.args.path = {path} may not be read.", path=path),
                path="data.args.path",
                advice=phrase("Change its permissions, or choose another path."),
            )
    check_code(config)


def refuse_main(use: str, option: str, error: type[RankdeckError]) -> None:
    """Raises: `error` for a name in a notebook, or in the script that is running."""
    place, _, name = use.rpartition(":")
    if place == "__main__":
        raise error(
            phrase(
                "{option} = {use!r}: ranks are processes of their own, each with another __main__.",
                option=option,
                use=use,
            ),
            path=option,
            advice=phrase(
                'Put it in a file with all that it needs, and name it there: "path/to/file.py:{name}".',
                name=name,
            ),
        )


def check_code(config: RunConfig) -> None:
    """Files of code that a configuration names are there, with something in them.

    Raises:
        DataError, ModelError, ConfigError: one is not.
    """
    for section, use, error in (
        ("model", config.model.use, ModelError),
        ("data", config.data.use, DataError),
        ("loss", config.loss.use, ConfigError),
        ("train.optimizer", config.train.optimizer.use, ConfigError),
    ):
        refuse_main(use, f"{section}.use", error)
        file, colon, _ = use.rpartition(":")
        code = Path(config.folder or ".", file)
        if not (colon and file.endswith(".py")) or (code.is_file() and code.stat().st_size):
            continue
        template = _MISSING_CODE[(code.exists(), code.is_file())]
        message = phrase(template, option=f"{section}.use", file=file)
        raise error(message, path=f"{section}.use", advice=phrase("Correct the path."))
