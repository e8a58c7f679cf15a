"""What a script logs is seen once, under its names and equal to what was logged.

The libraries themselves run where they are installed; stand-ins of three of them
(tests/helpers/logging_script.py) run everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from rankdeck.observer import loggers, parts, readings
from rankdeck.observer.metrics import MAX_ROWS, MetricBuffer
from tests.helpers.logging_script import expected_values, logging_run
from tests.helpers.observed_process import observe_script
from tests.helpers.script_python import can_import

# What a book does with values.


def _make_buffer(read: Callable[[Any], Any] = lambda value: None) -> MetricBuffer:
    return MetricBuffer(lambda: None, lambda: 5, read)


class _FakeGpuTensor:
    """As much of a tensor on a GPU as a book asks for. Whoever reads it waits for ever."""

    device = SimpleNamespace(type="cuda")

    def numel(self) -> int:
        return 1

    def item(self) -> float:
        raise AssertionError("it would wait")


def test_values_of_one_step_share_a_row() -> None:
    buffer = _make_buffer()
    for step in (1, 2):
        buffer.add("tensorboard", {"loss": step / 4}, step)
        buffer.add("tensorboard", {"lr": 0.1}, step)
    buffer.add("tensorboard", {"lr": 0.2}, 2)
    (event,) = buffer.take()
    assert event.steps == [1, 2, 2] and event.after == [5, 5, 5]
    assert event.values == {"loss": [0.25, 0.5, None], "lr": [0.1, 0.1, 0.2]}
    assert buffer.take() == []


def test_all_kinds_of_numbers_are_logged_and_other_values_dropped() -> None:
    numpy = pytest.importorskip("numpy")
    buffer = _make_buffer()
    buffer.add(
        "rankdeck",
        {
            "int": 3,
            "huge": 10**400,
            "nan": math.nan,
            "half": torch.tensor([0.5], dtype=torch.bfloat16),
            "scalar": numpy.float32(1.5),
            "array": numpy.array([2.5]),
            "truth": True,
            "text": "0.5",
            "none": None,
            "complex": 1j,
            "vector": torch.ones(2),
            "meta": torch.ones((), device="meta"),
            "numpy truth": numpy.bool_(True),
            "deep": {"er": {"est": 1}},
        },
        torch.tensor(7),
    )
    (event,) = buffer.take()
    assert event.steps == [7]
    assert {name: column[0] for name, column in event.values.items()} == {
        "int": 3.0,
        "huge": None,
        "nan": None,
        "half": 0.5,
        "scalar": 1.5,
        "array": 2.5,
        "deep/er/est": 1.0,
    }


def test_a_dtensor_is_not_read() -> None:
    """It would answer with a collective that no other rank calls."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        dtensor = distribute_tensor(torch.ones(1), init_device_mesh("cpu", (1,)), [Shard(0)])
        buffer = _make_buffer()
        buffer.add("rankdeck", {"spread": dtensor, "plain": 1.0})
    finally:
        dist.destroy_process_group()
    (event,) = buffer.take()
    assert event.values == {"plain": [1.0]}


def test_a_tensor_is_read_when_it_is_logged() -> None:
    buffer, running = _make_buffer(), torch.zeros(())
    for step in range(3):
        running += 1
        buffer.add("rankdeck", {"sum": running}, step)
    (event,) = buffer.take()
    assert event.values["sum"] == [1.0, 2.0, 3.0]


