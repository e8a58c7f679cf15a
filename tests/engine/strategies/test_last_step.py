"""data.last = "keep": an epoch's last step takes what is left, divided by its real count, everywhere.

Compared with a loop over plain torch, which knows nothing of parts, slices or padding. Two epochs of one
whole step of 16 samples and a shorter one, which the ledger follows.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text
from rankdeck.data.samplers import epoch_order
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates
from rankdeck.training import workload as workloads
from tests.helpers.own_data import smoothed
from tests.helpers.parity import MIN_DIFFERENCE, OWN_MODELS, TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

USER_DATA = OWN_MODELS.with_name("own_data.py")
USER_LOSS = f'loss = {{ use = "{USER_DATA}:smoothed" }}\n'
GPT = "heads = 4, width = 32, context = 16, vocabulary = 64"
WORKLOADS = {
    "mlp": ('{ use = "mlp", args = { hidden = [32, 32, 32] } }', ""),
    "gpt": (f'{{ use = "gpt", args = {{ layers = 2, {GPT} }} }}', ""),
    "gpt-masked": (f'{{ use = "gpt", args = {{ layers = 2, {GPT} }} }}', ", masked = 0.4"),
    "gpt-deep": (f'{{ use = "gpt", args = {{ layers = 6, {GPT} }} }}', ""),
}


def configuration(
    workload: str, samples: int, strategy: str, num_devices: int, accumulate: int = 1, last: str = "keep"
) -> str:
    model, masked = WORKLOADS[workload]
    return f"""
