"""A folder of a person's own scripts with an environment and a rankdeck.toml; and the Launch view of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rankdeck.config.presets import Preset
from rankdeck_app.settings import Settings
from rankdeck_app.state.device_choice import DeviceChoice
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.state.host_gpus import HostGpus
from rankdeck_app.state.script_draft import ScriptDraft
from rankdeck_app.state.script_folder import ScriptFolder
from rankdeck_app.state.workspace import Workspace
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.fake_plan import idle_plan

TRAINS = """\
import sys
import torch

if __name__ == "__main__":
    print("trained with", sys.argv[1:])
"""
ENTRIES = """\
# how I run it
[scripts.small]
run = "train.py"
args = ["--lr", "1e-3"]
devices = "cpu:2"

[scripts.large]
run = "models/large.py"
environment = { WANDB_MODE = "offline" }
"""


def project(folder: Path) -> Path:
    """Two scripts that import torch, one that does not, two entries, and a .venv as its files look."""
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text(TRAINS)
    (folder / "models" / "large.py").write_text(TRAINS)
    (folder / "plot.py").write_text("import csv\n")
    (folder / "rankdeck.toml").write_text(ENTRIES)
    environment(folder / ".venv", "3.10.4", "2.4.1")
    return folder


def environment(prefix: Path, version: str, torch: str | None) -> Path:
    """What a listing reads of an environment; its Python cannot run, so that nobody runs it by chance."""
    packages = prefix / "lib" / f"python{version.rpartition('.')[0]}" / "site-packages"
    packages.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    python = prefix / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 99\n")
    python.chmod(0o755)
    if torch is not None:
        (packages / f"torch-{torch}.dist-info").mkdir()
    return python


def launch_view(
    theme: Theme, draft: Draft, gpus: Gpus, presets: Sequence[Preset], keys: Callable[[], str]
) -> LaunchView:
    """The view on a folder that holds no script."""
    folder = draft.folder
    workspace = Workspace(folder / "ws.json", Settings(folder / "s.toml"), folder=folder, parent=draft)
    script = ScriptDraft(folder / "script.json", folder, draft)
    scripts = ScriptFolder(workspace, folder / "interpreters.json", draft)
    choice = DeviceChoice(draft, script, draft)
    hosts = HostGpus(Engine(folder / "launch", draft), gpus, choice, draft)
    return LaunchView(theme, draft, script, scripts, choice, hosts, presets, idle_plan(draft), keys)
