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
from tests.helpers.parity import BARS, MUST_DIFFER, configuration, of_one_device
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, four_are_slow, largest_difference

FOUND = ""
SEQUENCE = ", sequence_parallel = true"
LOSS = ", loss_parallel = true"
GIVEN = ', plan = { "blocks.*.up" = "column", "blocks.*.down" = "row", "head.output" = "column" }'
CASES = [
    (2, "gpt", FOUND, 1),
    (4, "gpt-tied", FOUND, 1),
    (2, "gpt-masked", FOUND, 2),
    (4, "mlp", FOUND, 1),
    (2, "bare_blocks", FOUND, 1),
    (2, "mlp-nearly-all-masked", FOUND, 2),
    (2, "gpt-masked", SEQUENCE, 2),
    (4, "gpt-tied", LOSS, 1),
    (2, "gpt", GIVEN, 1),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            (4, "mlp-nearly-all-masked", FOUND, 2),
            (4, "gpt-masked", SEQUENCE, 2),
            (2, "gpt-tied", LOSS, 1),
            (4, "gpt", GIVEN, 1),
        )
    ),
]


def tensor(options: str) -> str:
    return f'{{ use = "tensor"{options} }}'


@pytest.mark.parametrize(("ranks", "workload", "options", "accumulate"), CASES, indirect=["ranks"])
def test_split_layers_end_where_one_device_does(
    ranks: tuple[int, RankSet], workload: str, options: str, accumulate: int
) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(workload, tensor(options), num_ranks, accumulate=accumulate)
    weights = rank_set.train(toml)
    assert largest_difference(weights, of_one_device(workload, "fp32", accumulate)) <= BARS["fp32"]


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.slow), 4], indirect=True, ids=["2-ranks", "4-ranks"]
)
def test_fp64_leaves_no_doubt(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration("gpt-masked", tensor(SEQUENCE + LOSS), num_ranks, precision="fp64", accumulate=2)
    assert largest_difference(rank_set.train(toml), of_one_device("gpt-masked", "fp64", 2)) <= BARS["fp64"]


@four_are_slow
def test_recomputed_blocks_change_nothing(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration(
        "gpt", tensor(SEQUENCE), num_ranks, train="activation_checkpointing = true\nevaluate_every = 2"
    ).replace("evaluate_every = 0\n", "")
    assert largest_difference(rank_set.train(toml), of_one_device("gpt")) <= BARS["fp32"]


@four_are_slow
def test_bf16_stays_near_one_device_in_bf16(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    toml = configuration("gpt", tensor(FOUND), num_ranks, precision="bf16")
    assert largest_difference(rank_set.train(toml), of_one_device("gpt", "bf16")) <= 1e-3


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    ("workload", "options", "left_out"),
    [
        ("gpt", FOUND, "sums"),
        ("bare_blocks", FOUND, "sums"),
        ("gpt-tied", FOUND, "ties"),
        ("gpt", SEQUENCE, "partial"),
    ],
)
def test_what_is_left_out_is_seen(
    ranks: tuple[int, RankSet], tmp_path: Path, workload: str, options: str, left_out: str
) -> None:
    num_ranks, rank_set = ranks
    out = tmp_path / "weights.safetensors"
    # Norms have small gradients: at the usual rate, three steps move them too little to see what is missing.
    toml = re.sub(r"lr = [\d.]+", "lr = 0.5", configuration(workload, tensor(options), num_ranks))
    rank_set.call("tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what=left_out)
    assert largest_difference(load_file(out), rank_set.train(toml)) > MUST_DIFFER


SPLIT_MODELS = Path(split_models.__file__)
PARTLY_SPLIT = {
    "alibi": 'Transformer", args = { attention = "alibi" }',
    "mean": 'Transformer", args = { between = "mean" }',
    "weight-norm": 'weight_normed"',
}


def partly_split(model: str, strategy: str, num_devices: int) -> str:
    return f"""
model = {{ use = "{SPLIT_MODELS}:{PARTLY_SPLIT[model]} }}
data = {{ use = "digits" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 3, global_batch = 8, evaluate_every = 0, precision = "fp64" }}
"""


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize("model", PARTLY_SPLIT)
def test_what_cannot_be_split_stays_whole(ranks: tuple[int, RankSet], tmp_path: Path, model: str) -> None:
    """And would end elsewhere, or nowhere, if it were split."""
    out, toml = tmp_path / "single", partly_split(model, tensor(FOUND), 2)
    train_once({"toml": partly_split(model, '{ use = "single" }', 1), "out": str(out)}, 0, 1)
    one_device = load_file(out)
    assert largest_difference(ranks[1].train(toml), one_device) <= BARS["fp64"]
    if model != "weight-norm":
        ranks[1].call("tests.helpers.split_ranks:train_leaving_out", toml=toml, out=str(out), what="check")
        assert largest_difference(load_file(out), one_device) > 1e-6


WIDE = """
model = {{ use = "gpt", args = {{ layers = 2, heads = 4, width = 64, context = 32, vocabulary = 1024 }} }}
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = 3, global_batch = 8, evaluate_every = 0 }}
"""


def told_by(folder: Path, rank: int) -> tuple[events.DeviceMemory, events.Comm | None]:
    """The smallest peak of a rank's device after the first step, and its last word on bytes.

    A collective's thread may let go of its tensors a little later or earlier: the smallest is the true need.
    """
    found = list(events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes()))
    memory = [event.devices[0] for event in found if isinstance(event, events.Memory) and event.step > 1]
    sent = [event for event in found if isinstance(event, events.Comm)]
    return min(memory, key=lambda device: device.peak_bytes), sent[-1] if sent else None


@four_are_slow
def test_each_device_holds_less_and_sends_what_it_says(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    num_ranks, rank_set = ranks
    peaks, sent = {}, {}
    for name, options in {"tensor": FOUND, "loss": LOSS, "both": SEQUENCE + LOSS}.items():
        folder = tmp_path / name
        folder.mkdir()
        rank_set.train(
            WIDE.format(strategy=tensor(options), num_devices=num_ranks), events=str(folder), always=True
        )
        told = [told_by(folder, rank) for rank in range(num_ranks)]
        peaks[name], comm = min(told, key=lambda pair: pair[0].peak_bytes)
        assert comm is not None and not comm.measured
        sent[name] = comm.sent_bytes
    single = _single(tmp_path)
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


def _single(tmp_path: Path) -> events.DeviceMemory:
    """What one device holds for the same run."""
    folder = tmp_path / "single"
    folder.mkdir()
    toml = WIDE.format(strategy='{ use = "single" }', num_devices=1)
    request = {"toml": toml, "out": str(tmp_path / "weights"), "events": str(folder), "always": True}
    train_once(request, rank=0, world_size=1)
    return told_by(folder, 0)[0]
