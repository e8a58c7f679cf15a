"""Folders whose Python code the user trusts. Trust in a folder extends to everything below it.

The folders are saved in trusted.toml next to the settings, with symbolic links resolved. They are read again
for every check, because another window of the app may have changed them. `RunConfig.code_folders` lists the
folders that the user must trust before a run starts; views/launch asks the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankdeck.base.files import read_toml, write_atomic
from rankdeck.config import RunConfig
from rankdeck.config.consent import has_config_consent
from rankdeck.config.script import ScriptConfig


class Trust:
    """Saved answers to "Do you trust the authors of the files in this folder?"."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folders(self) -> list[Path]:
        """Return the trusted folders, sorted; empty if there are none or the file cannot be read."""
        try:
            listed = read_toml(self.path).get("folders", [])
        except (OSError, ValueError):
            return []  # unreadable counts as untrusted: the user is asked again
        return (
            sorted(Path(item) for item in listed if isinstance(item, str)) if isinstance(listed, list) else []
        )

    def is_trusted(self, folder: Path) -> bool:
        """Check whether the folder or one of its parents is trusted.

        Links are resolved first: a link in a trusted folder may lead to code elsewhere.
        """
        resolved = folder.resolve()
        return any(resolved == trusted or trusted in resolved.parents for trusted in self.folders())

    def untrusted_folders(self, folders: Iterable[Path]) -> list[Path]:
        """Return the folders that are not trusted yet."""
        return [folder.resolve() for folder in folders if not self.is_trusted(folder)]

    def untrusted_folders_of_run(self, run: Path, config: RunConfig | ScriptConfig) -> list[Path]:
        """Return the untrusted folders that the configuration of an existing run names.

        If the user has not agreed to execute that configuration's code, the run directory itself is included,
        because the author of the configuration chose the code and its arguments.
        """
        return self.untrusted_folders(
            [*config.code_folders(), *([] if has_config_consent(config) else [run])]
        )

    def add(self, folder: Path) -> None:
        """Trust a folder.

        Raises:
            OSError: the file cannot be written.
        """
        self._write({*self.folders(), folder.resolve()})

    def remove(self, folder: Path) -> None:
        """Stop trusting a folder.

        Raises:
            OSError: the file cannot be written.
        """
        self._write(set(self.folders()) - {folder.resolve()})

    def _write(self, folders: set[Path]) -> None:
        import tomlkit

        write_atomic(self.path, tomlkit.dumps({"folders": sorted(str(folder) for folder in folders)}))
