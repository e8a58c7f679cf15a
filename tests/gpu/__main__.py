"""Which parts are measured, for how long, and what each needs. Standard library only: what lacks is named.

    python -m tests.gpu [--part NAME ...] [--dry-run [--rows N]] [--folder FOLDER] [--page FILE]

Files of the parts come into FOLDER (.make/gpu). Once all are there they make the page (docs/gpu.md); a dry
run writes it only where --page says. Packages may lie in a folder that PYTHONPATH names.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.helpers.checkout import CHECKOUT, PRODUCT_AND_TESTS

if __name__ == "__main__":  # a test that imports this has its own places to look in
    for _folder in reversed(PRODUCT_AND_TESTS.split(os.pathsep)):
        if _folder not in sys.path:
            sys.path.insert(0, _folder)
    os.environ["PYTHONPATH"] = PRODUCT_AND_TESTS

from tests.gpu.children import ChildError, in_child
from tests.gpu.page import page_of
from tests.gpu.part import Part, print_lines, read

GRACE_S = 10.0
"""How long a part may take to come to its end once its time is over."""
_ENGINE = ("torch", "msgspec", "numpy", "platformdirs", "psutil", "pydantic", "safetensors", "tomlkit")
_COMMANDS = (*_ENGINE, "pynvml", "rich", "typer")
_PACKAGES = {"pynvml": "nvidia-ml-py"}


@dataclass(frozen=True)
class PartSpec:
    """One part: `module:function` of this package, its time, and what it imports."""

    entry_point: str
    budget_s: float
    needs: Sequence[str]


PARTS = {
    "suite": PartSpec("suite:measure", 180.0, (*_COMMANDS, "pytest")),
    "nvml": PartSpec("nvml:measure", 60.0, (*_ENGINE, "pynvml")),
    "peaks": PartSpec("peaks:measure_on_one", 400.0, _ENGINE),
    "ranks": PartSpec("peaks:measure_over_ranks", 240.0, _ENGINE),
    "kernels": PartSpec("kernels:measure", 60.0, (*_ENGINE, "pynvml")),
    "pace": PartSpec("pace:measure", 170.0, _COMMANDS),
}
_SHOWN = ("torch", "transformers", "numpy", "nvidia-ml-py")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    dry_run: bool = args.dry_run
    folder: Path = args.folder or CHECKOUT / ".make" / ("gpu-dry-run" if dry_run else "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    rows = args.rows if args.rows is not None else 1 if dry_run else None
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(RANKDECK_HOME=f"{home}/home", RANKDECK_RUNS=f"{home}/runs")
        facts, reason = _facts(dry_run, folder)
        if reason is not None and not dry_run:
            print_lines(
                f"{reason} What can be tried without one: python -m tests.gpu --dry-run", dry_run=False
            )
            return 3
        names = args.part or list(PARTS)
        _import_torch(names)
        for name in names:
            _run(name, Part(name, dry_run, PARTS[name].budget_s, facts, folder=folder), rows)
    parts = [read(file) for name in PARTS if (file := folder / f"{name}.json").exists()]
    _write_page(parts, args.page, dry_run=dry_run)
    return 0 if all(part.is_sound for part in parts if part.name in (args.part or PARTS)) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description="What only a GPU can tell, measured."
    )
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="only this one; may be given again"
    )
    parser.add_argument("--dry-run", action="store_true", help="on this machine's CPU; says nothing of a GPU")
    parser.add_argument("--rows", type=int, help="no more configurations of a part (of a dry run: 1)")
    parser.add_argument(
        "--folder", type=lambda text: Path(text).absolute(), help="where the parts' files come"
    )
    parser.add_argument("--page", type=lambda text: Path(text).absolute(), help="where the page comes")
    return parser.parse_args(argv)


def _import_torch(names: Sequence[str]) -> None:
    """Once for all parts that measure here; they are forked from this process."""
    if all(name == "suite" or _missing(PARTS[name].needs) for name in names):
        return
    from rankdeck.planner.preload import preload

    preload()


def _missing(needs: Sequence[str]) -> list[str]:
    return [_PACKAGES.get(name, name) for name in needs if importlib.util.find_spec(name) is None]


def _facts(dry_run: bool, folder: Path) -> tuple[dict[str, Any], str | None]:
    """What is measured on, and with what; or why there is nothing to measure on."""
    facts: dict[str, Any] = {"name": None, "total_bytes": None, "Python": platform.python_version()}
    facts |= {name: _version(name) for name in _SHOWN}
    facts["commit"] = _commit()
    if "torch" in _missing(("torch",)):
        return facts, "torch is missing: take the Python that has it, make gpu PYTHON=/path/to/python3."
    if dry_run:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return facts | {"name": platform.machine()}, None
    try:
        gpu_facts: dict[str, Any] = in_child(_facts_of_gpu, timeout_s=120.0, log=folder / "gpu.log")
    except ChildError as error:
        return facts, f"torch can use no GPU here ({error})."
    return facts | gpu_facts, None


def _facts_of_gpu() -> dict[str, Any]:
    """In a child: this process stays without a context, so that it can fork."""
    import torch

    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "total_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "CUDA": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    try:
        return (
            Path("/proc/driver/nvidia/version")
            .read_text()
            .splitlines()[0]
            .split("Kernel Module")[1]
            .split()[0]
        )
    except (OSError, IndexError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _to_bring(missing: Sequence[str]) -> str:
    return (
        f"bring {', '.join(missing)}: pip download where there is a network, pip install --no-index --target "
        "FOLDER here, and PYTHONPATH=FOLDER."
    )


def _run(name: str, part: Part, rows: int | None) -> None:
    """One part in a process of its own, which is ended when it does not come to its end in time."""
    part.at = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    part.save()
    print_lines(f"{name}: at most {part.budget_s:.0f} s", dry_run=part.dry_run)
    missing = _missing(PARTS[name].needs)
    if missing:
        part.refuse(_to_bring(missing))
        return
    try:
        in_child(_measure, part, rows, timeout_s=part.budget_s + GRACE_S, log=part.log, quiet=False)
    except ChildError as error:
        part = read(part.file)
        lacks = re.search(r"No module named '(\w+)", str(error))
        if lacks is not None:
            part.refuse(_to_bring([lacks[1]]))
            return
        part.fail(f"it came to no end: {error}; see {part.log.name}.")


def _measure(part: Part, rows: int | None) -> None:
    module, function = PARTS[part.name].entry_point.split(":")
    measure = getattr(importlib.import_module(f"tests.gpu.{module}"), function)
    if part.name == "suite":
        measure(part)
    else:
        from tests.gpu.device import device_of

        measure(part, device_of(dry_run=part.dry_run), rows)
    part.save()


def _write_page(parts: Sequence[Part], page: Path | None, *, dry_run: bool) -> None:
    missing = [name for name in PARTS if name not in {part.name for part in parts}]
    page = page or (None if dry_run else CHECKOUT / "docs/gpu.md")
    if missing:
        print_lines(f"The page needs {', '.join(missing)} too.", dry_run=dry_run)
    elif page is not None:
        page.write_text(page_of(parts))
        print_lines(f"Written: {page}", dry_run=dry_run)
        if not dry_run:
            print_lines(
                "README.md and docs/accuracy.md may still say that nothing was measured on a GPU.",
                dry_run=False,
            )


if __name__ == "__main__":
    sys.exit(main())
