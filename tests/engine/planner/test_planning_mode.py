"""Each place where the planner gives torch a hand: with it things work, and torch is as it was afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from cProfile import Profile
from pathlib import Path
from pstats import Stats

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from rankdeck.config import from_text
from rankdeck.planner.allocator import peak_reserved_bytes
from rankdeck.planner.candidates import Target, TargetDevice
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from rankdeck.planner.fake_values import FakeValues
from rankdeck.planner.plan_ledger import PlanLedger
from rankdeck.planner.planning_mode import planning_mode
from rankdeck.planner.rank_plan import plan_rank
from rankdeck.torch_compat.fake_tensors import FakeTensor, FakeTensorMode, active_fake_mode, in_kernel

DDP = """
model = { use = "mlp" }
data = { use = "synthetic" }
strategy = { use = "ddp" }
devices = { use = "cpu:2" }
"""


def test_weights_are_cast_in_place_and_stay_tied() -> None:
    with FakeTensorMode(), planning_mode(like_cuda=False):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        model[1].weight = model[0].weight
        model.double()
        assert model[0].weight is model[1].weight
        assert model[0].weight.dtype == torch.float64
        weight = model[0].weight
        model.to("cpu")
        assert model[0].weight is weight


def test_fake_weights_cannot_be_cast_without_the_mode() -> None:
    with FakeTensorMode():
        model = nn.Linear(4, 4)
        view = model.weight.view(-1)
        with pytest.raises(RuntimeError, match="swap"):
            model.double()
        del view


def test_initial_values_are_skipped_only_in_the_mode() -> None:
    tensor = torch.zeros(3)
    with planning_mode(like_cuda=False):
        assert not nn.init.ones_(tensor).any()
    assert nn.init.ones_(tensor).all()


def test_patched_functions_are_restored() -> None:
    attributes = [
        (nn.Module, "_apply"),
        (dist, "broadcast_object_list"),
        (dist, "isend"),
    ]
    before = [getattr(owner, name) for owner, name in attributes]
    with planning_mode(like_cuda=False):
        assert all(
            getattr(owner, name) is not old for (owner, name), old in zip(attributes, before, strict=True)
        )
    assert [getattr(owner, name) for owner, name in attributes] == before


def _track(values: FakeValues) -> AbstractContextManager[None]:
    return PlanLedger(1, FakeTensorMode(), values.compute, like_cuda=False).tracking()


def test_only_the_training_loop_may_read_values() -> None:
    class Looks(nn.Module):
        def forward(self, tensor: torch.Tensor) -> float:
            return float(tensor.sum())

    values = FakeValues()
    with _track(values), values.track_modules():
        assert float(torch.zeros(2).sum()) == 1.0
        with pytest.raises(Exception, match="_local_scalar_dense"):
            Looks()(torch.zeros(2))
        assert float(torch.zeros(2).sum()) == 1.0


def test_the_fp16_scaler_lets_the_optimizer_step() -> None:
    text = DDP.replace("cpu:2", "gpu:0,1") + 'train = { precision = "fp16", optimizer = { use = "adamw" } }'
    memory = fake_pass(PassRequest(from_text(text, folder=Path.cwd()), 2, like_cuda=True)).devices[0]
    by_kind = memory.live_by_kind
    assert by_kind["optimizer"] == 2 * by_kind["parameters"] > 0


def test_write_only_operations_are_skipped() -> None:
    with _track(FakeValues()):
        tensor = torch.zeros(2, 3)
        assert tensor.add_(1) is tensor
        assert tensor.t_().shape == (3, 2)
        assert tensor.resize_(7).shape == (7,)


def test_a_fake_pass_makes_few_calls() -> None:
    """Measured 400,000; 650,000 where it passes two modes and torch's own class makes each result."""
    text = """
    model = { use = "gpt", args = { layers = 4, heads = 2, width = 8, context = 8, vocabulary = 16 } }
    data = { use = "synthetic" }
    """
    request = PassRequest(from_text(text, folder=Path.cwd()), 1, like_cuda=True)
    fake_pass(request)  # what torch computes once in a process
    with Profile() as profile:
        fake_pass(request)
    assert Stats(profile).total_calls < 530_000  # type: ignore[attr-defined]


