"""What one rank does: the check of a case, as a run takes it, and a file that says what came of it.

Read worlds.py before. The engine is imported here, in a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

from tests.helpers.waiting import CHECK_TIMEOUT_S
from tests.verify_breaks.rows import Case

_ENGINE_MODULES = ("training.worker", "training.verify.before_run", "training.workload")


def import_engine() -> None:
    """All that ranks would import each for itself."""
    for room in _ENGINE_MODULES:
        importlib.import_module(f"rankdeck.{room}")
    from rankdeck.config.catalog import STRATEGIES

    for card in STRATEGIES.values():
        card.load()


def check(case: Case, rank: int, folder: Path) -> None:
    """Leave `rank-N.json` in a folder: what the check found, or the error that it ended with."""
    from rankdeck.base.errors import RankdeckError, TrainingError

    try:
        outcome = _check(case, rank, folder)
    except Exception as error:
        is_refusal = isinstance(error, RankdeckError) and not isinstance(error, TrainingError)
        outcome = {
            "error": f"{type(error).__name__}: {error}"[:500],
            "is_refusal": is_refusal,
            "detail": traceback.format_exc()[-2000:],
        }
    file = folder / f"rank-{rank}.json"
    file.with_suffix(".new").write_text(json.dumps(outcome))
    file.with_suffix(".new").rename(file)


def _check(case: Case, rank: int, folder: Path) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from rankdeck.config import from_text
    from rankdeck.parallel.tensor.split_plan import ModelAnalysis
    from rankdeck.training import workload as workloads
    from rankdeck.training.verify import budget
    from rankdeck.training.verify.check import EqualityCheck
    from tests.helpers.verifying import as_facts

    torch.set_num_threads(1)
    ranks = case.num_ranks
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    config = from_text(case.toml, folder=Path.cwd())
    budget.MIN_BUDGET_S = CHECK_TIMEOUT_S
    equality_check = EqualityCheck(
        workloads.load(config),
        rank=rank,
        world_size=ranks,
        devices=[torch.device("cpu")] * (1 if ranks > 1 else case.num_devices),
        num_devices=case.num_devices,
        analysis=ModelAnalysis(),
    )
    with contextlib.ExitStack() as stack:
        if case.in_own:
            stack.enter_context(mock.patch("rankdeck.training.verify.check._MAX_FP64_WEIGHTS", 0))
        facts = as_facts(equality_check.run())
    if ranks > 1:
        dist.barrier()  # a rank that ends takes its connections with it
    return facts
