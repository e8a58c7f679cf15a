"""tensor ends with one device's weights under found and given plans and every option, not without its sums;
each device holds less than one device would, and what is sent is told.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck import events
from tests.helpers import split_models
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES, configuration, single_device_weights
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, four_are_slow, largest_difference

AUTOMATIC_PLAN = ""
SEQUENCE_PARALLEL = ", sequence_parallel = true"
LOSS_PARALLEL = ", loss_parallel = true"
USER_PLAN = ', plan = { "blocks.*.up" = "column", "blocks.*.down" = "row", "head.output" = "column" }'
CASES = [
    (2, "gpt", AUTOMATIC_PLAN, 1),
    (4, "gpt-tied", AUTOMATIC_PLAN, 1),
    (2, "gpt-masked", AUTOMATIC_PLAN, 2),
    (4, "mlp", AUTOMATIC_PLAN, 1),
    (2, "bare_blocks", AUTOMATIC_PLAN, 1),
    (2, "mlp-nearly-all-masked", AUTOMATIC_PLAN, 2),
    (2, "gpt-masked", SEQUENCE_PARALLEL, 2),
    (4, "gpt-tied", LOSS_PARALLEL, 1),
    (2, "gpt", USER_PLAN, 1),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            (4, "mlp-nearly-all-masked", AUTOMATIC_PLAN, 2),
            (4, "gpt-masked", SEQUENCE_PARALLEL, 2),
            (2, "gpt-tied", LOSS_PARALLEL, 1),
            (4, "gpt", USER_PLAN, 1),
        )
    ),
]


def tensor_strategy(options: str) -> str:
    return f'{{ use = "tensor"{options} }}'


@pytest.mark.parametrize(("ranks", "workload", "options", "accumulate"), CASES, indirect=["ranks"])
def test_split_layers_match_one_device(
    ranks: tuple[int, RankSet], workload: str, options: str, accumulate: int
) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(workload, tensor_strategy(options), num_ranks, accumulate=accumulate)
    weights = rank_set.train(toml)
    assert (
        largest_difference(weights, single_device_weights(workload, "fp32", accumulate)) <= TOLERANCES["fp32"]
    )


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.slow), 4], indirect=True, ids=["2-ranks", "4-ranks"]
)
def test_fp64_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(
        "gpt-masked",
        tensor_strategy(SEQUENCE_PARALLEL + LOSS_PARALLEL),
        num_ranks,
        precision="fp64",
        accumulate=2,
    )
    assert (
        largest_difference(rank_set.train(toml), single_device_weights("gpt-masked", "fp64", 2))
        <= TOLERANCES["fp64"]
    )


@four_are_slow
def test_activation_checkpointing_does_not_change_weights(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(
        "gpt",
        tensor_strategy(SEQUENCE_PARALLEL),
        num_ranks,
        train="activation_checkpointing = true\nevaluate_every = 2",
    ).replace("evaluate_every = 0\n", "")
    assert largest_difference(rank_set.train(toml), single_device_weights("gpt")) <= TOLERANCES["fp32"]


@four_are_slow
def test_bf16_matches_one_device_in_bf16(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration("gpt", tensor_strategy(AUTOMATIC_PLAN), num_ranks, precision="bf16")
    assert largest_difference(rank_set.train(toml), single_device_weights("gpt", "bf16")) <= 1e-3


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    ("workload", "options", "left_out"),
    [
        ("gpt", AUTOMATIC_PLAN, "sums"),
        ("bare_blocks", AUTOMATIC_PLAN, "sums"),
        ("gpt-tied", AUTOMATIC_PLAN, "ties"),
        ("gpt", SEQUENCE_PARALLEL, "partial"),
    ],
)
def test_weights_differ_without_a_required_sync(
    ranks: tuple[int, RankSet], tmp_path: Path, workload: str, options: str, left_out: str
) -> None:
    num_ranks, rank_set = ranks
    out = tmp_path / "weights.safetensors"
    # Norms have small gradients: at the usual rate, three steps move them too little to see what is missing.
    toml = re.sub(r"lr = [\d.]+", "lr = 0.5", configuration(workload, tensor_strategy(options), num_ranks))
    rank_set.call("tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what=left_out)
    assert largest_difference(load_file(out), rank_set.train(toml)) > MIN_DIFFERENCE


SPLIT_MODELS = Path(split_models.__file__)
PARTLY_SPLIT = {
    "alibi": 'Transformer", args = { attention = "alibi" }',
    "mean": 'Transformer", args = { between = "mean" }',
    "weight-norm": 'weight_normed"',
}


def partly_split_config(model: str, strategy: str, num_devices: int) -> str:
    return f"""