model = {model}
data = {{ use = "synthetic", args = {{ samples = {samples}{masked} }}, last = "{last}" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
[train]
epochs = 2
global_batch = 16
accumulate = {accumulate}
evaluate_every = {1 if "async" in strategy else 0}
optimizer = {{ use = "sgd", lr = 0.05 }}
"""


@functools.cache
def train_in_plain_torch(workload: str, samples: int, *, own_loss: bool = False) -> dict[str, Tensor]:
    """What torch makes of the same samples in the same order."""
    config = from_text(configuration(workload, samples, '{ use = "single" }', 1), folder=Path.cwd())
    load = workloads.load(config)
    model = load.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for chosen in epoch_order(samples, config.train.seed, epoch).split(16):
            rows = [load.train[int(index)] for index in chosen]
            inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
            optimizer.zero_grad()
            outputs = model(inputs).flatten(0, -2)
            if own_loss:
                total, count = smoothed(outputs, targets)
                (total / count).backward()
            else:
                F.cross_entropy(outputs, targets.flatten()).backward()
            optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def train_in_process(toml: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


ONE_PROCESS = [
    ("single", 1, "gpt-masked", 22, 1),
    ("single", 1, "mlp", 19, 8),  # five of eight parts are empty
    ("dp", 4, "gpt-masked", 22, 1),
    ("dp", 2, "mlp", 17, 2),
    ("model", 2, "gpt", 22, 2),
]


@pytest.mark.parametrize(("strategy", "num_devices", "workload", "samples", "accumulate"), ONE_PROCESS)
def test_one_process_keeps_the_last_samples(
    strategy: str, num_devices: int, workload: str, samples: int, accumulate: int
) -> None:
    toml = configuration(workload, samples, f'{{ use = "{strategy}" }}', num_devices, accumulate)
    assert (
        largest_difference(train_in_process(toml), train_in_plain_torch(workload, samples))
        <= TOLERANCES["fp32"]
    )


RANKS = [
    (2, "gpt-masked", 17, 2, '{ use = "ddp" }'),  # of four slices three are empty
    (4, "mlp", 18, 1, '{ use = "ddp", sync = "ring" }'),
    (4, "gpt-masked", 18, 1, '{ use = "fsdp" }'),
    (2, "mlp", 22, 2, '{ use = "fsdp" }'),
    (2, "gpt", 18, 1, '{ use = "tensor", sequence_parallel = true, loss_parallel = true }'),
    (2, "gpt-masked", 22, 1, '{ use = "pipeline", schedule = "1f1b" }'),
    (2, "gpt", 19, 2, '{ use = "pipeline", schedule = "1f1b-by-hand" }'),
    (2, "gpt", 22, 1, '{ use = "pipeline", schedule = "interleaved-zero-bubble" }'),
    pytest.param(
        *(4, "gpt-deep", 22, 1, '{ use = "pipeline", schedule = "interleaved-zero-bubble" }'),
        marks=pytest.mark.slow,
    ),
    (4, "gpt-masked", 17, 1, '{ use = "hybrid", data = 2, stage = 2 }'),
    *(
        pytest.param(4, "gpt", samples, 1, f'{{ use = "hybrid", {sizes} }}', marks=pytest.mark.slow)
        for samples, sizes in (
            (17, "shard = 2, tensor = 2"),
            (22, "stage = 2, tensor = 2, loss_parallel = true"),
        )
    ),
    # Drained after every update, it is one device.
    (2, "gpt-masked", 17, 1, '{ use = "pipeline-async" }'),
    (2, "gpt", 17, 2, '{ use = "pipeline-async", mode = "2bw" }'),
]


@pytest.mark.parametrize(
    ("ranks", "workload", "samples", "accumulate", "strategy"), RANKS, indirect=["ranks"]
)
def test_ranks_keep_the_last_samples(
    ranks: tuple[int, RankSet], workload: str, samples: int, accumulate: int, strategy: str
) -> None:
    weights = ranks[1].train(configuration(workload, samples, strategy, ranks[0], accumulate))
    assert largest_difference(weights, train_in_plain_torch(workload, samples)) <= TOLERANCES["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_user_loss_never_sees_padding(
    ranks: tuple[int, RankSet],
) -> None:
    expected = train_in_plain_torch("mlp", 22, own_loss=True)
    toml = USER_LOSS + configuration("mlp", 22, '{ use = "pipeline" }', 2)
    assert largest_difference(ranks[1].train(toml), expected) <= TOLERANCES["fp32"]
    dropped = USER_LOSS + configuration("mlp", 22, '{ use = "single" }', 1, last="drop")
    assert largest_difference(train_in_process(dropped), expected) > MIN_DIFFERENCE


def user_config(model: str, samples: int, strategy: str, num_devices: int, *, gets: str = "still") -> str:
    """A model and data of one's own."""
    toml = configuration("mlp", samples, strategy, num_devices)
    lines = toml.strip().splitlines()
    args = f'use = "{USER_DATA}:{gets}", args = {{ samples = {samples} }}, last = "keep"'
    lines[:2] = [f'model = {{ use = "{OWN_MODELS}:{model}" }}', f"data = {{ {args} }}"]
    loss = ['loss = { use = "model" }'] if gets == "labelled" else []
    return "\n".join([*lines[:2], *loss, *lines[2:]])


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_user_models_keep_the_last_samples(ranks: tuple[int, RankSet]) -> None:
    """Traced stages have a fixed batch; a loss that the model computes is of the real samples alone."""
    single = train_in_process(user_config("skipping", 19, '{ use = "single" }', 1))
    for weights in (
        train_in_process(user_config("skipping", 19, '{ use = "model" }', 2)),
        ranks[1].train(user_config("skipping", 19, '{ use = "pipeline" }', 2)),
    ):
        assert largest_difference(weights, single) <= TOLERANCES["fp32"]
    scored = train_in_process(user_config("scoring", 17, '{ use = "single" }', 1, gets="labelled"))
    weights = ranks[1].train(user_config("scoring", 17, '{ use = "ddp" }', 2, gets="labelled"))
    assert largest_difference(weights, scored) <= TOLERANCES["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_batch_norms_keep_the_last_samples_without_padding(ranks: tuple[int, RankSet]) -> None:
    single = train_in_process(user_config("tiny_conv", 18, '{ use = "single" }', 1))
    synced = ranks[1].train(user_config("tiny_conv", 18, '{ use = "ddp", sync_batchnorm = true }', 2))
    assert largest_difference(synced, single) <= TOLERANCES["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("samples", "strategy", "message"),
    [
        (
            17,
            "ddp",
            "fewer than the slices that .* ddp needs. The model's batch norms would include padding",
        ),
        (17, "fsdp", "batch norms would include padding"),
        (18, "ddp", "gives one device a single sample"),
        (22, "pipeline", "pads to whole micro-batches. The model's batch norms would include the padding"),
    ],
)
def test_padding_under_batch_norm_is_refused_before_the_first_step(
    ranks: tuple[int, RankSet], samples: int, strategy: str, message: str
) -> None:
    toml = user_config("tiny_conv", samples, f'{{ use = "{strategy}" }}', 2)
    with pytest.raises(AssertionError, match=message) as raised:
        ranks[1].train(toml)
    assert "in check_last_step" in str(raised.value)


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_padding_with_a_loss_in_the_model_is_refused(ranks: tuple[int, RankSet]) -> None:
    with pytest.raises(AssertionError, match="would count the padding"):
        ranks[1].train(user_config("scoring", 22, '{ use = "pipeline" }', 2, gets="labelled"))


def test_a_plan_refuses_the_same_configs_as_a_run() -> None:
    config = from_text(user_config("tiny_conv", 18, '{ use = "dp" }', 4), folder=Path.cwd())
    devices = Target("rehearsal", (TargetDevice(None, None),) * 4, like_cuda=False)
    short = {"train.epochs": None, "train.steps": 1}  # which ends before the epoch does
    candidates = [Candidate("dp"), Candidate("single"), Candidate("dp", changes=short)]
    for line in plan_candidates(config, candidates, devices):
        is_refused = line.strategy == "dp" and not line.changes
        assert line.verdict == ("cannot" if is_refused else "fits")
        assert ("a single sample" in (line.reason or "")) == is_refused


def test_an_epoch_shorter_than_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceeds the 15 samples of the training data"):
        train_in_process(configuration("mlp", 15, '{ use = "single" }', 1))
