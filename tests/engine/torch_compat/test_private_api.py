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
from rankdeck.torch_compat.private_api import CHECKED_VERSIONS, PrivateApi

ENGINE = Path(rankdeck.__file__).parent
TORCH_COMPAT = ENGINE / "torch_compat"


@pytest.mark.parametrize("api", versions.private_apis(), ids=lambda api: api.path)
def test_a_private_api_is_as_the_engine_uses_it(api: PrivateApi) -> None:
    assert api.find_change() is None
    assert api.consequence and set(api.versions) <= set(CHECKED_VERSIONS)


def test_every_module_with_private_apis_is_listed() -> None:
    with_places = {
        file.stem for file in TORCH_COMPAT.glob("*.py") if "\nPRIVATE_APIS = (" in file.read_text()
    }
    assert with_places == set(versions.MODULES)


def test_a_changed_private_api_is_found() -> None:
    assert "is gone" in (PrivateApi("torch:no_such_thing", "").find_change() or "")
    assert "is gone" in (PrivateApi("torch.no_such_module:thing", "").find_change() or "")
    assert "is gone" in (
        PrivateApi("words", "", lookup=lambda: importlib.import_module("torch").nothing).find_change() or ""
    )
    tree_map = "torch.utils._pytree:tree_map"
    assert "takes (func, tree" in (PrivateApi(tree_map, "", parameters=("tree", "func")).find_change() or "")
    assert PrivateApi(tree_map, "", parameters=("func",)).find_change() == f"{tree_map} also requires tree"


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cu130", "2.15.9", "2.15.0a0+git"])
def test_a_known_torch_raises_no_warning(version: str) -> None:
    assert versions.version_problem(version) is None


@pytest.mark.parametrize("version", ["2.10.2", "2.14.1", "2.16.0+cpu", "3.0"])
def test_an_unknown_torch_raises_a_warning(version: str) -> None:
    problem = versions.version_problem(version)
    assert problem is not None and problem.severity == "warning" and problem.code == "torch-unknown"
    assert f"torch {version}, only with " in problem.message and CHECKED_VERSIONS[-1] in problem.message
    assert "The private APIs that it uses seem unchanged" in problem.message


def test_the_warning_names_what_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "private_apis", lambda: [PrivateApi("torch:gone", "all plans fail")])
    problem = versions.version_problem("2.99.0")
    assert problem is not None and "all plans fail" in problem.message


def test_checking_a_known_version_does_not_import_torch() -> None:
    script = (
        "import json, sys; from rankdeck.torch_compat.versions import version_problem;"
        "version_problem(); print(json.dumps('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False


def test_only_torch_compat_imports_private_torch_modules() -> None:
    outside = []
    for file in ENGINE.rglob("*.py"):
        if TORCH_COMPAT in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            module = getattr(node, "module", None) or ""
            for path in [f"{module}.{name}" if module else name for name in names]:
                components = path.split(".")
                if components[0] == "torch" and any(
                    component.startswith("_") for component in components[1:]
                ):
                    outside.append(f"{file.relative_to(ENGINE)}: {path}")
    assert outside == []
