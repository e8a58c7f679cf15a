"""Every private place of torch that the engine touches is where it was; people hear of an unknown torch."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rankdeck
from rankdeck.torch_compat import versions
from rankdeck.torch_compat.places import CHECKED, Private

ENGINE = Path(rankdeck.__file__).parent
ROOM = ENGINE / "torch_compat"


@pytest.mark.parametrize("place", versions.places(), ids=lambda place: place.path)
def test_a_place_is_as_the_engine_uses_it(place: Private) -> None:
    assert place.moved() is None
    assert place.without and set(place.checked) <= set(CHECKED)


def test_every_module_of_the_room_that_has_places_is_asked() -> None:
    with_places = {file.stem for file in ROOM.glob("*.py") if "\nPLACES = (" in file.read_text()}
    assert with_places == set(versions.SUBJECTS)


def test_a_place_that_has_moved_is_seen() -> None:
    assert "is gone" in (Private("torch:no_such_thing", "").moved() or "")
    assert "is gone" in (Private("torch.no_such_module:thing", "").moved() or "")
    assert "is gone" in (
        Private("words", "", look=lambda: importlib.import_module("torch").nothing).moved() or ""
    )
    tree_map = "torch.utils._pytree:tree_map"
    assert "takes (func, tree" in (Private(tree_map, "", takes=("tree", "func")).moved() or "")
    assert Private(tree_map, "", takes=("func",)).moved() == f"{tree_map} wants tree besides"


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cu130", "2.15.9", "2.15.0a0+git"])
def test_nothing_is_said_of_a_known_torch(version: str) -> None:
    assert versions.version_problem(version) is None


@pytest.mark.parametrize("version", ["2.10.2", "2.14.1", "2.16.0+cpu", "3.0"])
def test_a_person_hears_of_an_unknown_torch(version: str) -> None:
    problem = versions.version_problem(version)
    assert problem is not None and problem.severity == "warning" and problem.code == "torch-unknown"
    assert f"torch {version} " in problem.message and CHECKED[-1] in problem.message
    assert "Nothing that it relies on seems to have moved" in problem.message


def test_a_person_hears_what_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "places", lambda: [Private("torch:gone", "plans cannot be made")])
    problem = versions.version_problem("2.99.0")
    assert problem is not None and "plans cannot be made" in problem.message


def test_asking_about_a_known_torch_imports_none() -> None:
    script = (
        "import json, sys; from rankdeck.torch_compat.versions import version_problem;"
        "version_problem(); print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False


def test_no_other_room_imports_a_private_part_of_torch() -> None:
    outside = []
    for file in ENGINE.rglob("*.py"):
        if ROOM in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            module = getattr(node, "module", None) or ""
            for path in [f"{module}.{name}" if module else name for name in names]:
                parts = path.split(".")
                if parts[0] == "torch" and any(part.startswith("_") for part in parts[1:]):
                    outside.append(f"{file.relative_to(ENGINE)}: {path}")
    assert outside == []
