"""Every way to sum 25 MB of gradients over 4 ranks, in turns, so that all see the same machine.

    ring beside native     goal: at most 1.5 times its time

All ranks are processes of this machine, so this compares algorithms and their overhead, not links. A round
times each algorithm once; the figures are the median and the best over rounds, of the slowest rank.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from tests.helpers.ranks import RankSet

ALGORITHMS = ("native", "ring", "reduce-broadcast", "all-to-all")
NUM_RANKS = 4
NUM_BYTES = 25_000_000
GOAL = 1.5


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round's slowest rank, by algorithm."""
    seconds: dict[str, list[float]] = {algorithm: [] for algorithm in ALGORITHMS}
    with tempfile.TemporaryDirectory() as folder:
        ranks = RankSet(NUM_RANKS, Path(folder))
        try:
            for round_number in range(rounds + 1):
                for algorithm in ALGORITHMS:
                    results = ranks.call(
                        "tests.helpers.sync_ranks:timed",
                        algorithm=algorithm,
                        num_bytes=NUM_BYTES,
                        repetitions=2,
                    )
                    if round_number:  # the first round meets cold memory and new connections
                        seconds[algorithm].append(max(rank[-1] for rank in results))
        finally:
            ranks.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Ways to sum gradients, side by side.")
    parser.add_argument("--rounds", type=int, default=15)
    seconds = measure(parser.parse_args().rounds)
    native, best_native = median(seconds["native"]), min(seconds["native"])
    print(f"{'sync':<18}{'median':>10}{'best':>10}{'x native':>10}{'best x':>8}")
    for algorithm, times in seconds.items():
        ratio, best_ratio = median(times) / native, min(times) / best_native
        verdict = ("  reached" if ratio <= GOAL else "  missed") if algorithm == "ring" else ""
        print(
            f"{algorithm:<18}{median(times) * 1e3:>7.0f} ms{min(times) * 1e3:>7.0f} ms"
            f"{ratio:>10.2f}{best_ratio:>8.2f}{verdict}"
        )


if __name__ == "__main__":
    main()
