"""A process that plans one configuration after another and does nothing else: children are forked from it,
so it must stay free of threads and of real computing.

    python plan_main.py      a configuration per line of stdin (JSON text), its PlanLine per line of stdout

The first model from Hugging Face imports its library in its child, as a person's does; later ones find it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rankdeck.base.garbage import freeze_new_objects
from rankdeck.config import from_text
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates
from rankdeck.planner.preload import preload, preload_strategies
from rankdeck.run import plan_lines


def main() -> None:
    preload()
    preload_strategies()  # one row alone would leave it to its child, each time anew
    for request in sys.stdin:
        config = from_text(json.loads(request), folder=Path.cwd())
        target = Target(
            "rehearsal", (TargetDevice(None, None),) * (config.selection.count or 1), like_cuda=False
        )
        rows = [Candidate(config.strategy.use, dict(config.strategy.options))]
        for line in plan_candidates(config, rows, target, movement=True):
            sys.stdout.buffer.write(plan_lines.encode(line))
            sys.stdout.buffer.flush()
        if "hugging_face" in request:
            with freeze_new_objects():
                from transformers import GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401


if __name__ == "__main__":
    main()
