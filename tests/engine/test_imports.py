"""Who may be imported by whom, proven in interpreters of their own.

import-linter reads the source; these tests run it, since a parent package or a library can bring along what
no line of ours names.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import rankdeck
from tests.helpers.checkout import CHECKOUT

ENGINE = Path(rankdeck.__file__).parent
INJECT_FOLDER = ENGINE / "observer/inject"
"""No package: its sitecustomize is found by this folder's place on a script's path."""
NO_OTHER_VIEW = "no view imports another view"
NO_OTHER_STRATEGY = "no strategy imports another strategy"

# The rooms that the app may import, and every command that needs no model.
TORCH_FREE = (
    "base",
    "config",
    "events",
    "run_dir",
    "checkpoint_files",
    "run",
    "telemetry",
    "diagnose",
    "doctor",
)


def _modules() -> list[str]:
    """Every module of the engine, found without importing any."""
    sources = [file for file in ENGINE.rglob("*.py") if file.parent != INJECT_FOLDER]
    files = [file.relative_to(ENGINE.parent).with_suffix("") for file in sources]
    paths = [file.parts[:-1] if file.name == "__init__" else file.parts for file in files]
    return sorted(".".join(path) for path in paths if path[-1] != "__main__")


def _is_torch_free(module: str) -> bool:
    return module == "rankdeck" or module.split(".")[1] in TORCH_FREE


def _imported_by(modules: list[str], names: list[str]) -> list[str]:
    """Which of `names` are in sys.modules once a fresh interpreter has imported `modules`."""
    script = (
        "import importlib, json, sys\n"
        "modules, asked = json.loads(sys.argv[1])\n"
        "for module in modules: importlib.import_module(module)\n"
        "print(json.dumps([name for name in asked if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([modules, names])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_the_whole_engine_imports_no_qt() -> None:
    assert len(_modules()) > 20
    assert _imported_by(_modules(), ["PySide6", "shiboken6", "pyqtgraph", "rankdeck_app"]) == []


def test_packages_that_the_app_imports_do_not_import_torch() -> None:
    floor = [module for module in _modules() if _is_torch_free(module)]
    assert {module.split(".")[1] for module in floor if "." in module} == set(TORCH_FREE)
    assert _imported_by(floor, ["torch"]) == []


def test_only_the_run_state_imports_numpy_for_the_app() -> None:
    """The app paints before it is there, and the command line starts without it."""
    floor = [module for module in _modules() if _is_torch_free(module)]
    light = [module for module in floor if module.split(".")[1:2] != ["run"]]
    lists = ["row", "prediction", "problems", "plan_lines", "imbalance", "breakdown"]
    assert _imported_by([*light, *(f"rankdeck.run.{name}" for name in lists)], ["numpy"]) == []
    assert _imported_by(["rankdeck.run.run_state"], ["numpy"]) == ["numpy"]


def test_the_import_check_detects_torch() -> None:
    assert _imported_by(["rankdeck.memory.ledger"], ["torch"]) == ["torch"]


def test_importing_rankdeck_imports_nothing_else() -> None:
    tree = ast.parse((ENGINE / "__init__.py").read_text())
    assert not [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    others = [module for module in _modules() if module != "rankdeck"]
    assert _imported_by(["rankdeck"], [*others, "torch", "numpy", "msgspec", "pydantic"]) == []


def test_public_names_match_the_stub_and_do_not_import_torch() -> None:
    stub = ast.parse((ENGINE / "__init__.pyi").read_text())
    named = {
        alias.asname or "" for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert named == {"train", "run", "race", "open_run", "Run", "Raced", "log"}
    assert all(callable(getattr(rankdeck, name)) and name in dir(rankdeck) for name in named)
    rooms = ["rankdeck.api.runs", "rankdeck.api.run_object", "rankdeck.api.races"]
    assert _imported_by(rooms, ["torch"]) == []


def test_every_package_folder_has_an_init_file() -> None:
    """Without __init__.py a folder drops out of the layers that import-linter checks."""
    folders = {file.parent for root in (ENGINE, CHECKOUT / "app/rankdeck_app") for file in root.rglob("*.py")}
    missing = [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    assert missing == [INJECT_FOLDER]


def _lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of a copy of the sources."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": f"{checkout / 'engine'}:{checkout / 'app'}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_import_linter_catches_forbidden_imports(tmp_path: Path) -> None:
    for folder in ("engine", "app"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    forbidden = {
        "engine/rankdeck/base/units.py": ("rankdeck.training.loop", "the engine's rooms import one way only"),
        "engine/rankdeck/models/losses.py": ("PySide6.QtCore", "the engine knows neither the app nor Qt"),
        "engine/rankdeck/events.py": ("torch", "what the app may import never imports torch"),
        "app/rankdeck_app/settings.py": ("torch", "the app imports the engine's torch-free rooms only"),
        "app/rankdeck_app/state/series.py": ("rankdeck_app.shell.tab", "the app's rooms import one way only"),
        "app/rankdeck_app/views/launch/side_bar.py": (
            "rankdeck_app.views.dashboard",
            "no view imports another view",
        ),
        "engine/rankdeck/strategies/ddp.py": (
            "rankdeck.strategies.single",
            "no strategy imports another strategy",
        ),
        "engine/rankdeck/launch/guard.py": ("psutil", "the guard is standard library only"),
    }
    for file, (module, _) in forbidden.items():
        with (tmp_path / file).open("a") as source:
            source.write(f"\nimport {module}\n")
    done = _lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    contracts = [contract for _, contract in forbidden.values() if f"{contract} BROKEN" not in done.stdout]
    assert contracts == [], done.stdout


def test_the_table_of_commands_reads_no_configuration() -> None:
    """Every command pays for what it imports, `--help` and `stop` too."""
    assert _imported_by(["rankdeck.cli.app"], ["pydantic", "rankdeck.config.schema"]) == []
