"""Which folders' Python code the person trusts: resolved folders, each with everything below it.

Kept in trusted.toml beside the settings, and read anew for each question, since another window of the app may
have written it. What needs trust is told by `RunConfig.code_folders`; who asks is views/launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankdeck.base.files import read_toml, write_atomic
from rankdeck.config import RunConfig
from rankdeck.config.consent import has_config_consent
from rankdeck.config.script import ScriptConfig


class Trust:
    """The remembered answers to "Do you trust the authors of the files in this folder?"."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folders(self) -> list[Path]:
        """Trusted folders, sorted; empty when none was ever trusted or the file cannot be read."""
        try:
            listed = read_toml(self.path).get("folders", [])
        except (OSError, ValueError):
            return []  # unreadable is untrusted: the question is asked again
        return (
            sorted(Path(item) for item in listed if isinstance(item, str)) if isinstance(listed, list) else []
        )

    def is_trusted(self, folder: Path) -> bool:
        """Whether the folder, or one above it, is trusted. Links are followed first: a link inside a trusted
        folder to code elsewhere is code elsewhere.
        """
        resolved = folder.resolve()
        return any(resolved == known or known in resolved.parents for known in self.folders())

    def untrusted_folders(self, folders: Iterable[Path]) -> list[Path]:
        """Those of the folders that still need the question."""
        return [folder.resolve() for folder in folders if not self.is_trusted(folder)]

    def untrusted_folders_of_run(self, run: Path, config: RunConfig | ScriptConfig) -> list[Path]:
        """As `untrusted_folders`, for what the configuration of a run that is there names. Where the person
        never started that, the run's own folder is asked about, too: its author chose the code and what it is
        called with.
        """
        return self.untrusted_folders(
            [*config.code_folders(), *([] if has_config_consent(config) else [run])]
        )

    def add(self, folder: Path) -> None:
        """Remember the folder.

        Raises:
            OSError: the file cannot be written.
        """
        self._write({*self.folders(), folder.resolve()})

    def remove(self, folder: Path) -> None:
        """Forget the folder; raises OSError as `add` does."""
        self._write(set(self.folders()) - {folder.resolve()})

    def _write(self, folders: set[Path]) -> None:
        import tomlkit

        write_atomic(self.path, tomlkit.dumps({"folders": sorted(str(folder) for folder in folders)}))
