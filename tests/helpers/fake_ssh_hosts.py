"""Hosts that are this machine, each with a home of its own: what stands in for `ssh` (RANKDECK_SSH) starts
there what ssh would start, so that everything behind it is as it is. For what needs a network of its own see
host_network.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.helpers.checkout import PRODUCT

_PROGRAM = """\
#!/bin/sh
for word; do
  case "$word" in
    box*) host=$word ;;
    gone*) echo "ssh: Could not resolve hostname $word: Name or service not known" >&2; exit 255 ;;
  esac
  last=$word
done
export HOME={folder}/$host RANKDECK_HOME={folder}/$host/rankdeck RANKDECK_RUNS={folder}/$host/runs
export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" PYTHONPATH={product}
unset RANKDECK_SSH
mkdir -p "$HOME" && cd "$HOME" || exit 1
[ -f environment ] && . ./environment
case "$last" in *serve*) exec {python} -P -m rankdeck serve --stdio ;; esac
exec sh -c "$last"
"""


class FakeSshHosts:
    """`box1`, `box2` and so on answer, `gone...` does not."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        program = folder / "ssh"
        program.write_text(_PROGRAM.format(folder=folder, product=PRODUCT, python=sys.executable))
        program.chmod(0o755)
        monkeypatch.setenv("RANKDECK_SSH", str(program))

    def runs(self, host: str) -> Path:
        """Where it keeps its runs."""
        return self._folder / host / "runs"

    def set_environment(self, host: str, environment: Mapping[str, str]) -> None:
        """What every process there finds."""
        (self._folder / host).mkdir(exist_ok=True)
        lines = (f"export {name}='{value}'\n" for name, value in environment.items())
        (self._folder / host / "environment").write_text("".join(lines))
