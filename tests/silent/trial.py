"""Runs a script through `rankdeck run`, asks `rankdeck why` about it, and judges the answer.

Only the codes in docs/findings.md count: whether the machine was slow meanwhile says nothing about a script.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.trial import marked
from tests.helpers import processes
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.cli import rankdeck, rankdeck_in_process
from tests.silent.cases import Case, finding_codes

_RUN_S = 240.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Result(msgspec.Struct, omit_defaults=True):
    """What was reported about a script at a level of observation. `wrong` is empty if that is right."""

    case: str
    kind: str
    level: str
    expected: list[str] = []
    codes: list[str] = []
    message: str = ""
    matches_words: bool = False
    duration_s: float = 0.0
    wrong: list[str] = []

    @property
    def key(self) -> str:
        return result_key(self.kind, self.case, self.level)

    @property
    def is_found(self) -> bool:
        """Whether an expected code was reported."""
        return any(code in self.expected for code in self.codes)


def result_key(kind: str, name: str, level: str) -> str:
    """Return the key under which a result is recorded."""
    return f"{kind} {name} {level}"


def run_case(case: Case, level: str, folder: Path) -> Result:
    """Run a script in `folder`, which is removed if all went well, and judge what is reported."""
    result = Result(case.name, case.kind, level, expected=list(case.expected_codes(level)))
    start_s = time.monotonic()
    with marked(folder) as mark:
        try:
            judge(result, case, _reported_problems(case, level, folder))
        except (AssertionError, OSError, subprocess.TimeoutExpired, ValueError) as error:
            result.wrong.append(f"{type(error).__name__}: {str(error)[-1500:]}")
        leftovers = processes.find_marked(mark)
        result.wrong += [f"left behind: {processes.process_text(process)}" for process in leftovers]
        processes.kill_processes(leftovers)
    result.duration_s = round(time.monotonic() - start_s, 1)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _reported_problems(case: Case, level: str, folder: Path) -> list[dict[str, Any]]:
    work, runs = folder / "work", folder / "runs"
    work.mkdir(parents=True)
    options = ["--devices", f"cpu:{case.num_ranks}", "--observe", level, "--runs", str(runs)]
    rankdeck(
        "run",
        *options,
        case.file,
        *case.arguments,
        cwd=work,
        env={**_ONE_THREAD, "PYTHONPATH": PRODUCT_AND_TESTS, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout_s=_RUN_S,
        exit_code=0,
    )
    (run,) = runs.iterdir()
    problems: list[dict[str, Any]] = rankdeck_in_process("why", run, "--json").json["problems"]
    return problems


def judge(result: Result, case: Case, problems: Sequence[Mapping[str, Any]]) -> None:
    """Compare the reported problems with what must be reported."""
    table = finding_codes()
    relevant = [problem for problem in problems if problem["code"] in table or problem["severity"] == "error"]
    result.codes = [problem["code"] for problem in relevant]
    matching = [problem for problem in relevant if problem["code"] in result.expected]
    first = (matching or relevant or [None])[0]
    if first is not None:
        result.message = " ".join((first["message"], first.get("advice") or ""))[:600]
    if case.kind == "healthy":
        result.wrong += [f"false alarm: {problem['code']}: {problem['message']}" for problem in relevant]
        return
    result.matches_words = any(re.search(case.words, _text(problem)) for problem in matching)
    if not result.expected:
        return
    if not matching:
        result.wrong.append(f"{'|'.join(result.expected)} was not reported, but {result.codes or 'nothing'}")
    elif not result.matches_words:
        result.wrong.append(f"'{case.words}' does not match: {result.message}")


def _text(problem: Mapping[str, Any]) -> str:
    evidence = [item["text"] for item in problem.get("evidence") or []]
    return "\n".join([problem["message"], problem.get("advice") or "", *evidence])
