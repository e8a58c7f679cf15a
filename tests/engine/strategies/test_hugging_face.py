"""Hugging Face models train as they are, by `file.py:factory` with their own loss, under every strategy that
can take them, and end where one device does. Labels are masked, so ranks hold different numbers of targets.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from rankdeck import events
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]

FACTORIES = Path(__file__).parents[2] / "helpers" / "hugging_face.py"
ONE_PROCESS = {
    "dp": '{ use = "dp" }',
    "dp-parallel-loss": '{ use = "dp", parallel_loss = true }',
    "model": '{ use = "model" }',
}
RANKS = {
    "ddp": '{ use = "ddp" }',
    "fsdp": '{ use = "fsdp" }',
    "pipeline": '{ use = "pipeline", schedule = "1f1b", microbatches = 4 }',
    "tensor": '{ use = "tensor" }',
}
SYNC_BATCH_NORM_STRATEGIES = {
    "ddp": '{ use = "ddp", sync_batchnorm = true }',
    "fsdp": '{ use = "fsdp", sync_batchnorm = true }',
}
LANGUAGE_MODELS = ("gpt2", "llama", "bert", "t5")
IN_CI = {
    ("gpt2", "ddp"),
    ("bert", "pipeline"),
    ("llama", "tensor"),
    ("resnet", "fsdp"),
    ("t5", "pipeline"),
}


def configuration(
    model: str, strategy: str, num_devices: int, *, accumulate: int = 1, args: str = "{}"
) -> str:
    data = "pictures" if model == "resnet" else "tokens"
    return f"""
model = {{ use = "{FACTORIES}:{model}", args = {args} }}
data = {{ use = "{FACTORIES}:{data}" }}
loss = {{ use = "model" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 3
global_batch = 16
accumulate = {accumulate}
optimizer = {{ use = "sgd", lr = 0.05 }}
"""


@cache
def train_in_process(toml: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


def train_on_one_device(model: str) -> dict[str, Tensor]:
    return train_in_process(configuration(model, '{ use = "single" }', 1))


def _cases() -> list[object]:
    cases = [
        (model, name) for model in LANGUAGE_MODELS for name in RANKS if (model, name) != ("gpt2", "tensor")
    ]
    cases += [("resnet", name) for name in SYNC_BATCH_NORM_STRATEGIES]
    return [
        pytest.param(model, name, marks=() if (model, name) in IN_CI else pytest.mark.slow)
        for model, name in cases
    ]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(("model", "strategy"), _cases())
def test_ranks_match_one_device(ranks: tuple[int, RankSet], model: str, strategy: str) -> None:
    options = SYNC_BATCH_NORM_STRATEGIES[strategy] if model == "resnet" else RANKS[strategy]
    weights = ranks[1].train(configuration(model, options, 2))
    assert largest_difference(weights, train_on_one_device(model)) <= TOLERANCES["fp32"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ONE_PROCESS)
@pytest.mark.parametrize("model", LANGUAGE_MODELS)
def test_devices_of_one_process_match_one_device(model: str, strategy: str) -> None:
    weights = train_in_process(configuration(model, ONE_PROCESS[strategy], 2))
    assert largest_difference(weights, train_on_one_device(model)) <= TOLERANCES["fp32"]


@pytest.mark.slow
def test_a_resnet_split_by_layers_matches_one_device() -> None:
    weights = train_in_process(configuration("resnet", ONE_PROCESS["model"], 2))
    assert largest_difference(weights, train_on_one_device("resnet")) <= TOLERANCES["fp32"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("strategy", ["ddp", "pipeline"])
def test_a_resnet_with_local_batch_norms_trains_and_differs(
    ranks: tuple[int, RankSet], strategy: str
) -> None:
    weights = ranks[1].train(configuration("resnet", RANKS[strategy], 2))
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values() if tensor.is_floating_point())
    assert largest_difference(weights, train_on_one_device("resnet")) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("model", "strategy"), [("gpt2", "ddp"), pytest.param("t5", "pipeline", marks=pytest.mark.slow)]
)
def test_a_hugging_face_model_without_gradient_sync_differs(
    ranks: tuple[int, RankSet], model: str, strategy: str
) -> None:
    weights = ranks[1].train(configuration(model, RANKS[strategy], 2), without_sync=True)
    assert largest_difference(weights, train_on_one_device(model)) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_t5_is_refused_by_zbv_for_several_tensors_at_a_cut(ranks: tuple[int, RankSet]) -> None:
    zbv = RANKS["pipeline"].replace("1f1b", "zbv")
    with pytest.raises(
        AssertionError, match=r"zbv splits the backward pass and .* but \d tensors enter stage"
    ):
        ranks[1].train(configuration("t5", zbv, 2))


def read_losses_and_problems(folder: Path) -> tuple[list[float | None], list[str]]:
    """Held-out losses and codes of problems."""
    rank_events = list(events.decode_lines((folder / "rank-0.0.jsonl").read_bytes()))
    losses = [event.loss for event in rank_events if isinstance(event, events.Evaluation)]
    return losses, [event.problem.code for event in rank_events if isinstance(event, events.ProblemRaised)]


@pytest.mark.parametrize(
    ("strategy", "accumulate", "args"),
    [
        ("single", 4, "{}"),
        ("dp", 1, "{}"),
        ("ddp", 1, "{}"),
        ("dp", 1, "{ output_router_logits = true, router_aux_loss_coef = 0.1 }"),
    ],
)
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_the_mean_of_a_loss_is_read_from_its_graph(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str, accumulate: int, args: str
) -> None:
    """A mixture of experts shifts its labels, and no name says so. The balance of its router is no mean: what
    several devices make of it is told."""
    num_devices = 1 if strategy == "single" else 2
    options = f'{{ use = "{strategy}"' + (", find_unused_parameters = true }" if strategy == "ddp" else " }")
    first, other = tmp_path / "one", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    request = {"toml": configuration("mixtral", '{ use = "single" }', 1, args=args), "events": str(first)}
    train_once({**request, "out": str(first / "weights")}, rank=0, world_size=1)
    request = {
        "toml": configuration("mixtral", options, num_devices, accumulate=accumulate, args=args),
        "events": str(other),
    }
    if strategy == "ddp":
        weights = ranks[1].train(**request)
    else:
        train_once({**request, "out": str(other / "weights")}, rank=0, world_size=1)
        weights = load_file(other / "weights")
    (expected, nothing), (actual, problems) = read_losses_and_problems(first), read_losses_and_problems(other)
    is_divisible = args == "{}"
    assert (largest_difference(weights, load_file(first / "weights")) <= TOLERANCES["fp32"]) is is_divisible
    assert (actual == pytest.approx(expected, rel=1e-6)) is is_divisible
    assert (nothing, problems) == ([], [] if is_divisible else ["loss-differs"])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(("model", "message"), [("gpt2", "fused Conv1D"), ("resnet", "Conv2d")])
def test_models_that_tensor_cannot_split_are_refused(
    ranks: tuple[int, RankSet], model: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        ranks[1].train(configuration(model, RANKS["tensor"], 2))
