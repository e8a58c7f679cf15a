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
from rankdeck.base.parsing import JsonObject, parse_json_object
from rankdeck.base.phrases import join_sentences, phrase, plural_phrase, tr_noop
from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor.lines import CheckLine, Verdict, make_row

PROBE_TIMEOUT_S = 60.0
_PROBE = Path(__file__).with_name("probe_torch.py")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_INSTALL_URL = "https://pytorch.org/get-started/locally"


def check_python(name: str, chosen: ChosenPython, driver: Path = _DRIVER_FILE) -> Iterator[CheckLine]:
    """One row, called `name`."""
    python = chosen.python
    place = join_sentences(
        [phrase("{python} ({source})", python=python, source=chosen.source), *chosen.notes]
    )
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
        yield make_row(
            name, Verdict.FAILED, finding, place, fix=phrase("Name another interpreter with --python.")
        )
        return
    told = parse_last_line(done.stdout)
    if told is None or "python" not in told:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        finding = phrase("It ended with {code} while it imported numpy and torch.", code=done.returncode)
        yield make_row(
            name, Verdict.FAILED, finding, place, *([last] if last else []), fix=_install_advice(python)
        )
        return
    yield _python_row(name, python, told, place, driver.exists())


def parse_last_line(text: str | bytes) -> JsonObject | None:
    """What the last line of a probe says; others may print before it."""
    try:
        return parse_json_object((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


def _python_row(name: str, python: Path, told: Mapping[str, Any], place: str, has_driver: bool) -> CheckLine:
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
        return make_row(
            name,
            Verdict.FAILED,
            finding,
            *evidence,
            fix=_install_advice(python),
            command=_install_command(python, "torch"),
        )
    evidence += [_built_for(told), *told.get("warnings", ())]
    if "error" in numpy or told.get("numpy_fault"):
        evidence += [told["numpy_fault"]] if told.get("numpy_fault") else []
        finding = phrase("torch works, numpy does not work with it.")
        fix, command = phrase("Install a numpy that fits this torch."), _install_command(python, "numpy")
        verdict = Verdict.FAILED if name == "own-python" else Verdict.WARNING
        return make_row(name, verdict, finding, *evidence, fix=fix, command=command)
    if not told.get("gloo"):
        finding = phrase("This torch was built without gloo: ranks on CPU cannot meet.")
        return make_row(
            name,
            Verdict.FAILED,
            finding,
            *evidence,
            fix=phrase("Install a build of {place}.", place=_INSTALL_URL),
        )
    return _gpu_row(name, told, evidence, has_driver)


def _gpu_row(name: str, told: Mapping[str, Any], evidence: list[str], has_driver: bool) -> CheckLine:
    """torch itself works; what of the GPUs?"""
    versions = {"python": told["python"], "torch": told["torch"]["version"]}
    if told["num_gpus"]:
        finding = plural_phrase(
            tr_noop("Python {python}, torch {torch}, which sees 1 GPU."),
            tr_noop("Python {python}, torch {torch}, which sees {n} GPUs."),
            told["num_gpus"],
            **versions,
        )
        return make_row(name, Verdict.OK, finding, *evidence)
    if not has_driver:
        finding = phrase("Python {python}, torch {torch}; there is no driver for GPUs.", **versions)
        return make_row(name, Verdict.OK, finding, *evidence)
    hidden = os.environ.get(_VISIBLE_DEVICES)
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        evidence.append(f"{_VISIBLE_DEVICES}={hidden}")
        finding = phrase(
            "torch {torch} sees no GPU: {variable} hides all.", variable=_VISIBLE_DEVICES, **versions
        )
        return make_row(
            name,
            Verdict.WARNING,
            finding,
            *evidence,
            fix=phrase("Unset it."),
            command=f"unset {_VISIBLE_DEVICES}",
        )
    finding = phrase("There is a driver, and torch {torch} can use no GPU.", **versions)
    fix = phrase("See the evidence; the driver may be older than what this torch was built for.")
    if told["cuda"] is None and told["hip"] is None:
        finding = phrase("There is a driver, and torch {torch} was built without CUDA.", **versions)
        fix = phrase("Install a CUDA build that fits the driver: {place}", place=_INSTALL_URL)
    return make_row(
        name, Verdict.FAILED, finding, *evidence, phrase("{file} is there", file=_DRIVER_FILE), fix=fix
    )


def _built_for(told: Mapping[str, Any]) -> str:
    if told["cuda"] is None and told["hip"] is None:
        return phrase("built for CPU only")
    return phrase("built for CUDA {version}", version=told["cuda"] or told["hip"])


def _install_advice(python: Path) -> str:
    return phrase("Install torch for {python}, or name another interpreter with --python.", python=python)


def _install_command(python: Path, package: str) -> str:
    return f"{shlex.quote(str(python))} -m pip install {package}"
