"""Finds user code that a configuration executes, and records the user's consent to executing it.

A run directory may come from anywhere, and its configuration may call any code with any arguments. Starting a
run on this machine counts as consent, and so does answering yes to the question that cli/trust.py and the app
ask. Consent is stored in the user's state folder, under a digest of the code to be executed rather than the
run's path. So a run directory that was copied from elsewhere has no consent, and a run directory that was
moved keeps its consent.
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
    """The user code that a run executes.

    `descriptions` has one entry for each call; `digest` covers everything that determines what the code does.
    """

    descriptions: tuple[str, ...]
    digest: str


def execution_of(config: RunConfig | ScriptConfig) -> CodeExecution | None:
    """Return the user code that a configuration executes; None if it uses the catalog alone."""
    if isinstance(config, ScriptConfig):
        # `python_source` is left out: how the interpreter was found does not change what is executed.
        folder = Path(config.script.folder).absolute()
        digest_input = config.script.model_dump(exclude={"python_source"}) | {"folder": str(folder)}
        return _make_execution([_describe_script(config, folder)], digest_input)
    calls = config.user_calls()
    folder = Path(config.folder or ".").absolute()
    descriptions = [_describe_call(use, arguments, folder) for use, arguments in calls.values()]
    return _make_execution(descriptions, {"folder": str(folder), **calls}) if calls else None


def has_consent(execution: CodeExecution) -> bool:
    """Return whether the user has started this code on this machine before, or agreed to its execution."""
    try:
        # Damaged bytes must not raise an error; they lose only the consent that they are part of.
        return execution.digest in files.read_bytes(_consent_file()).decode("ascii", "replace").split()
    except OSError:
        return False


def has_config_consent(config: RunConfig | ScriptConfig) -> bool:
    """Return whether the user agreed to all user code of the configuration; true if it executes none."""
    execution = execution_of(config)
    return execution is None or has_consent(execution)


def record_consent(execution: CodeExecution) -> None:
    """Store the user's consent to this execution. If that fails, the user is asked again next time."""
    if has_consent(execution):
        return
    try:
        _consent_file().parent.mkdir(parents=True, exist_ok=True)
        # Appended and not rewritten, so that runs that start at the same time do not lose each other's
        # consent.
        with open(_consent_file(), "a", encoding="ascii") as file:
            file.write(f"{execution.digest}\n")
    except OSError:
        pass


def record_start_consent(config: RunConfig | ScriptConfig) -> None:
    """Store the consent that the user gives to a configuration's user code by starting a run."""
    execution = execution_of(config)
    if execution is not None:
        record_consent(execution)


def _consent_file() -> Path:
    return state_dir() / "agreed"


def _make_execution(descriptions: list[str], digest_input: Mapping[str, object]) -> CodeExecution:
    # Sorted, because the order of keys does not change what runs. `default` is for dates, which TOML has and
    # JSON does not.
    text = json.dumps(digest_input, sort_keys=True, default=str)
    return CodeExecution(
        tuple(descriptions), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    )


def _describe_call(use: str, arguments: Mapping[str, object], folder: Path) -> str:
    """Return text such as '/home/me/model.py:Model(width=64)'; if `use` names a module, append the folder in
    which Python first looks for modules."""
    module, _, name = use.rpartition(":")
    call = f":{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if module.endswith(".py"):
        return f"{folder / module}{call}"
    return f"{module}{call} [{folder}]"


def _describe_script(config: ScriptConfig, folder: Path) -> str:
    variables = [f"{name}={value}" for name, value in config.script.environment.items()]
    return f"{shlex.join(mask_arguments([*variables, *config.command()]))} [{folder}]"


# Checks of the files and folders that a configuration names, before any of it runs.

_MISSING_CODE = {
    (False, False): tr_noop("{option}: {file} does not exist."),
    (True, False): tr_noop("{option}: {file} is not a file."),
    (True, True): tr_noop("{option}: {file} is empty."),
}
"""Messages by (path exists, path is a regular file)."""


def check_paths(config: RunConfig) -> None:
    """Check that the files and folders that the run reads exist and are readable.

    Raises:
        DataError, ModelError: a path is missing or not readable.
    """
    path = config.data.args.get("path")
    if isinstance(path, str) and not path.startswith("@") and ":" not in config.data.use:
        if not Path(path).exists():
            raise DataError(
                phrase("data.args.path = {path} does not exist.", path=path),
                path="data.args.path",
                advice=phrase("Correct the path."),
            )
        # Opening a file in a folder needs the folder's execute permission.
        if not os.access(path, os.R_OK | (os.X_OK if Path(path).is_dir() else 0)):
            raise DataError(
                phrase("data.args.path = {path} is not readable.", path=path),
                path="data.args.path",
                advice=phrase("Change its permissions, or choose another path."),
            )
    check_code(config)


def refuse_main(use: str, option: str, error: type[RankdeckError]) -> None:
    """Check that `use`, the reference to code in `option`, does not name `__main__`, which is a notebook or
    the running script: ranks cannot import code from there.

    Raises: `error` if it names `__main__`.
    """
    module, _, name = use.rpartition(":")
    if module == "__main__":
        raise error(
            phrase(
                "{option} = {use!r} cannot be imported: every rank is a separate process with "
                "its own __main__.",
                option=option,
                use=use,
            ),
            path=option,
            advice=phrase(
                "Move the code, with everything that it needs, to a file, and refer to it as "
                '"path/to/file.py:{name}".',
                name=name,
            ),
        )


def check_code(config: RunConfig) -> None:
    """Check that the code files that a configuration names exist and are not empty.

    Raises:
        DataError, ModelError, ConfigError: a file is missing or empty.
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
        # Whether a module exists is not checked: only an import would show it, and that executes code.
        if not (colon and file.endswith(".py")) or (code.is_file() and code.stat().st_size):
            continue
        template = _MISSING_CODE[(code.exists(), code.is_file())]
        message = phrase(template, option=f"{section}.use", file=file)
        raise error(message, path=f"{section}.use", advice=phrase("Correct the path."))
