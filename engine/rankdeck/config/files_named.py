"""Files and folders that a configuration names are there, before anything of it runs."""

from __future__ import annotations

import os
from pathlib import Path

from rankdeck.base.errors import ConfigError, DataError, ModelError, RankdeckError
from rankdeck.base.phrases import marked, phrase
from rankdeck.config.schema import RunConfig

_NO_CODE = {
    (False, False): marked("{option}: {file} does not exist."),
    (True, False): marked("{option}: {file} is no file."),
    (True, True): marked("{option}: {file} is empty."),
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
        template = _NO_CODE[(code.exists(), code.is_file())]
        message = phrase(template, option=f"{section}.use", file=file)
        raise error(message, path=f"{section}.use", advice=phrase("Correct the path."))