def test_a_pending_gpu_value_delays_its_row_and_nothing_else() -> None:
    """Rows stay in order; at the end of a process those that have not come are told without it."""
    memory = torch.zeros(2, dtype=torch.float64)
    bits = memory.view(torch.int64)
    bits[:] = readings._PENDING_BITS
    under_way = [readings.PendingScalar((memory, bits), [0, 0], index, 0) for index in (0, 1)]
    buffer = _make_buffer(lambda value: under_way.pop(0))
    buffer.add("rankdeck", {"loss": 0.5}, 0)
    buffer.add("rankdeck", {"loss": _FakeGpuTensor()}, 1)
    buffer.add("rankdeck", {"loss": _FakeGpuTensor()}, 2)
    buffer.add("rankdeck", {"loss": 0.7}, 3)
    (event,) = buffer.take()
    assert (event.steps, event.values) == ([0], {"loss": [0.5]})
    assert buffer.take() == []
    memory[0] = 0.25
    (event,) = buffer.take()
    assert (event.steps, event.values) == ([1], {"loss": [0.25]})
    (event,) = buffer.take(ending=True)
    assert (event.steps, event.values) == ([2, 3], {"loss": [None, 0.7]})


def test_a_full_buffer_drops_the_oldest_rows() -> None:
    buffer = _make_buffer()
    for step in range(MAX_ROWS + 3):
        buffer.add("rankdeck", {"loss": step}, step)
    (event,) = buffer.take()
    assert len(event.steps) == MAX_ROWS and event.steps[-1] == MAX_ROWS + 2


# What is watched.


def test_every_watched_module_has_calls_to_wrap() -> None:
    assert set(parts.LOGGERS) == set(loggers._CALLS)
    direct = {name for name in parts.LIGHTNING if ".loggers." in name}
    assert direct == set(loggers._LIGHTNING_LOGGERS)


def test_each_logged_value_of_a_fake_logger_is_recorded_once() -> None:
    """A writer, a run and a client: mlflow's own functions go through its client, and count once."""
    losses = list(enumerate(expected_values()["losses"]))
    written: dict[str, list[tuple[int, float]]] = {}
    for tag, value, step in expected_values()["told"]:
        written.setdefault(tag, []).append((step, value))
    assert logging_run().logged_values("tensorboard") == written
    assert logging_run().logged_values("mlflow") == {"loss": losses}
    assert logging_run().logged_values("wandb") == {
        "loss": [(None, value) for _, value in losses],
        "nested.deep": [(None, 0.0), (None, 1.0), (None, 2.0)],
        "bad": [],  # infinite each time
    }
    assert "loggers" not in "".join(logging_run().disabled_parts())


# The libraries themselves.

_TRAINED = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
def train(tell):
    for step in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        tell(loss, step)
"""

_SCRIPTS = {
    "torch.utils.tensorboard": """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("tb")
train(lambda loss, step: writer.add_scalar("train/loss", loss, step))
writer.close()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
kept = EventAccumulator("tb").Reload()
print(json.dumps({"train/loss": [[event.step, event.value] for event in kept.Scalars("train/loss")]}))
""",
    "wandb": """
import wandb
run = wandb.init(project="p", dir=".")
told = []
def tell(loss, step):
    wandb.log({"loss": loss.item()})
    told.append([None, loss.item()])
train(tell)
run.finish()
print(json.dumps({"loss": told}))
""",
    "mlflow": """
import mlflow, os
mlflow.set_tracking_uri("file://" + os.getcwd() + "/kept")
with mlflow.start_run() as run:
    train(lambda loss, step: mlflow.log_metrics({"loss": loss.item()}, step=step))
    kept = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
print(json.dumps({"loss": [[metric.step, metric.value] for metric in kept]}))
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
told = []
def tell(loss, step):
    accelerator.log({"loss": loss.item(), "note": "text"}, step=step)
    told.append([step, loss.item()])
train(tell)
print(json.dumps({"loss": told}))
""",
    "lightning": """
