"""What people's own models and optimizers keep is saved like everything else, or a resume says what is not.

Each of them changes what steps read in a place of its own; without what lies beside weights a resumed run
takes other steps.
"""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from rankdeck.checkpoint import extra_state
from rankdeck.checkpoint.json_values import from_json_value, to_json_value
from rankdeck.checkpoint.store import CheckpointStore, read_weights
from rankdeck.checkpoint.training_state import TrainingState
from rankdeck.checkpoint.weights import save_weights
from rankdeck.checkpoint_files import CheckpointError, newest_intact
from rankdeck.training.step import LossScaling
from tests.helpers import own_models, own_optimizers, resume_ranks
from tests.helpers.parity import OWN_MODELS
from tests.helpers.ranks import RankSet

SAVED, STEPS = 3, 6
OPTIMIZERS = Path(own_optimizers.__file__)
MLP = "mlp"
ADAMW = "adamw"
two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])


def toml(model: str, optimizer: str, strategy: str = "single", *, every: int = SAVED, more: str = "") -> str:
    model = model if model == MLP else f"{OWN_MODELS}:{model}"
    optimizer = optimizer if optimizer == ADAMW else f"{OPTIMIZERS}:{optimizer}"
    return f"""
model = {{ use = "{model}" }}
data = {{ use = "digits" }}
strategy = {{ use = "{strategy}" }}
devices = {{ use = "cpu:{1 if strategy == "single" else 2}" }}
[train]
steps = {STEPS}
global_batch = 16
evaluate_every = 0
checkpoint_every = {every}
optimizer = {{ use = "{optimizer}" }}
{more}
"""


def run_interrupted(folder: Path, config: str, ranks: RankSet | None = None) -> Path:
    """A run that was not disturbed, its newest checkpoint that of step 3."""
    assert all("1.last of the model" in problem for problem in run_and_read_problems(folder, config, ranks))
    shutil.rmtree(folder / "checkpoints" / str(STEPS))
    return folder


def run_and_read_problems(
    folder: Path, config: str, ranks: RankSet | None = None, source: Path | None = None
) -> list[str]:
    """What it told."""
    more = {} if source is None else {"source": str(source)}
    if ranks is None:
        resume_ranks.run(config, str(folder), **more)
    else:
        ranks.call("tests.helpers.resume_ranks:run", toml=config, folder=str(folder), **more)
    return [problem.message for problem in resume_ranks.problems(folder)]


