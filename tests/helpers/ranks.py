"""A persistent set of gloo ranks that trains one configuration after another: a table costs one start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[2]


class RankSet:
    """`world_size` ranks on this machine, waiting for configurations. Close it."""

    def __init__(self, world_size: int, folder: Path) -> None:
        self._folder = folder
        self._num_runs = 0
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        script = str(ROOT / "tests/helpers/rank_main.py")
        self._ranks = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(world_size), str(folder / "store")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                text=True,
            )
            for rank in range(world_size)
        ]

    def train(self, toml: str, **request: Any) -> dict[str, Tensor]:
        """Final weights of one run over all ranks; an AssertionError shows what one raised."""
        self._num_runs += 1
        out = self._folder / f"weights-{self._num_runs}.safetensors"
        self._ask({"toml": toml, "out": str(out), **request})
        return load_file(out)

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """What `module:function` returns on each rank, called with these arguments; both as JSON has them."""
        return self._ask({"call": function, "arguments": arguments})

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(request) + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self._ranks:
            assert rank.stdout is not None
            answers.append(json.loads(rank.stdout.readline() or '{"error": "it died"}'))
        for number, answer in enumerate(answers):
            assert "error" not in answer, f"rank {number}: {answer['error']}"
        return [answer["result"] for answer in answers]

    def close(self) -> None:
        for rank in self._ranks:
            if rank.stdin is not None:
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=10)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            if rank.stdout is not None:
                rank.stdout.close()


def largest_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest absolute difference of any weight; both must have the same names."""
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)
