"""What planning costs: every strategy of GPT-2 124M on four devices beside `import torch`, and a model of 1.3
billion parameters.

    .venv/bin/python -m tests.bench.planning

Goals: all rows within 12 imports of torch, the first figures within 2, 6 GiB for the large model. Imports are
timed before and after; what a plan takes is told in multiples of their mean, in wall time and in processor
time of the command and all of its children.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_IMPORTS = 12.0
MOST_TO_FIRST = 2.0
_DEVICES = "4 x A100-80GB"
_GPT = """
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
train = {{ global_batch = 16 }}
strategy = {{ use = "ddp" }}
[model]
use = "gpt"
args = {{ {sizes}, context = 1024, vocabulary = 50257, tied = true }}
"""


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_torch() -> tuple[float, float]:
    """(wall, processor) seconds."""
    started_s, before_s = time.monotonic(), used_s()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - started_s, used_s() - before_s


def plan(folder: str, sizes: str, *options: str) -> list[tuple[float, dict[str, object]]]:
    """The rows with the seconds after which they came."""
    config = Path(folder, "gpt.toml")
    config.write_text(_GPT.format(sizes=sizes))
    command = [
        sys.executable,
        "-m",
        "rankdeck",
        "plan",
        str(config),
        "--json",
        "--devices",
        _DEVICES,
        *options,
    ]
    started_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        rows = [(time.monotonic() - started_s, json.loads(line)) for line in process.stdout]
    assert process.returncode == 0
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        imports = [import_torch()]
        before_s = used_s()
        rows = plan(folder, "layers = 12, heads = 12, width = 768")
        planned_s = used_s() - before_s
        imports.append(import_torch())
        wall_s, processor_s = (sum(each) / len(imports) for each in zip(*imports, strict=True))
        print(f"import torch: {wall_s:.2f} s, {processor_s:.2f} processor s")
        for after_s, row in rows:
            print(f"{after_s:6.1f} s {after_s / wall_s:5.1f} x  {row['label']:40} {row['verdict']}")
        first_s = next(after_s for after_s, row in rows if row["devices"])
        for what, found, most in (
            ("all rows", rows[-1][0] / wall_s, MOST_IMPORTS),
            ("the first figures", first_s / wall_s, MOST_TO_FIRST),
        ):
            word = "ok" if found <= most else "TOO SLOW"
            print(f"{what}: {found:.1f} imports of torch, at most {most:.0f}: {word}")
        print(f"processor time: {planned_s / processor_s:.1f} imports of torch")
        print("1.3 billion parameters:")
        for _, row in plan(folder, "layers = 24, heads = 16, width = 2048", "--strategy", "single,fsdp"):
            print(f"{row['label']:16} {row['verdict']} {row['seconds']:.1f} s")
        largest_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"host memory of the largest process: {largest_gib:.2f} GiB")


if __name__ == "__main__":
    main()
