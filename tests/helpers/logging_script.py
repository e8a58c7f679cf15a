"""One script that logs, calls collectives and holds memory, observed once for all tests of those parts.

The loggers that it calls are stand-ins with the names and calls of tensorboardX, wandb and mlflow, which the
project does not depend on; tests/engine/observer/test_loggers.py runs the real ones where they are installed.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from rankdeck.base.heartbeat import HeartbeatPage
from tests.helpers.observed_process import ObservedProcess, observe_script

_STAND_INS = {
    "tensorboardX/__init__.py": "from .writer import SummaryWriter\n",
    "tensorboardX/writer.py": """
class SummaryWriter:
    told = []
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        "Adds one."
        self.told.append((tag, float(scalar_value), global_step))
    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        for tag, value in tag_scalar_dict.items():
            self.told.append((main_tag + "/" + tag, float(value), global_step))
""",
    "wandb/__init__.py": """
from wandb.sdk.wandb_run import Run
def init():
    global log
    log = Run().log
""",
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_run.py": """
class Run:
    def log(self, data, step=None, commit=None):
        if not isinstance(data, dict):
            raise ValueError("data must be a dictionary")
""",
    "mlflow/__init__.py": "from mlflow.tracking.fluent import log_metric, log_metrics\n",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/client.py": """
class MlflowClient:
    def log_metric(self, run_id, key, value, timestamp=None, step=None): ...
    def log_batch(self, run_id, metrics=(), params=(), tags=()): ...
""",
    "mlflow/tracking/fluent.py": """
from mlflow.tracking.client import MlflowClient
def log_metric(key, value, step=None): MlflowClient().log_metric("run", key, value, step=step)
def log_metrics(metrics, step=None): MlflowClient().log_batch("run", metrics)
""",
}

SCRIPT = """
import inspect, json, os, pickle, struct, sys, traceback
import rankdeck
import torch
import torch.distributed as dist
import mlflow, tensorboardX, wandb

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
wandb.init()
writer = tensorboardX.SummaryWriter()
found = {}

class Looks:
    "Pickled inside a collective, it sees what the rank's heartbeat says there."
    def __reduce__(self):
        with open(os.environ["RANKDECK_HEARTBEAT"], "rb") as page:
            beats = list(struct.iter_unpack("<qqdd24sq", page.read(128)))
        found["phase"] = max(beats)[4].rstrip(b"\\0").decode()
        return (int, ())

def scaled(x):
    x = x * 2
    dist.all_reduce(x)
    return x + 1

losses = []
for step in range(3):
    loss = model(torch.randn(5, 6)).pow(2).mean()
    loss.backward()
    optimizer.step()
    rankdeck.log(loss=loss, accuracy=0.5 + step, text="no number", done=True, step=step)
    writer.add_scalar("loss", loss, step)
    writer.add_scalar("lr", 0.001, step)
    writer.add_scalars("both", {"a": step, "b": 2 * step}, step)
    wandb.log({"loss": loss.item(), "nested": {"deep": step}, "bad": float("inf")})
    mlflow.log_metric("loss", loss.item(), step=step)
    dist.all_reduce(torch.ones(8))
    losses.append(loss.item())
dist.barrier()
dist.all_gather_object([None], Looks())
dist.P2POp(dist.isend, torch.ones(2), 0)  # is refused where isend is not torch's own
rankdeck.log({"train/loss": 1.0}, step=9)
rankdeck.log("no mapping")
found["pickled"] = pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
found["signature"] = list(inspect.signature(dist.all_reduce).parameters)
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
found["compiled"] = torch.compile(scaled, backend=counter, fullgraph=True)(torch.ones(2)).tolist()
found["frames"] = counter.frame_count
for wrong in (lambda: wandb.log(3), lambda: dist.broadcast(None, 0)):
    try:
        wrong()
    except Exception:
        found["tracebacks"] = found.get("tracebacks", "") + traceback.format_exc()
found["losses"], found["told"] = losses, writer.told
bytes_of = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
found["memory"] = {
    "parameters": bytes_of(model.parameters()), "buffers": bytes_of(model.buffers()),
    "gradients": bytes_of(p.grad for p in model.parameters()),
    "optimizer": bytes_of(t for s in optimizer.state.values() for t in s.values()),
}
dist.destroy_process_group()
print(json.dumps(found))
"""


@functools.cache
def logging_run() -> ObservedProcess:
    """The script, observed."""
    page = HeartbeatPage(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in _STAND_INS.items():
                file = Path(folder) / "script" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return observe_script(SCRIPT, Path(folder) / "script", RANKDECK_HEARTBEAT=page.path)
    finally:
        page.close()


def expected_values() -> dict[str, Any]:
    """What the script found itself."""
    assert logging_run().status == 0, logging_run().stderr
    values: dict[str, Any] = json.loads(logging_run().stdout)
    return values