def is_same_result(left: Path, right: Path) -> bool:
    """Whether both runs have the same losses in the last step and the same weights, to the bit."""
    weights = [load_file(folder / "weights.safetensors") for folder in (left, right)]
    losses = [resume_ranks.losses(folder, 1)[STEPS] for folder in (left, right)]
    assert weights[0].keys() == weights[1].keys()
    return losses[0] == losses[1] and all(
        torch.equal(weights[0][name], weights[1][name]) for name in weights[0]
    )


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (MLP, "ScheduleFree"),
        (MLP, "Prodigy"),
        (MLP, "OwnSlices"),
        (MLP, "Lookahead"),
        ("drifting", ADAMW),
        ("amax", ADAMW),
    ],
)
def test_non_weight_state_is_restored_bitwise(
    tmp_path: Path, model: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = run_interrupted(tmp_path / "source", toml(model, optimizer))
    config = toml(model, optimizer, every=0)
    problems = run_and_read_problems(tmp_path / "on", config, source=source)
    assert len(problems) == 2 * (model == "drifting") and all(
        "1.last of the model" in line for line in problems
    )
    assert is_same_result(source, tmp_path / "on")
    monkeypatch.setattr(extra_state.ExtraState, "load", lambda *_: [])
    monkeypatch.setattr("rankdeck.checkpoint.training_state._EXTRA_PREFIX", "not here/")
    run_and_read_problems(tmp_path / "off", config, source=source)
    assert not is_same_result(source, tmp_path / "off")


@pytest.mark.parametrize("kind", [own_optimizers.Lookahead, own_optimizers.Wrapping])
def test_a_nested_optimizer_is_restored(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    def make_state() -> TrainingState:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        return TrainingState(model, kind(model.parameters()))

    def train(state: TrainingState, steps: range) -> list[Tensor]:
        for step in steps:
            torch.manual_seed(step)
            state.optimizer.zero_grad()
            state.module(torch.rand(4, 8)).square().sum().backward()
            state.optimizer.step()
        return [weight.detach().clone() for weight in state.module.parameters()]

    state = make_state()
    train(state, range(3))
    make_store(tmp_path).save(3, state, {})
    undisturbed = train(state, range(3, 6))
    checkpoint, _ = newest_intact(tmp_path)
    assert checkpoint is not None
    resumed = make_state()
    assert make_store(tmp_path).restore(checkpoint, resumed).missing == []
    assert all(map(torch.equal, train(resumed, range(3, 6)), undisturbed))
    plain = TrainingState(resumed.module, torch.optim.SGD(resumed.module.parameters()))
    missing = make_store(tmp_path).restore(checkpoint, plain).missing
    attribute = "optimizer" if kind is own_optimizers.Lookahead else "base_optimizer"
    assert f"the optimizer's {attribute}:exp_avg for each weight" in missing


def test_only_values_changed_by_steps_are_restored(tmp_path: Path) -> None:
    """Only what steps changed is state: d0 of a resume is its own, and so is a mask that the code changed."""
    model = nn.Sequential(own_models.Drifting(), nn.Linear(64, 2))
    optimizer = own_optimizers.Prodigy(model.parameters(), d0=0.01)
    state = TrainingState(model, optimizer)
    model(torch.rand(4, 64)).sum().backward()
    optimizer.step()
    make_store(tmp_path).save(1, state, {})
    fresh = nn.Sequential(own_models.Drifting(), nn.Linear(64, 2))
    fresh[0].mask.zero_()
    other = own_optimizers.Prodigy(fresh.parameters(), lr=0.5, d0=0.02)
    checkpoint, _ = newest_intact(tmp_path)
    assert checkpoint is not None
    missing = make_store(tmp_path).restore(checkpoint, TrainingState(fresh, other)).missing
    assert missing == ["0.last of the model"]
    (group,), (then,) = other.param_groups, optimizer.param_groups
    assert (group["lr"], group["d0"]) == (0.5, 0.02) and float(group["d"]) == float(then["d"])
    assert fresh[0].calls == 1 and fresh[0].has_scale and not fresh[0].mask.any()
    assert fresh[0].largest == model[0].largest and fresh[0].largest.maxlen == 2
    assert torch.equal(fresh[0].mean, model[0].mean) and torch.equal(fresh[0].scale, model[0].scale)
    states = [other.state[weight] for weight in fresh.parameters()]
    assert {state["s"].dtype for state in states} == {torch.bfloat16}


def make_store(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, rank=0, world_size=1, layout="single", keep=3)


@two_ranks
def test_per_rank_slices_are_restored_only_by_the_same_layout(
    ranks: tuple[int, RankSet], tmp_path: Path
) -> None:
    config = toml(MLP, "OwnSlices", "fsdp")
    source = run_interrupted(tmp_path / "source", config, ranks[1])
    assert (
        run_and_read_problems(tmp_path / "on", toml(MLP, "OwnSlices", "fsdp", every=0), ranks[1], source)
        == []
    )
    assert is_same_result(source, tmp_path / "on")
    (problem,) = run_and_read_problems(tmp_path / "single", toml(MLP, "OwnSlices", every=0), source=source)
    assert "does not restore the optimizer's speed for each weight" in problem
    assert (tmp_path / "single" / "weights.safetensors").is_file()
    # A rank that cannot save alone ends with all others, and nobody waits for it.
    with pytest.raises(
        AssertionError, match=r"rank 0:(?s:.)*the optimizer's per-parameter state friend contains"
    ):
        run_and_read_problems(tmp_path / "alone", toml(MLP, "Friendly", "ddp"), ranks[1])


@two_ranks
def test_extra_state_of_all_stages_is_saved(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    more = '[strategy]\nuse = "pipeline"\ncuts = ["0.2"]'
    config = toml("amax", ADAMW, "pipeline", more=more).replace('strategy = { use = "pipeline" }\n', "")
    source = run_interrupted(tmp_path / "source", config, ranks[1])
    with safe_open(source / "weights.safetensors", framework="pt") as opened:
        extra = json.loads(opened.metadata()["extra_state"])
    assert len(extra) == 2 and all(state["calls"] == STEPS * 4 for state in extra.values())
    checkpoint, _ = newest_intact(source / "checkpoints")
    model = own_models.amax()
    assert checkpoint is not None
    read_weights(checkpoint, model)
    states = [module.amax_state for module in model.modules() if isinstance(module, own_models.Amax)]
    assert [state["calls"] for state in states] == [SAVED * 4] * 2
    assert all(
        float(state["amax"]) == max(state["history"]) and len(state["history"]) == 3 for state in states
    )


def test_resume_restores_the_loss_scale_but_not_compression_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"loss-scaling": torch.tensor([8.0, 1.0]).double(), "error.0": torch.zeros(3)}
    monkeypatch.setattr(LossScaling, "state", lambda _: state)
    source = run_interrupted(tmp_path / "source", toml(MLP, ADAMW))
    taken = []
    monkeypatch.setattr(LossScaling, "pop_state", lambda _, states: taken.append(states.pop("loss-scaling")))
    (problem,) = run_and_read_problems(tmp_path / "dp", toml(MLP, ADAMW, "dp", every=0), source=source)
    assert taken[0].tolist() == [8.0, 1.0]
    assert "does not restore the accumulated error of gradient compression" in problem


def test_unsavable_state_is_found_after_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"the model's extra state 0\.1\.0\._extra_state contains object, an object"
    ):
        run_and_read_problems(tmp_path / "model", toml("secretive", ADAMW, every=0))
    assert list(resume_ranks.losses(tmp_path / "model", 1)) == [1]
    with pytest.raises(CheckpointError, match="the optimizer's per-parameter state friend contains"):
        run_and_read_problems(tmp_path / "optimizer", toml(MLP, "Friendly"))
    (problem,) = run_and_read_problems(tmp_path / "no-checkpoints", toml(MLP, "Friendly", every=0))
    assert "this run could not be written" in problem
    assert (tmp_path / "no-checkpoints" / "weights.safetensors").is_file()


def test_a_full_disk_is_reported_after_the_first_step(
    tmp_path: Path,
) -> None:
    config = toml(MLP, ADAMW, every=STEPS)
    with mock.patch("rankdeck.checkpoint.store.shutil.disk_usage") as usage:
        usage.return_value.free = 1000
        (problem,) = run_and_read_problems(tmp_path, config)
    assert problem.startswith("A checkpoint of this run could not be written: it needs ")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [str(STEPS)]


def test_unsaved_values_are_reported_by_run_and_resume(tmp_path: Path) -> None:
    (problem,) = run_and_read_problems(tmp_path / "source", toml(MLP, "Nesting"))
    assert problem.startswith("This run's checkpoints do not include the optimizer's inner")
    (again,) = run_and_read_problems(
        tmp_path / "on", toml(MLP, "Nesting", every=0), source=tmp_path / "source"
    )
    assert "does not restore the optimizer's inner" in again
    (keyed,) = run_and_read_problems(tmp_path / "keyed", toml(MLP, "Keyed"))
    assert "do not include the optimizer's slow" in keyed and "names" not in keyed


def test_schedule_free_runs_checkpoint_their_training_weights(tmp_path: Path) -> None:
    """Checkpoints hold weights to train; evaluations see those to evaluate, which are the final ones."""
    config = toml(MLP, "ScheduleFree").replace("evaluate_every = 0", "evaluate_every = 2")
    assert run_and_read_problems(tmp_path, config) == []
    last = next((tmp_path / "checkpoints" / str(STEPS)).glob("shard-*.safetensors"))
    saved, final = load_file(last), load_file(tmp_path / "weights.safetensors")
    for name, tensor in final.items():
        y, z = saved[f"model.{name}"], saved[f"optimizer.{name}.z"]
        assert torch.allclose(tensor, y.lerp(z, 1 - 1 / 0.9), atol=1e-6)
        assert not torch.equal(tensor, y)


def test_values_of_every_type_round_trip(tmp_path: Path) -> None:
    values: list[Any] = [
        None, True, 2**127, -1.5, float("inf"), "word", b"bytes", (1, [2.0, {"a": {3}}]), frozenset({"b"}),
        {1: "one", "$tuple": 2}, OrderedDict(b=1, a=2), deque([1, 2], maxlen=2), np.float32(0.1), {},
        np.random.default_rng(1).bit_generator.state,
    ]  # fmt: skip
    came_back = from_json_value(json.loads(json.dumps(to_json_value(values))))
    assert came_back == values and list(map(type, came_back)) == list(map(type, values))
    tensor = torch.tensor([[1.0, float("nan")]], dtype=torch.bfloat16)
    assert torch.equal(from_json_value(to_json_value(tensor)).view(torch.int16), tensor.view(torch.int16))
    array = np.arange(6, dtype=">i2").reshape(2, 3)
    assert (
        from_json_value(to_json_value(array)).dtype == array.dtype
        and (from_json_value(to_json_value(array)) == array).all()
    )
    for unknown in (object(), {"a": [nn.Linear(1, 1)]}, lambda: 0):
        with pytest.raises(TypeError, match="an object that only pickle could save"):
            to_json_value(unknown)
    save_weights(tmp_path / "w", {"w": torch.ones(2)}, {}, {"t": to_json_value(torch.ones(3)), "p": {"n": 1}})
    assert load_file(tmp_path / "w").keys() == {"w", "t"}
