"""Layer splits and pipelines end with one device's weights: every schedule, tied weights, masked targets.

With batch norms weights are those of one device that takes the same microbatches one after another, as
`accumulate` does; running figures are those of one that takes each part whole.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from rankdeck import events
from rankdeck.config.microbatches import STAGES_PER_DEVICE
from tests.helpers.parity import MIN_DIFFERENCE, TOLERANCES, configuration, single_device_weights
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, alternate_pairs, alternate_rows, four_are_slow, largest_difference

SCHEDULES = list(STAGES_PER_DEVICE)
FIRST_RUNNING_STATS = ("0.0.1.running", "first.running", "layers.0.1.running")
WORKLOADS = {"gpt-tied": 1, "gpt-masked": 2, "mlp-deep": 1}  # and the parts that are accumulated


def pipeline(schedule: str, microbatches: int, more: str = "") -> str:
    return f'{{ use = "pipeline", schedule = "{schedule}", microbatches = {microbatches}{more} }}'


def deepen(workload: str, schedule: str, num_ranks: int) -> str:
    """The workload, with units for so many stages."""
    is_shallow = workload.startswith("gpt") and num_ranks * STAGES_PER_DEVICE[schedule] > 4
    return workload.replace("gpt", "gpt-deep") if is_shallow else workload


def difference_from_one_device(
    ranks: tuple[int, RankSet],
    workload: str,
    schedule: str,
    *,
    microbatches: int | None = None,
    precision: str = "fp32",
    accumulate: int = 1,
    as_if: int | None = None,
    train: str = "",
    more: str = "",
    without_sync: bool = False,
) -> float:
    """How far the run's weights end from one device's, which accumulates `as_if` parts."""
    num_ranks, rank_set = ranks
    workload = deepen(workload, schedule, num_ranks)
    min_microbatches = 2 * num_ranks if schedule == "dualpipev" else num_ranks
    strategy = pipeline(schedule, microbatches or min_microbatches, more)
    toml = configuration(
        workload, strategy, num_ranks, precision=precision, accumulate=accumulate, train=train
    )
    weights = rank_set.train(toml, without_sync=without_sync)
    return largest_difference(
        weights, single_device_weights(workload, precision, as_if or accumulate, train=train)
    )


@pytest.mark.parametrize(
    ("ranks", "schedule", "workload"), alternate_pairs(SCHEDULES, WORKLOADS, every=3), indirect=["ranks"]
)
def test_every_schedule_matches_one_device(ranks: tuple[int, RankSet], schedule: str, workload: str) -> None:
    assert (
        difference_from_one_device(ranks, workload, schedule, accumulate=WORKLOADS[workload])
        <= TOLERANCES["fp32"]
    )


@pytest.mark.parametrize(
    ("ranks", "schedule"),
    alternate_rows(["1f1b", "1f1b-by-hand", "interleaved-zero-bubble"]),
    indirect=["ranks"],
)
def test_fp64_matches_one_device(ranks: tuple[int, RankSet], schedule: str) -> None:
    assert difference_from_one_device(ranks, "gpt-tied", schedule, precision="fp64") <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    ("ranks", "workload", "accumulate", "parts_per_rank"),
    alternate_rows([("gpt-tied", 1, 1), ("gpt-masked", 2, 1), ("gpt-tied", 1, 2)]),
    indirect=["ranks"],
)
def test_1f1b_by_hand_equals_torch_bitwise(
    ranks: tuple[int, RankSet], tmp_path: Path, workload: str, accumulate: int, parts_per_rank: int
) -> None:
    """Losses, norms of all gradients, an evaluation, and weights after three steps."""
    num_ranks, rank_set = ranks
    weights, reported = {}, {}
    for schedule in ("1f1b", "1f1b-by-hand"):
        (folder := tmp_path / schedule).mkdir()
        toml = configuration(
            workload, pipeline(schedule, num_ranks * parts_per_rank), num_ranks, accumulate=accumulate
        )
        weights[schedule] = rank_set.train(toml, events=str(folder))
        reported[schedule] = [read_reports(folder, rank) for rank in range(num_ranks)]
    assert largest_difference(weights["1f1b"], weights["1f1b-by-hand"]) == 0.0
    assert reported["1f1b"] == reported["1f1b-by-hand"]


@four_are_slow
def test_other_microbatches_are_not_bitwise_equal(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    first, other = (
        rank_set.train(configuration("gpt-tied", pipeline("1f1b-by-hand", microbatches), num_ranks))
        for microbatches in (num_ranks, 2 * num_ranks)
    )
    assert largest_difference(first, other) > 0.0


def read_reports(folder: Path, rank: int) -> dict[str, list[object]]:
    """What a rank reported of its steps, its evaluations, the bytes that it sent and how its pipeline ran."""
    reports: dict[str, list[object]] = defaultdict(list)
    for event in events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes()):
        if isinstance(event, events.Steps):  # as many to an event as happened to be there when it was written
            reports["losses"] += zip(event.loss_sum or [], event.count or [], strict=True)
            reports["norms"] += event.grad_norm or []
        if isinstance(event, events.Evaluation):
            reports["evaluations"].append((event.loss, event.accuracy))
        if isinstance(event, events.Comm):
            reports["sent"].append((event.sent_bytes, event.measured))
        if isinstance(event, events.Pipeline):
            reports["pipeline"].append((event.stages, event.in_flight, event.theory_bubble))
    assert len(reports["norms"]) == 3
    return reports


def test_values_that_bypass_a_cut_get_their_gradients() -> None:
    """Cut before the middle, its residual arrives there too; so does what flows back."""
    toml = configuration("residual_once", '{ use = "model", cuts = ["middle"] }', 2)
    assert (
        largest_difference(train_in_process(toml), single_device_weights("residual_once"))
        <= TOLERANCES["fp32"]
    )


def with_adamw(toml: str) -> str:
    """AdamW shrinks every weight that has a gradient, if it is zero."""
    return toml.replace('{ use = "sgd", lr = 0.02 }', '{ use = "adamw", lr = 0.01, weight_decay = 0.1 }')


@cache
def train_on_one_device_with_adamw(workload: str) -> dict[str, Tensor]:
    return train_in_process(with_adamw(configuration(workload, precision="fp64")))


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "schedule"),
    [
        ("tied_by_function", "1f1b"),
        ("late_temperature", "1f1b-by-hand"),
        ("late_temperature", "zbv"),
        ("gated_skip", "gpipe"),
        ("detached_in_training", "1f1b"),
        ("detached_in_training", "1f1b-by-hand"),
        ("unused", "1f1b"),
        ("frozen", "1f1b"),
        ("frozen", "1f1b-by-hand"),
    ],
)
def test_weights_used_across_cuts_or_unused_match_one_device(
    ranks: tuple[int, RankSet], workload: str, schedule: str
) -> None:
    toml = configuration(workload, pipeline(schedule, 2), 2, precision="fp64")
    weights = ranks[1].train(with_adamw(toml))
    assert largest_difference(weights, train_on_one_device_with_adamw(workload)) <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    "workload",
    ["tied_by_function", "late_temperature", "gated_skip", "counting", "old_spectral_norm", "frozen"],
)
def test_layers_on_several_devices_match_one_device(workload: str) -> None:
    toml = configuration(workload, '{ use = "model" }', 2, precision="fp64")
    assert (
        largest_difference(train_in_process(with_adamw(toml)), train_on_one_device_with_adamw(workload))
        <= TOLERANCES["fp64"]
    )


@pytest.mark.parametrize(
    ("ranks", "schedule"), alternate_rows(["1f1b", "1f1b-by-hand", "zbv"]), indirect=["ranks"]
)
def test_a_stage_without_its_gradients_differs(ranks: tuple[int, RankSet], schedule: str) -> None:
    assert difference_from_one_device(ranks, "gpt", schedule, without_sync=True) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "precision"),
    # A deep ResNet on tiny pictures blows rounding up a million times: only fp64 can tell.
    [("batch-norm", "fp32"), pytest.param("resnet", "fp64", marks=pytest.mark.slow)],
)
def test_batch_norms_match_one_device_with_equal_microbatches(
    ranks: tuple[int, RankSet], workload: str, precision: str
) -> None:
    toml = configuration(workload, pipeline("1f1b", 4), 2, precision=precision)
    weights = drop_running_stats(ranks[1].train(toml))
    in_turn, at_once = (
        drop_running_stats(single_device_weights(workload, precision, num_microbatches))
        for num_microbatches in (4, 1)
    )
    assert largest_difference(weights, in_turn) <= TOLERANCES[precision]
    assert largest_difference(weights, at_once) > MIN_DIFFERENCE


def drop_running_stats(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in weights.items()
        if "running" not in name and "num_batches" not in name
    }


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "schedule", "train"),
    [
        ("batch-norm", "1f1b", ""),
        ("skipping_norms", "1f1b-by-hand", ""),
        ("normed_row", "1f1b", ""),
        ("batch-norm", "gpipe", "activation_checkpointing = true"),
    ],
)
def test_running_stats_are_those_of_the_full_batch(
    ranks: tuple[int, RankSet], workload: str, schedule: str, train: str
) -> None:
    """Of each of two accumulated parts. Without a step the first norm sees what it sees on one device; later
    ones see what microbatches made of it."""
    settings: dict[str, Any] = {"precision": "fp64", "accumulate": 2, "lr": 1e-12, "train": train}
    actual = ranks[1].train(configuration(workload, pipeline(schedule, 4), 2, **settings))
    full_batch = single_device_weights(workload, **settings)
    in_turn = single_device_weights(workload, **{**settings, "accumulate": 8})
    first = [name for name in full_batch if name.startswith(FIRST_RUNNING_STATS)]
    for of, names in (("counts", [n for n in full_batch if "num_batches" in n]), ("first", first)):
        result, expected, other = (
            {n: weights[n] for n in names} for weights in (actual, full_batch, in_turn)
        )
        assert largest_difference(result, expected) <= (0.0 if of == "counts" else TOLERANCES["fp64"])
        assert largest_difference(result, other) > MIN_DIFFERENCE


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("balance", ["time", "activations"])
def test_another_balance_gives_the_same_weights(ranks: tuple[int, RankSet], balance: str) -> None:
    assert (
        difference_from_one_device(ranks, "gpt", "gpipe", more=f', balance = "{balance}"')
        <= TOLERANCES["fp32"]
    )


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_given_cuts_and_checkpointing_give_the_same_weights(ranks: tuple[int, RankSet]) -> None:
    far = difference_from_one_device(
        ranks,
        "gpt",
        "1f1b",
        more=', cuts = ["blocks.1"]',
        train="activation_checkpointing = true",
    )
    assert far <= TOLERANCES["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(("precision", "bar"), [("fp32", TOLERANCES["fp32"]), ("bf16", 1e-3)])
def test_a_model_without_units_is_cut_in_any_precision(
    ranks: tuple[int, RankSet], precision: str, bar: float
) -> None:
    assert difference_from_one_device(ranks, "row", "1f1b", precision=precision) <= bar


def last_evaluation(folder: Path) -> events.Evaluation:
    """What rank 0 told of the held-out samples last."""
    rank_events = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
    return [event for event in rank_events if isinstance(event, events.Evaluation)][-1]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("schedule", "workload"),
    [
        ("1f1b-by-hand", "mlp-deep"),
        ("looped-bfs", "mlp-deep"),
        ("gpipe", "padded"),
        ("zbv", "padded"),
        *(
            pytest.param(schedule, workload, marks=pytest.mark.slow)
            for schedule, workload in (
                ("gpipe", "mlp-deep"),
                ("zbv", "mlp-deep"),
                ("1f1b-by-hand", "padded"),
                ("interleaved-1f1b", "padded"),
            )
        ),
    ],
)
def test_heldout_samples_count_once_with_any_stages(
    ranks: tuple[int, RankSet], tmp_path: Path, schedule: str, workload: str
) -> None:
    """The last batch of the digits is not full; padded batches are of different lengths, in training too."""
    single, pipeline_out = tmp_path / "single", tmp_path / "own"
    single.mkdir()
    pipeline_out.mkdir()
    out = str(tmp_path / "weights.safetensors")
    train_once({"toml": configuration(workload), "out": out, "events": str(single)}, rank=0, world_size=1)
    weights = ranks[1].train(configuration(workload, pipeline(schedule, 4), 2), events=str(pipeline_out))
    assert largest_difference(weights, load_file(out)) <= TOLERANCES["fp32"]
    expected, actual = last_evaluation(single), last_evaluation(pipeline_out)
    assert actual.loss == pytest.approx(expected.loss, rel=1e-5)
    assert (actual.accuracy, actual.samples) == (pytest.approx(expected.accuracy), expected.samples)


@cache
def train_in_process(toml: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


@pytest.mark.parametrize(
    ("num_devices", "workload", "accumulate"),
    [
        *alternate_rows([("gpt", 2), ("mlp", 1), ("gpt-masked", 2), ("gpt-tied", 1), ("batch-norm", 2)]),
        *(pytest.param(num_devices, "resnet", 1, marks=pytest.mark.slow) for num_devices in (2, 4)),
    ],
)
def test_a_layer_split_equals_one_device_bitwise(num_devices: int, workload: str, accumulate: int) -> None:
    if workload == "mlp" and num_devices == 4:
        workload = "mlp-deep"
    toml = configuration(workload, '{ use = "model" }', num_devices, accumulate=accumulate)
    assert (
        largest_difference(train_in_process(toml), single_device_weights(workload, "fp32", accumulate)) == 0.0
    )


def test_a_layer_split_in_fp64_matches_one_device() -> None:
    toml = configuration("gpt-tied", '{ use = "model" }', 3, precision="fp64")
    assert largest_difference(train_in_process(toml), single_device_weights("gpt-tied", "fp64")) == 0.0


def test_a_layer_split_that_unties_a_weight_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rankdeck.strategies.model_parallel import ModelParallel

    transfer = ModelParallel._transfer
    monkeypatch.setattr(
        ModelParallel,
        "_transfer",
        lambda self, tensor, source, target, kind=None: transfer(
            self, tensor.detach() if kind == "parameters" else tensor, source, target, kind
        ),
    )
    toml = configuration("gpt-tied", '{ use = "model" }', 2)
    weights = train_in_process.__wrapped__(toml)
    assert largest_difference(weights, single_device_weights("gpt-tied")) > MIN_DIFFERENCE
