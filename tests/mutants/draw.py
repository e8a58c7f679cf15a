"""Draws breaks by cosmic-ray's operators over the engine's source.

    python draw.py NUMBER SEED OUT.json

cosmic-ray brings 28 packages, a database and a web client among them, so it lives in an environment of its
own, which make mutants makes; this file imports nothing of ours but breaks.py. Lines are drawn by a digest of
seed, file and text, not in an order: a change of the source leaves the breaks of other lines as they were.
Prose, annotations, imports and statements that raise are left out.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from tests.mutants.breaks import DRAWN, ENGINE, Break  # noqa: E402

_NOT_MEANT = re.compile(
    "Variable|RemoveDecorator|ExceptionReplacer|_(Bit|LShift|RShift|Pow|Is)|(Bit|Shift)[A-Za-z]*_|_Is"
)
"""Operators that want arguments, and those whose results nobody could miss or nobody could see."""

TESTS_OF = {
    "base": ("engine/base", "engine/test_run_dir.py"),
    "checkpoint": ("engine/checkpoint",),
    "cli": ("engine/cli", "engine/telemetry", "e2e/test_cli.py", "e2e/test_plan.py"),
    "config": ("engine/config", "engine/test_run_dir.py", "engine/launch/test_device_selection.py"),
    "data": ("engine/data", "engine/training/test_oracle.py"),
    "diagnose": ("engine/diagnose",),
    "launch": ("engine/launch", "e2e/test_faults.py"),
    "memory": ("engine/memory", "engine/strategies/test_memory.py"),
    "models": ("engine/models", "engine/strategies/test_parity.py"),
    "parallel": ("engine/parallel", "engine/strategies"),
    "planner": ("engine/planner",),
    "profiling": ("engine/profiling", "engine/strategies/test_pipeline_memory.py"),
    "run": ("engine/run", "test_reading_runs.py"),
    "run_dir": ("engine/test_run_dir.py", "engine/test_events.py"),
    "strategies": ("engine/strategies", "engine/training/test_oracle.py"),
    "telemetry": ("engine/telemetry", "engine/launch/test_device_selection.py"),
    "torch_compat": ("engine/torch_compat", "engine/memory", "engine/planner"),
    "training": (
        "engine/training",
        "engine/checkpoint/test_resuming.py",
        "engine/strategies/test_parity.py",
        "engine/strategies/test_memory.py",
        "engine/strategies/test_hugging_face.py",
    ),
    "events": ("engine/test_events.py", "engine/test_run_dir.py", "test_reading_runs.py"),
    "checkpoint_files": ("engine/checkpoint",),
}
"""Where a room's tests lie, files or folders below tests/."""


@dataclass(frozen=True)
class _Site:
    """One occurrence of one operator."""

    operator: str
    occurrence: int
    line: int


def _iter_sites(source: str, operators: dict[str, Any]) -> Iterator[_Site]:
    counts: dict[str, int] = defaultdict(int)
    for node in ast_nodes(get_ast(source)):
        for name, operator in operators.items():
            for start, _ in operator.mutation_positions(node):
                yield _Site(name, counts[name], start[0])
                counts[name] += 1


def _lines_that_run(source: str) -> set[int]:
    """Without annotations of arguments and fields, imports, and statements that raise."""
    tree, left_out = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left_out.update(range(node.lineno, node.body[0].lineno))
        if isinstance(node, ast.AnnAssign):
            left_out.update(range(node.lineno, (node.annotation.end_lineno or 0) + 1))
    return set(range(1, source.count("\n") + 2)) - left_out


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _tests(file: str) -> list[str]:
    room = file.partition("/")[0].removesuffix(".py")
    paths: list[str] = []
    for name in TESTS_OF[room]:
        path = CHECKOUT / "tests" / name
        files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        paths += [str(test_file.relative_to(CHECKOUT / "tests")) for test_file in files]
    return list(dict.fromkeys(paths))


def draw(number: int, seed: int) -> list[Break]:
    """At most one break per line."""
    names = [name for name in operator_names() if not _NOT_MEANT.search(name)]
    operators = {name: get_operator(name)() for name in names}
    candidates: dict[str, tuple[Path, str, _Site]] = {}
    for path in sorted((CHECKOUT / ENGINE).rglob("*.py")):
        source, file = path.read_text("utf-8"), path.relative_to(CHECKOUT / ENGINE).as_posix()
        if file.partition("/")[0].removesuffix(".py") not in TESTS_OF:
            continue
        runs, lines = _lines_that_run(source), source.split("\n")
        by_line: dict[int, list[_Site]] = defaultdict(list)
        for site in _iter_sites(source, operators):
            if site.line in runs:
                by_line[site.line].append(site)
        for line, sites in by_line.items():
            chosen = min(
                sites, key=lambda site: _digest(seed, file, lines[line - 1], site.operator, site.occurrence)
            )
            candidates.setdefault(_digest(seed, file, lines[line - 1]), (path, source, chosen))
    new_breaks = (_drawn(*candidates[digest], operators) for digest in sorted(candidates))
    breaks: list[Break] = []
    for item in new_breaks:
        if len(breaks) == number:
            break
        if item is not None:
            breaks.append(item)
    return breaks


def _drawn(path: Path, source: str, site: _Site, operators: dict[str, Any]) -> Break | None:
    """None where the result is no Python, or more than one line is another."""
    code = mutate_code(source, operators[site.operator], site.occurrence)
    try:
        ast.parse(code)
    except (SyntaxError, TypeError):
        return None
    before, after = source.split("\n"), code.split("\n")
    differing = [
        number for number, (old, new) in enumerate(zip(before, after, strict=False), 1) if old != new
    ]
    if len(before) != len(after) or len(differing) != 1:
        return None
    line, file = differing[0], path.relative_to(CHECKOUT / ENGINE).as_posix()
    name = f"`{before[line - 1].strip()}` becomes `{after[line - 1].strip()}`"
    return Break(DRAWN, name, file, before[line - 1], after[line - 1], tuple(_tests(file)), line)


def main() -> None:
    number, seed, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "by": f"cosmic-ray {importlib.metadata.version('cosmic-ray')}",
        "seed": seed,
        "breaks": [asdict(entry) for entry in draw(number, seed)],
    }
    out.write_text(json.dumps(data, indent=1), "utf-8")


if __name__ == "__main__":
    main()