def test_untraceable_ddp_falls_back_to_single(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(*_: object, **__: object) -> None:
        raise AttributeError("reducer")

    monkeypatch.setattr("rankdeck.torch_compat.ddp.PlannedDdp.__init__", moved)
    config = from_text(DDP, folder=Path.cwd())
    target = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)
    rank_plan = plan_rank(config, 0, target)
    assert "the estimate is for a single device" in rank_plan.notes[0]
    device = rank_plan.devices[0]
    assert device.by_kind["communication"] == device.by_kind["parameters"] > 0
    monkeypatch.undo()
    followed = fake_pass(PassRequest(config, 2)).devices[0]
    assert device.active_bytes == pytest.approx(followed.peak_bytes, rel=0.05)


BALLAST_BYTES = 2**26
LOADING_MODEL = f"""
import torch

def model():
    read = [torch.empty({BALLAST_BYTES}, dtype=torch.uint8) for _ in range(4)]
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


@pytest.mark.parametrize("use", ["single", "dp", "ddp", "fsdp"])
def test_temporary_host_tensors_are_not_planned_on_the_gpu(tmp_path: Path, use: str) -> None:
    (tmp_path / "own.py").write_text(LOADING_MODEL)
    text = f"""
model.use = "{tmp_path}/own.py:model"
data.use = "digits"
strategy.use = "{use}"
devices.use = "gpu:0,1"
"""
    [log, *_] = fake_pass(PassRequest(from_text(text, folder=tmp_path), 2, like_cuda=True)).logs.values()
    assert 0 < peak_reserved_bytes(log, side_streams=False) < BALLAST_BYTES


PRETRAINED = """
import copy
import threading

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from safetensors.torch import save_file
from torch import nn

FILE = __file__ + ".safetensors"


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def loads():
    model = plain()
    model.load_state_dict(load_file(FILE))
    return model


def assigns():
    with torch.device("meta"):
        model = plain()
    with safe_open(FILE, framework="pt") as file:
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()}, assign=True)
    return model


def copies():
    blocks = [copy.deepcopy(model) for model in [plain()] * 2]
    return copy.deepcopy(blocks[1])


def from_numpy():
    model = plain()
    model[1].bias.data.copy_(torch.from_numpy(np.ones(32, np.float32)))
    return model


def in_threads():
    model = plain()
    thread = threading.Thread(target=lambda: model.load_state_dict(load_file(FILE), assign=True))
    thread.start()
    thread.join()
    return model
"""


@pytest.mark.parametrize("factory", ["loads", "assigns", "copies", "from_numpy", "in_threads"])
@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_loaded_and_copied_models_are_planned_alike(tmp_path: Path, factory: str, strategy: str) -> None:
    file = tmp_path / "pretrained.py"
    file.write_text(PRETRAINED, encoding="utf-8")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    save_file(plain.state_dict(), f"{file}.safetensors")
    target = Target("2 devices", (TargetDevice(None, None),) * 2, like_cuda=False)

    def needs(name: str) -> object:
        text = f"""
        model = {{ use = "{file}:{name}" }}
        data = {{ use = "digits" }}
        strategy = {{ use = "{strategy}" }}
        devices = {{ use = "cpu:{1 if strategy == "single" else 2}" }}
        """
        planned = plan_rank(from_text(text, folder=tmp_path), 0, target)
        assert planned.reason is None, planned.reason
        return planned.devices

    assert needs(factory) == needs("plain")


def test_an_untraceable_factory_is_not_blamed(tmp_path: Path) -> None:
    file = tmp_path / "reads.py"
    file.write_text("import torch\ndef make(): return torch.ones(1).data_ptr()\n", encoding="utf-8")
    text = f'model = {{ use = "{file}:make" }}\ndata = {{ use = "digits" }}\ndevices = {{ use = "cpu:1" }}'
    target = Target("1 device", (TargetDevice(None, None),), like_cuda=False)
    reason = plan_rank(from_text(text, folder=tmp_path), 0, target).reason
    assert reason is not None and "reads.py, line 2" in reason and "with fake tensors" in reason
    assert "Fix that line" not in reason


def test_threads_enter_and_leave_one_fake_mode() -> None:
    mode = FakeTensorMode()
    with ThreadPoolExecutor(1) as other:
        with mode:
            with mode, in_kernel(mode):
                other.submit(mode.__enter__).result()
                assert type(other.submit(torch.ones, 2).result()) is FakeTensor
            assert active_fake_mode() is mode
        other.submit(mode.__exit__, None, None, None).result()
        assert active_fake_mode() is other.submit(active_fake_mode).result() is None