import csv, glob, logging, warnings
import lightning as L
from lightning.pytorch.loggers import CSVLogger
warnings.simplefilter("ignore")
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        loss = self.model(batch[0]).pow(2).mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = L.Trainer(
    max_epochs=2, logger=[CSVLogger("one"), CSVLogger("two")], log_every_n_steps=1, accelerator="cpu",
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    callbacks=[L.pytorch.callbacks.LearningRateMonitor("step")],
)
trainer.fit(Module(), torch.utils.data.DataLoader(data, 8))
fabric = L.Fabric(accelerator="cpu", loggers=[L.fabric.loggers.CSVLogger("three")])
kept = {}
for row in csv.DictReader(open(glob.glob("one/**/metrics.csv", recursive=True)[0])):
    for name, value in row.items():
        if value and name != "step":
            kept.setdefault(name, []).append([int(row["step"]), float(value)])
fabric.log("fabric", torch.tensor(0.5), step=7)
kept["fabric"] = [[7, 0.5]]
print(json.dumps(kept))
""",
    "transformers": """
import transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = model
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).pow(2).mean()}
rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]
trainer = transformers.Trainer(Model(), transformers.TrainingArguments(
    "out", max_steps=4, logging_steps=2, report_to=[], per_device_train_batch_size=4, use_cpu=True,
    disable_tqdm=True, save_strategy="no"), train_dataset=rows)
trainer.train()
kept = {}
for row in trainer.state.log_history:
    step = row.pop("step")
    for name, value in row.items():
        kept.setdefault(name, []).append([step, value])
print(json.dumps(kept))
""",
}
_ALSO_NEEDS = {"torch.utils.tensorboard": "tensorboard", "transformers": "accelerate"}
_THROUGH = {"torch.utils.tensorboard": "tensorboard"}
_ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("library", _SCRIPTS)
def test_values_logged_with_an_installed_library_are_recorded(library: str, tmp_path: Path) -> None:
    """The script prints what the library itself has kept: name -> steps and values."""
    for name in (library, _ALSO_NEEDS.get(library, library)):
        if not can_import(name.partition(".")[0]):
            pytest.skip(f"{name} is not installed")
    process = observe_script(_TRAINED + _SCRIPTS[library], tmp_path / "script", **_ENVIRONMENT)
    assert process.status == 0, process.stderr
    expected = json.loads(process.stdout.splitlines()[-1])
    values = process.logged_values(_THROUGH.get(library, library))
    assert {name: [list(pair) for pair in pairs] for name, pairs in values.items()} == expected
    assert "loggers" not in "".join(process.disabled_parts())


def test_logged_images_are_reported_as_not_recorded(tmp_path: Path) -> None:
    package = tmp_path / "tensorboardX"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "writer.py").write_text(
        "class SummaryWriter:\n"
        "    def add_scalar(self, tag, value, step=None): pass\n"
        "    def add_image(self, tag, image, step=None): return tag\n"
    )
    wandb = tmp_path / "wandb"
    (wandb / "sdk").mkdir(parents=True)
    (wandb / "__init__.py").write_text("class Image: pass\n")
    (wandb / "sdk/__init__.py").write_text("")
    (wandb / "sdk/wandb_run.py").write_text("class Run:\n    def log(self, data, step=None): pass\n")
    script = """
import torch, wandb
from tensorboardX.writer import SummaryWriter
from wandb.sdk.wandb_run import Run
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], 0.01)
weight.sum().backward()
optimizer.step()
SummaryWriter().add_scalar("loss", 1.0, 1)
Run().log({"loss": 1.0})
if IMAGES:
    print(SummaryWriter().add_image("sample", torch.zeros(3, 2, 2)))
    Run().log({"loss": 1.0, "sample": wandb.Image()})
"""
    done = observe_script(script.replace("IMAGES", "True"), tmp_path)
    assert (done.status, done.stdout) == (0, "sample\n"), done.stderr
    off = {
        name: reason
        for name, reason in done.disabled_parts().items()
        if name.startswith("non-numeric values")
    }
    assert off == {
        "non-numeric values (tensorboard)": "add_image is not recorded; tensorboard itself saves it",
        "non-numeric values (wandb)": "Image is not recorded; wandb itself saves it",
    }
