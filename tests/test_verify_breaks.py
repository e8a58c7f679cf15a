"""Deliberate breaks for the check before the first step still stand in their files, and a drawn handful is
found with its cause, beside the same cases without a break, in which nothing is found.

All of them: make verify-breaks.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from rankdeck.training.verify.causes import Cause
from tests.helpers.checkout import CHECKOUT, PRODUCT_AND_TESTS
from tests.mutants.breaks import ENGINE
from tests.verify_breaks.right import correct_cases
from tests.verify_breaks.rows import load_breaks
from tests.verify_breaks.table import judge_break, judge_correct_case

SEED = 20261128


def test_every_break_still_stands_once_in_its_file_and_leaves_python() -> None:
    for row in load_breaks():
        assert row.causes and set(row.causes) <= set(get_args(Cause)), row.name
        assert row.case.toml
        if row.is_in_engine:
            ast.parse(row.applied_to((CHECKOUT / ENGINE / row.file).read_text("utf-8")))


def test_there_are_breaks_of_every_strategy_and_of_every_class_of_own_code() -> None:
    counts = Counter(row.of for row in load_breaks() if row.harmless is None)
    user_classes = {f"user {number}" for number in range(1, 7)}
    strategies = {"ddp", "fsdp", "model", "pipeline", "dp", "tensor", "hybrid", "pipeline-async"}
    assert counts.total() >= 200 and all(counts[of] >= 4 for of in user_classes | strategies)
    assert len({case.name for case in correct_cases()}) >= 300


def test_drawn_breaks_are_found_and_unbroken_cases_are_quiet(tmp_path: Path) -> None:
    out = tmp_path / "found.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "tests.verify_breaks", "--drawn=3", f"--seed={SEED}", f"--out={out}"],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": PRODUCT_AND_TESTS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = Counter(json.loads(line)["kind"] for line in out.read_text().splitlines())
    assert kinds["found"] >= 2 and not kinds.keys() & {"missed", "alarm"}


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ({"outcome": "differs", "cause": "gradient", "names": ["weight"]}, "found"),
        ({"outcome": "differs", "cause": "loss", "names": []}, "other class"),
        ({"outcome": "equal", "cause": None, "names": [], "largest": 0.0, "precision": "fp64"}, "missed"),
        ({"error": "ModelError: no", "is_refusal": True}, "refused before"),
        ({"error": "RuntimeError: no", "is_refusal": False}, "broke otherwise"),
        ({"hung": "no answer"}, "broke otherwise"),
    ],
)
def test_what_comes_of_a_break_is_said_in_one_word(outcome: dict[str, object], kind: str) -> None:
    row = next(row for row in load_breaks() if row.causes == ("gradient",) and row.harmless is None)
    assert judge_break(row, outcome, 0.0).kind == kind
    is_alarm = outcome.get("outcome") == "differs"
    assert judge_correct_case(row.case, outcome, 0.0).is_bad is is_alarm
