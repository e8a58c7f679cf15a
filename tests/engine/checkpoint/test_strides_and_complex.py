"""Weights that do not lie in the order of their dims, and complex ones, are trained, saved and resumed as any
other, under every strategy."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from rankdeck.checkpoint import sharded
from rankdeck.checkpoint.json_values import from_json_value, to_json_value
from rankdeck.checkpoint.store import CheckpointStore, read_weights
from rankdeck.checkpoint.training_state import TrainingState
from rankdeck.checkpoint.weights import read_weights_file, save_weights
from rankdeck.checkpoint_files import UNSAVABLE_STATE, CheckpointError, newest_intact
from rankdeck.config import from_text
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.parallel.pytree import cast_to
from rankdeck.training import workload as workloads
from tests.helpers import own_models, resume_ranks
from tests.helpers.parity import OWN_MODELS
from tests.helpers.ranks import RankSet, largest_difference

SAVED, STEPS = 2, 4


def toml(model: str, strategy: str, *, precision: str = "fp64") -> str:
    num_devices = 1 if strategy == "single" else 2
    options = ", shard = 2" if strategy == "hybrid" else ""
    return f"""
model = {{ use = "{OWN_MODELS}:{model}" }}
data = {{ use = "digits" }}
strategy = {{ use = "{strategy}"{options} }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = {STEPS}
global_batch = 16
evaluate_every = 0
checkpoint_every = {SAVED}
clip_norm = 1.0
precision = "{precision}"
optimizer = {{ use = "adamw", lr = 0.01 }}
"""


def run_and_read_weights(
    ranks: RankSet | None, config: str, folder: Path, source: Path | None = None
) -> dict[str, Tensor]:
    """The final weights of a run, whose checkpoints are in `folder`."""
    more = {} if source is None else {"source": str(source), "attempt": 1}
    if ranks is None:
        resume_ranks.run(config, str(folder), **more)  # type: ignore[arg-type]
    else:
        ranks.call("tests.helpers.resume_ranks:run", toml=config, folder=str(folder), **more)
    return read_weights_file(folder / "weights.safetensors")


def train_in_plain_torch(config: str, model: nn.Module) -> dict[str, Tensor]:
    """The same training in plain torch, in fp64."""
    with torch.no_grad():
        for owner in model.modules():
            for table in (owner._parameters, owner._buffers):
                for name, tensor in table.items():
                    new = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)  # type: ignore[union-attr]
                    table[name] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
    data = workloads.load(from_text(config, folder=Path.cwd())).train
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for draws in TrainBatchSampler(len(data), 16, seed=0, steps=STEPS):
        inputs, targets = data.read_batch([draw.sample for draw in draws])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.double()), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("Strided", "single"),
        ("Strided", "fsdp"),
        ("Strided", "pipeline"),
        ("Spectral", "single"),
        ("Spectral", "ddp"),
        ("Spectral", "pipeline"),
        *(
            pytest.param(model, strategy, marks=pytest.mark.slow)
            for model, strategy in (
                ("Strided", "ddp"),
                ("Strided", "dp"),
                ("Strided", "model"),
                ("Strided", "hybrid"),
                ("Spectral", "dp"),
                ("Spectral", "model"),
            )
        ),
    ],
)
def test_a_resumed_run_equals_plain_torch_bitwise(
    ranks: tuple[int, RankSet], tmp_path: Path, model: str, strategy: str
) -> None:
    rank_set = None if strategy in ("single", "dp", "model") else ranks[1]
    config = toml(model, strategy)
    weights = run_and_read_weights(rank_set, config, tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole" / "checkpoints" / str(STEPS))
    resumed = run_and_read_weights(rank_set, config, tmp_path / "on", source=tmp_path / "whole")
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    torch.manual_seed(0)
    plain = train_in_plain_torch(config, getattr(own_models, model)())
    assert weights.keys() == plain.keys()
    assert max(float((weights[name] - plain[name]).abs().max()) for name in plain) <= 1e-10


def test_fp64_casts_complex_weights_to_complex128() -> None:
    inputs = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(cast_to(inputs, torch.float64), inputs.to(torch.complex128))
    assert cast_to(inputs, torch.float32) is inputs
    assert cast_to(torch.arange(3), torch.float64).dtype is torch.int64


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_weights_are_in_every_file(tmp_path: Path, dtype: torch.dtype) -> None:
    def trained(num_steps: int) -> tuple[nn.ParameterDict, torch.optim.Optimizer]:
        torch.manual_seed(num_steps)
        model = nn.ParameterDict({"a": torch.randn(3, 2, dtype=dtype).t(), "b": torch.randn((), dtype=dtype)})
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(num_steps):
            sum(weight.abs().sum() for weight in model.values()).backward()
            optimizer.step()
        return model, optimizer

    keeper = CheckpointStore(tmp_path, rank=0, world_size=1, layout="single", keep=1)
    model, optimizer = trained(2)
    error = torch.randn(2, dtype=dtype)
    keeper.save(2, TrainingState(model, optimizer), {"error": error})
    checkpoint, _ = newest_intact(tmp_path)
    fresh, fresh_optimizer = trained(0)
    assert checkpoint is not None
    restored = keeper.restore(checkpoint, TrainingState(fresh, fresh_optimizer))
    assert torch.equal(restored.extra["error"], error)
    for name in model:
        assert torch.equal(fresh[name], model[name]) and fresh[name].stride() == model[name].stride()
        state, expected = fresh_optimizer.state[fresh[name]], optimizer.state[model[name]]
        assert all(torch.equal(state[what], expected[what]) for what in expected)
    alone, _ = trained(0)
    read_weights(checkpoint, alone)
    assert torch.equal(alone["a"], model["a"])
    save_weights(tmp_path / "w", model.state_dict(), {})
    assert max_real_difference(read_weights_file(tmp_path / "w"), model.state_dict()) == 0
    assert torch.equal(from_json_value(to_json_value(error)), error)


def max_real_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return largest_difference(
        {name: torch.view_as_real(tensor) for name, tensor in left.items()},
        {name: torch.view_as_real(tensor) for name, tensor in right.items()},
    )


def test_a_save_error_other_than_the_disk_fails_the_run(tmp_path: Path) -> None:
    """It goes on to its end first; what is said then can be followed."""
    save = sharded.save

    def fails(tensors: dict[str, Tensor], **rest: object) -> object:
        if any(tensor.numel() > 1 for tensor in tensors.values()):
            raise ValueError("no such tensor")
        return save(tensors, **rest)

    with mock.patch.object(sharded, "save", fails), pytest.raises(CheckpointError) as failed:
        resume_ranks.run(toml("Strided", "single"), str(tmp_path), ends=True)
    error = failed.value
    assert error.code == UNSAVABLE_STATE and "no such tensor" in error.message
    assert "train.checkpoint_every = 0" in str(error.advice)
    assert (tmp_path / "weights.safetensors").exists()
    resume_ranks.run(
        toml("Strided", "single").replace(f"checkpoint_every = {SAVED}", "checkpoint_every = 0"),
        str(tmp_path / "without"),
        ends=True,
    )
