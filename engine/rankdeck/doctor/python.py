"""Check whether an interpreter can import what a run needs, and whether its torch can use the GPUs.

probe_torch.py runs in the interpreter of --python, else the active environment's, else Rankdeck's own.
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
    """Check an interpreter and yield one row, called `name`."""
    python = chosen.python
    location = join_sentences(
        [phrase("{python} ({source})", python=python, source=chosen.source), *chosen.notes]
    )
    try:
        done = subprocess.run(
            [python, _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            # The check may be killed at its time limit, and the probe must not outlive it.
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    except OSError as error:
        finding = phrase("The interpreter cannot be started: {why}.", why=error.strerror)
        yield make_row(
            name, Verdict.FAILED, finding, location, fix=phrase("Choose another interpreter with --python.")
        )
        return
    report = parse_last_line(done.stdout)
    if report is None or "python" not in report:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        finding = phrase(
            "The interpreter exited with status {code} while importing numpy and torch.", code=done.returncode
        )
        yield make_row(
            name, Verdict.FAILED, finding, location, *([last] if last else []), fix=_install_advice(python)
        )
        return
    yield _python_row(name, python, report, location, driver.exists())


def parse_last_line(text: str | bytes) -> JsonObject | None:
    """Parse the JSON on the last line of a probe's output: imported modules may print before it."""
    try:
        return parse_json_object((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


def _python_row(
    name: str, python: Path, report: Mapping[str, Any], location: str, has_driver: bool
) -> CheckLine:
    torch, numpy = report.get("torch", {}), report.get("numpy", {})
    evidence = [location, phrase("Python {version}", version=report["python"])]
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
    evidence += [_built_for(report), *report.get("warnings", ())]
    if "error" in numpy or report.get("numpy_fault"):
        evidence += [report["numpy_fault"]] if report.get("numpy_fault") else []
        finding = phrase("torch works, but numpy does not work with it.")
        fix, command = (
            phrase("Install a numpy version that is compatible with this torch."),
            _install_command(python, "numpy"),
        )
        # Rankdeck itself needs numpy; a script may not.
        verdict = Verdict.FAILED if name == "own-python" else Verdict.WARNING
        return make_row(name, verdict, finding, *evidence, fix=fix, command=command)
    if not report.get("gloo"):
        finding = phrase("This torch was built without gloo: ranks on CPU cannot communicate.")
        return make_row(
            name,
            Verdict.FAILED,
            finding,
            *evidence,
            fix=phrase("Install a build from {place}.", place=_INSTALL_URL),
        )
    return _gpu_row(name, report, evidence, has_driver)


def _gpu_row(name: str, report: Mapping[str, Any], evidence: list[str], has_driver: bool) -> CheckLine:
    """Return the row about the GPUs that a working torch can use."""
    versions = {"python": report["python"], "torch": report["torch"]["version"]}
    if report["num_gpus"]:
        finding = plural_phrase(
            tr_noop("Python {python}, torch {torch}, which sees 1 GPU."),
            tr_noop("Python {python}, torch {torch}, which sees {n} GPUs."),
            report["num_gpus"],
            **versions,
        )
        return make_row(name, Verdict.OK, finding, *evidence)
    if not has_driver:
        finding = phrase("Python {python}, torch {torch}; no GPU driver is installed.", **versions)
        return make_row(name, Verdict.OK, finding, *evidence)
    hidden = os.environ.get(_VISIBLE_DEVICES)
    # Slurm sets NoDevFiles for a job without GPUs.
    if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
        evidence.append(f"{_VISIBLE_DEVICES}={hidden}")
        finding = phrase(
            "torch {torch} sees no GPU: {variable} hides all GPUs.", variable=_VISIBLE_DEVICES, **versions
        )
        return make_row(
            name,
            Verdict.WARNING,
            finding,
            *evidence,
            fix=phrase("Unset it."),
            command=f"unset {_VISIBLE_DEVICES}",
        )
    finding = phrase("A GPU driver is installed, but torch {torch} cannot use any GPU.", **versions)
    fix = phrase("See the details: the driver may be too old for this build of torch.")
    if report["cuda"] is None and report["hip"] is None:
        finding = phrase("A GPU driver is installed, but torch {torch} was built without CUDA.", **versions)
        fix = phrase("Install a CUDA build of torch that the driver supports: {place}", place=_INSTALL_URL)
    return make_row(
        name, Verdict.FAILED, finding, *evidence, phrase("{file} exists", file=_DRIVER_FILE), fix=fix
    )


def _built_for(report: Mapping[str, Any]) -> str:
    if report["cuda"] is None and report["hip"] is None:
        return phrase("built for CPU only")
    return phrase("built for CUDA {version}", version=report["cuda"] or report["hip"])


def _install_advice(python: Path) -> str:
    return phrase("Install torch for {python}, or choose another interpreter with --python.", python=python)


def _install_command(python: Path, package: str) -> str:
    return f"{shlex.quote(str(python))} -m pip install {package}"