model = {{ use = "{SPLIT_MODELS}:{PARTLY_SPLIT[model]} }}
data = {{ use = "digits" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 3, global_batch = 8, evaluate_every = 0, precision = "fp64" }}
"""


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize("model", PARTLY_SPLIT)
def test_layers_that_cannot_be_split_are_replicated(
    ranks: tuple[int, RankSet], tmp_path: Path, model: str
) -> None:
    """And would end elsewhere, or nowhere, if it were split."""
    out, toml = tmp_path / "single", partly_split_config(model, tensor_strategy(AUTOMATIC_PLAN), 2)
    train_once({"toml": partly_split_config(model, '{ use = "single" }', 1), "out": str(out)}, 0, 1)
    one_device = load_file(out)
    assert largest_difference(ranks[1].train(toml), one_device) <= TOLERANCES["fp64"]
    if model != "weight-norm":
        ranks[1].call("tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what="check")
        assert largest_difference(load_file(out), one_device) > 1e-6


WIDE_GPT = """
model = {{ use = "gpt", args = {{ layers = 2, heads = 4, width = 64, context = 32, vocabulary = 1024 }} }}
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 3, global_batch = 8, evaluate_every = 0 }}
"""


def read_memory_and_comm(folder: Path, rank: int) -> tuple[events.DeviceMemory, events.Comm | None]:
    """The smallest peak of a rank's device after the first step, and its last word on bytes.

    A collective's thread may let go of its tensors a little later or earlier: the smallest is the true need.
    """
    rank_events = list(events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes()))
    memory = [
        event.devices[0] for event in rank_events if isinstance(event, events.Memory) and event.step > 1
    ]
    sent = [event for event in rank_events if isinstance(event, events.Comm)]
    return min(memory, key=lambda device: device.peak_bytes), sent[-1] if sent else None


@four_are_slow
def test_each_device_holds_less_and_reports_its_bytes(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    num_ranks, rank_set = ranks
    peaks, sent = {}, {}
    for name, options in {
        "tensor": AUTOMATIC_PLAN,
        "loss": LOSS_PARALLEL,
        "both": SEQUENCE_PARALLEL + LOSS_PARALLEL,
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        rank_set.train(
            WIDE_GPT.format(strategy=tensor_strategy(options), num_devices=num_ranks),
            events=str(folder),
            always=True,
        )
        reports = [read_memory_and_comm(folder, rank) for rank in range(num_ranks)]
        peaks[name], comm = min(reports, key=lambda pair: pair[0].peak_bytes)
        assert comm is not None and not comm.measured
        sent[name] = comm.sent_bytes
    single = single_device_memory(tmp_path)
    assert single.live_by_kind is not None and peaks["tensor"].live_by_kind is not None
    for kind in ("parameters", "optimizer"):
        share = peaks["tensor"].live_by_kind[kind] / single.live_by_kind[kind]
        assert 1 / num_ranks <= share < 1 / num_ranks + 0.05
    assert peaks["both"].peak_bytes < peaks["loss"].peak_bytes < peaks["tensor"].peak_bytes
    assert peaks["tensor"].peak_bytes < single.peak_bytes
    stream_bytes = 8 * 32 * 64 * 4
    sums = 2 * (num_ranks - 1) / num_ranks * stream_bytes * (4 * 2 + 2)
    logits = (num_ranks - 1) / num_ranks * 8 * 32 * 1024 * 4
    assert sent["tensor"] == pytest.approx(sums + logits, rel=0.02)
    assert sent["loss"] < sent["tensor"]


def single_device_memory(tmp_path: Path) -> events.DeviceMemory:
    """What one device holds for the same run."""
    folder = tmp_path / "single"
    folder.mkdir()
    toml = WIDE_GPT.format(strategy='{ use = "single" }', num_devices=1)
    request = {"toml": toml, "out": str(tmp_path / "weights"), "events": str(folder), "always": True}
    train_once(request, rank=0, world_size=1)
    return read_memory_and_comm(folder, 0)[0]
