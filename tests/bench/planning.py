"""What planning costs: every strategy of GPT-2 124M on four devices beside `import torch`, a model of 1.3
billion parameters, and a mesh of 64 devices beside one of 8.

    .venv/bin/python -m tests.bench.planning

Goals: all rows within 12 imports of torch, the first figures within 2, 6 GiB for the large model, three times
the processor time for the large mesh. Imports are timed before and after; what a plan takes is told in
multiples of their mean, in wall time and in processor time of the command and all of its children.
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
MOST_OF_MESH = 3.0
_DEVICES = "4 x A100-80GB"
_GPT = """
data = {{ use = "synthetic", args = {{ samples = 1024 }} }}
train = {{ global_batch = {batch} }}
strategy = {{ use = {strategy} }}
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


def plan(
    folder: str,
    sizes: str,
    *options: str,
    devices: str = _DEVICES,
    batch: int = 16,
    strategy: str = '"ddp"',
) -> list[tuple[float, dict[str, object]]]:
    """The rows with the seconds after which they came."""
    config = Path(folder, "gpt.toml")
    config.write_text(_GPT.format(sizes=sizes, batch=batch, strategy=strategy))
    command = [
        sys.executable,
        "-m",
        "rankdeck",
        "plan",
        str(config),
        "--json",
        "--devices",
        devices,
        *options,
    ]
    started_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        rows = [(time.monotonic() - started_s, json.loads(line)) for line in process.stdout]
    assert process.returncode == 0
    return rows


def mesh_s(folder: str, num_devices: int) -> float:
    """Processor seconds of all rows of hybrids on so many devices."""
    before_s = used_s()
    rows = plan(
        folder,
        "layers = 4, heads = 4, width = 256",
        *("--strategy", "hybrid"),
        devices=f"{num_devices} x A100-80GB",
        batch=128,
        strategy=f'"hybrid", data = {num_devices // 4}, stage = 2, tensor = 2',
    )
    assert any(row["verdict"] == "fits" for _, row in rows)
    return used_s() - before_s


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
        for what, cost, limit in (
            ("all rows", rows[-1][0] / wall_s, MOST_IMPORTS),
            ("the first figures", first_s / wall_s, MOST_TO_FIRST),
        ):
            word = "ok" if cost <= limit else "TOO SLOW"
            print(f"{what}: {cost:.1f} imports of torch, at most {limit:.0f}: {word}")
        print(f"processor time: {planned_s / processor_s:.1f} imports of torch")
        small_s, large_s, again_s = (mesh_s(folder, count) for count in (8, 64, 8))
        ratio = 2 * large_s / (small_s + again_s)
        word = "ok" if ratio <= MOST_OF_MESH else "TOO SLOW"
        print(f"a mesh of 64: {ratio:.2f} x one of 8, at most {MOST_OF_MESH:.0f}: {word}")
        print("1.3 billion parameters:")
        for _, row in plan(folder, "layers = 24, heads = 16, width = 2048", "--strategy", "single,fsdp"):
            print(f"{row['label']:16} {row['verdict']} {row['seconds']:.1f} s")
        largest_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"host memory of the largest process: {largest_gib:.2f} GiB")


if __name__ == "__main__":
    main()
