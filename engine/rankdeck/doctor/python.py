"""Whether an interpreter can import what a run needs, and whether its torch can use the GPUs that are there.

The interpreter is started: it is the one that a run in this folder would start.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.parsing import JsonObject, json_object
from rankdeck.base.phrases import counted, marked, phrase, sentences
from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor.lines import CheckLine, Verdict, row

ANSWERS_WITHIN_S = 60.0
_PROBE = Path(__file__).with_name("probe_torch.py")
_DRIVER = Path("/proc/driver/nvidia/version")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CHOOSE = "https://pytorch.org/get-started/locally"


def look_at_python(name: str, chosen: ChosenPython, driver: Path = _DRIVER) -> Iterator[CheckLine]:
    """One row, called `name`."""
    python = chosen.python
    place = sentences([phrase("{python} ({source})", python=python, source=chosen.source), *chosen.notes])
    try:
        done = subprocess.run(
            [python, _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    except OSError as error:
        finding = phrase("It cannot be started: {why}.", why=error.strerror)
        yield row(name, Verdict.BROKEN, finding, place, fix=phrase("Name another interpreter with --python."))
        return
    told = last_object(done.stdout)
    if told is None or "python" not in told:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        finding = phrase("It ended with {code} while it imported numpy and torch.", code=done.returncode)
        yield row(name, Verdict.BROKEN, finding, place, *([last] if last else []), fix=_anew(python))
        return
    yield _judged(name, python, told, place, driver.exists())


def last_object(text: str | bytes) -> JsonObject | None:
    """What the last line of a probe says; others may print before it."""
    try:
        return json_object((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


def _judged(name: str, python: Path, told: Mapping[str, Any], place: str, has_driver: bool) -> CheckLine:
    torch, numpy = told.get("torch", {}), told.get("numpy", {})
    evidence = [place, phrase("Python {version}", version=told["python"])]
    for module, facts in (("torch", torch), ("numpy", numpy)):
        if "error" in facts:
            evidence.append(phrase("import {module}: {error}", module=module, error=facts["error"]))
        else:
            evidence.append(
                phrase(
                    "{module} {version}, imported in {seconds} s from {file}",
                    module=module,
                    version=facts.get("version"),
                    seconds=facts.get("seconds"),
                    file=facts.get("file"),
                )
            )
    if "error" in torch:
        finding = phrase("torch cannot be imported.")
        return row(
            name, Verdict.BROKEN, finding, *evidence, fix=_anew(python), command=_install(python, "torch")
        )
    evidence += [_built_for(told), *told.get("warnings", ())]
    if "error" in numpy or told.get("numpy_fault"):
        evidence += [told["numpy_fault"]] if told.get("numpy_fault") else []
        finding = phrase("torch works, numpy does not work with it.")
        fix, command = phrase("Install a numpy that fits this torch."), _install(python, "numpy")
        verdict = Verdict.BROKEN if name == "own-python" else Verdict.LOOK
        return row(name, verdict, finding, *evidence, fix=fix, command=command)
    if not told.get("gloo"):
        finding = phrase("This torch was built without gloo: ranks on CPU cannot meet.")
        return row(
            name, Verdict.BROKEN, finding, *evidence, fix=phrase("Install a build of {place}.", place=_CHOOSE)
        )
    return _with_gpus(name, told, evidence, has_driver)


def _with_gpus(name: str, told: Mapping[str, Any], evidence: list[str], has_driver: bool) -> CheckLine:
    """torch itself works; what of the GPUs?"""
    versions = {"python": told["python"], "torch": told["torch"]["version"]}
    if told["num_gpus"]:
        finding = counted(
            marked("Python {python}, torch {torch}, which sees 1 GPU."),
            marked("Python {python}, torch {torch}, which sees {n} GPUs."),
            told["num_gpus"],
            **versions,
        )
        return row(name, Verdict.GOOD, finding, *evidence)
    if not has_driver:
        finding = phrase("Python {python}, torch {torch}; there is no driver for GPUs.", **versions)
        return row(name, Verdict.GOOD, finding, *evidence)
    hidden = os.environ.get(_VISIBLE)
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        evidence.append(f"{_VISIBLE}={hidden}")
        finding = phrase("torch {torch} sees no GPU: {variable} hides all.", variable=_VISIBLE, **versions)
        return row(
            name, Verdict.LOOK, finding, *evidence, fix=phrase("Unset it."), command=f"unset {_VISIBLE}"
        )
    finding = phrase("There is a driver, and torch {torch} can use no GPU.", **versions)
    fix = phrase("See the evidence; the driver may be older than what this torch was built for.")
    if told["cuda"] is None and told["hip"] is None:
        finding = phrase("There is a driver, and torch {torch} was built without CUDA.", **versions)
        fix = phrase("Install a CUDA build that fits the driver: {place}", place=_CHOOSE)
    return row(name, Verdict.BROKEN, finding, *evidence, phrase("{file} is there", file=_DRIVER), fix=fix)


def _built_for(told: Mapping[str, Any]) -> str:
    if told["cuda"] is None and told["hip"] is None:
        return phrase("built for CPU only")
    return phrase("built for CUDA {version}", version=told["cuda"] or told["hip"])


def _anew(python: Path) -> str:
    return phrase("Install torch for {python}, or name another interpreter with --python.", python=python)


def _install(python: Path, package: str) -> str:
    return f"{shlex.quote(str(python))} -m pip install {package}"
