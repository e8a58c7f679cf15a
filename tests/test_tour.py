"""The walks of docs/tour.md lead from file to file as the code does, and are short enough to be walked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.checkout import CHECKOUT

MOST_FILES = {"a click on Launch": 26, "one training step": 11, "an event becomes a pixel": 16}


def walk_of(page: str, title: str) -> list[tuple[int, Path]]:
    """The depth and the file of each line of a walk."""
    section = page.split(f"\n## Walk: {title}\n")[1].split("\n## ")[0]
    entries = []
    for indent, name in re.findall(r"^( *)- `([\w./]+)`: \S", section, re.MULTILINE):
        of_app = name.startswith("rankdeck_app/")
        entries.append((len(indent) // 2, Path("app" if of_app else "engine/rankdeck", name)))
    assert len(entries) == section.count("- `"), "each line names a file and says what it is"
    return entries


def steps(walk: list[tuple[int, Path]]) -> Iterator[tuple[Path, Path]]:
    """Each file with the one that leads to it."""
    above: list[Path] = []
    for depth, file in walk:
        assert depth <= len(above), f"{file} is indented below nothing"
        if depth:
            yield above[depth - 1], file
        above[depth:] = [file]


def module_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")


def named_in(file: Path) -> set[str]:
    """The modules that a file imports anywhere, or whose names it holds as text."""
    modules = set()
    for node in ast.walk(ast.parse((CHECKOUT / file).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            modules |= {node.value, f"{node.value}.__main__"}
    return modules


def leads_to(file: Path, to: Path) -> bool:
    """It imports `to`, starts it, or takes it from the package that hands it on; or `to` implements it."""
    named, module = named_in(file), module_of(to)
    package = to.parent / "__init__.py"
    handed_on = module_of(package) in named and module in named_in(package)
    return module in named or handed_on or _implements(to, module_of(file))


def _implements(file: Path, contract: str) -> bool:
    """Whether it has a class whose base is one of the contract's."""
    tree = ast.parse((CHECKOUT / file).read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == contract]
    names = {alias.name for node in imports for alias in node.names}
    bases = [base for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases]
    return any(isinstance(base, ast.Name) and base.id in names for base in bases)


@pytest.mark.parametrize("title", MOST_FILES)
def test_a_walk_goes_where_the_code_goes(title: str) -> None:
    walk = walk_of((CHECKOUT / "docs/tour.md").read_text("utf-8"), title)
    assert [str(file) for _, file in walk if not (CHECKOUT / file).is_file()] == []
    assert [f"{file} does not lead to {to}" for file, to in steps(walk) if not leads_to(file, to)] == []
    assert 5 < len({file for _, file in walk}) <= MOST_FILES[title]


def test_a_step_that_the_code_does_not_take_is_found() -> None:
    page = "\n## Walk: wrong\n\n- `training/workload.py`: one\n  - `training/worker.py`: the user\n"
    ((file, to),) = steps(walk_of(page, "wrong"))
    assert leads_to(to, file) and not leads_to(file, to)
