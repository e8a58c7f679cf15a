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
from rankdeck.config.microbatches import stages_per_device
from tests.helpers.parity import BARS, MUST_DIFFER, configuration, of_one_device
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, by_turns, four_are_slow, in_turn, largest_difference

SCHEDULES = list(stages_per_device)
FIRST_NORMS = ("0.0.1.running", "first.running", "layers.0.1.running")
WORKLOADS = {"gpt-tied": 1, "gpt-masked": 2, "mlp-deep": 1}  # and the parts that are accumulated


def pipeline(schedule: str, microbatches: int, more: str = "") -> str:
    return f'{{ use = "pipeline", schedule = "{schedule}", microbatches = {microbatches}{more} }}'


def deep_enough(workload: str, schedule: str, num_ranks: int) -> str:
    """The workload, with units for so many stages."""
    is_shallow = workload.startswith("gpt") and num_ranks * stages_per_device[schedule] > 4
    return workload.replace("gpt", "gpt-deep") if is_shallow else workload


def distance(
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
    workload = deep_enough(workload, schedule, num_ranks)
    least = 2 * num_ranks if schedule == "dualpipev" else num_ranks
    strategy = pipeline(schedule, microbatches or least, more)
    toml = configuration(
        workload, strategy, num_ranks, precision=precision, accumulate=accumulate, train=train
    )
    weights = rank_set.train(toml, without_sync=without_sync)
    return largest_difference(weights, of_one_device(workload, precision, as_if or accumulate, train=train))


@pytest.mark.parametrize(
    ("ranks", "schedule", "workload"), in_turn(SCHEDULES, WORKLOADS, every=3), indirect=["ranks"]
)
def test_every_schedule_ends_where_one_device_does(
    ranks: tuple[int, RankSet], schedule: str, workload: str
) -> None:
    assert distance(ranks, workload, schedule, accumulate=WORKLOADS[workload]) <= BARS["fp32"]


@pytest.mark.parametrize(
    ("ranks", "schedule"), by_turns(["1f1b", "1f1b-by-hand", "interleaved-zero-bubble"]), indirect=["ranks"]
)
def test_fp64_leaves_no_doubt(ranks: tuple[int, RankSet], schedule: str) -> None:
    assert distance(ranks, "gpt-tied", schedule, precision="fp64") <= BARS["fp64"]


@pytest.mark.parametrize(
    ("ranks", "workload", "accumulate", "parts_per_rank"),
    by_turns([("gpt-tied", 1, 1), ("gpt-masked", 2, 1), ("gpt-tied", 1, 2)]),
    indirect=["ranks"],
)
def test_1f1b_by_hand_is_torchs_to_the_last_bit(
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
        reported[schedule] = [bits_of(folder, rank) for rank in range(num_ranks)]
    assert largest_difference(weights["1f1b"], weights["1f1b-by-hand"]) == 0.0
    assert reported["1f1b"] == reported["1f1b-by-hand"]


@four_are_slow
def test_other_microbatches_are_not_the_same_to_the_last_bit(ranks: tuple[int, RankSet]) -> None:
    num_ranks, rank_set = ranks
    one, other = (
        rank_set.train(configuration("gpt-tied", pipeline("1f1b-by-hand", microbatches), num_ranks))
        for microbatches in (num_ranks, 2 * num_ranks)
    )
    assert largest_difference(one, other) > 0.0


def bits_of(folder: Path, rank: int) -> dict[str, list[object]]:
    """What a rank reported of its steps, its evaluations, the bytes that it sent and how its pipeline ran."""
    found: dict[str, list[object]] = defaultdict(list)
    for event in events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes()):
        if isinstance(event, events.Steps):  # as many to an event as happened to be there when it was written
            found["losses"] += zip(event.loss_sum or [], event.count or [], strict=True)
            found["norms"] += event.grad_norm or []
        if isinstance(event, events.Evaluation):
            found["evaluations"].append((event.loss, event.accuracy))
        if isinstance(event, events.Comm):
            found["sent"].append((event.sent_bytes, event.measured))
        if isinstance(event, events.Pipeline):
            found["pipeline"].append((event.stages, event.in_flight, event.theory_bubble))
    assert len(found["norms"]) == 3
    return found


def test_what_goes_around_a_cut_takes_its_gradient_along() -> None:
    """Cut before the middle, its residual arrives there too; so does what flows back."""
    toml = configuration("residual_once", '{ use = "model", cuts = ["middle"] }', 2)
    assert largest_difference(in_this_process(toml), of_one_device("residual_once")) <= BARS["fp32"]


def with_adamw(toml: str) -> str:
    """AdamW shrinks every weight that has a gradient, if it is zero."""
    return toml.replace('{ use = "sgd", lr = 0.02 }', '{ use = "adamw", lr = 0.01, weight_decay = 0.1 }')


@cache
def of_one_device_with_adamw(workload: str) -> dict[str, Tensor]:
    return in_this_process(with_adamw(configuration(workload, precision="fp64")))


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
def test_what_is_used_past_a_cut_or_has_no_gradient_is_as_on_one_device(
    ranks: tuple[int, RankSet], workload: str, schedule: str
) -> None:
    toml = configuration(workload, pipeline(schedule, 2), 2, precision="fp64")
    weights = ranks[1].train(with_adamw(toml))
    assert largest_difference(weights, of_one_device_with_adamw(workload)) <= BARS["fp64"]


@pytest.mark.parametrize(
    "workload",
    ["tied_by_function", "late_temperature", "gated_skip", "counting", "old_spectral_norm", "frozen"],
)
def test_layers_on_several_devices_use_what_one_does(workload: str) -> None:
    toml = configuration(workload, '{ use = "model" }', 2, precision="fp64")
    assert (
        largest_difference(in_this_process(with_adamw(toml)), of_one_device_with_adamw(workload))
        <= BARS["fp64"]
    )


@pytest.mark.parametrize(("ranks", "schedule"), by_turns(["1f1b", "1f1b-by-hand", "zbv"]), indirect=["ranks"])
def test_a_stage_without_its_gradients_ends_far_off(ranks: tuple[int, RankSet], schedule: str) -> None:
    assert distance(ranks, "gpt", schedule, without_sync=True) > MUST_DIFFER


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "precision"),
    # A deep ResNet on tiny pictures blows rounding up a million times: only fp64 can tell.
    [("batch-norm", "fp32"), pytest.param("resnet", "fp64", marks=pytest.mark.slow)],
)
def test_batch_norms_divide_as_on_one_device_that_takes_the_same_microbatches(
    ranks: tuple[int, RankSet], workload: str, precision: str
) -> None:
    toml = configuration(workload, pipeline("1f1b", 4), 2, precision=precision)
    weights = without_running_figures(ranks[1].train(toml))
    in_turn, at_once = (
        without_running_figures(of_one_device(workload, precision, parts)) for parts in (4, 1)
    )
    assert largest_difference(weights, in_turn) <= BARS[precision]
    assert largest_difference(weights, at_once) > MUST_DIFFER


def without_running_figures(weights: dict[str, Tensor]) -> dict[str, Tensor]:
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
def test_running_figures_of_batch_norms_are_those_of_the_whole_batch(
    ranks: tuple[int, RankSet], workload: str, schedule: str, train: str
) -> None:
    """Of each of two accumulated parts. Without a step the first norm sees what it sees on one device; later
    ones see what microbatches made of it."""
    settings: dict[str, Any] = {"precision": "fp64", "accumulate": 2, "lr": 1e-12, "train": train}
    found = ranks[1].train(configuration(workload, pipeline(schedule, 4), 2, **settings))
    whole = of_one_device(workload, **settings)
    in_turn = of_one_device(workload, **{**settings, "accumulate": 8})
    first = [name for name in whole if name.startswith(FIRST_NORMS)]
    for of, names in (("counts", [n for n in whole if "num_batches" in n]), ("first", first)):
        own, wanted, other = ({n: weights[n] for n in names} for weights in (found, whole, in_turn))
        assert largest_difference(own, wanted) <= (0.0 if of == "counts" else BARS["fp64"])
        assert largest_difference(own, other) > MUST_DIFFER


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize("balance", ["time", "activations"])
def test_another_balance_ends_in_the_same_place(ranks: tuple[int, RankSet], balance: str) -> None:
    assert distance(ranks, "gpt", "gpipe", more=f', balance = "{balance}"') <= BARS["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_given_cuts_and_checkpointed_blocks_end_in_the_same_place(ranks: tuple[int, RankSet]) -> None:
    far = distance(
        ranks,
        "gpt",
        "1f1b",
        more=', cuts = ["blocks.1"]',
        train="activation_checkpointing = true",
    )
    assert far <= BARS["fp32"]


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(("precision", "bar"), [("fp32", BARS["fp32"]), ("bf16", 1e-3)])
def test_a_model_that_does_not_tell_its_units_is_cut_in_any_precision(
    ranks: tuple[int, RankSet], precision: str, bar: float
) -> None:
    assert distance(ranks, "row", "1f1b", precision=precision) <= bar


def evaluation(folder: Path) -> events.Evaluation:
    """What rank 0 told of the held-out samples last."""
    found = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
    return [event for event in found if isinstance(event, events.Evaluation)][-1]


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
def test_held_out_samples_count_once_whatever_the_stages(
    ranks: tuple[int, RankSet], tmp_path: Path, schedule: str, workload: str
) -> None:
    """The last batch of the digits is not full; padded batches are of different lengths, in training too."""
    single, own = tmp_path / "single", tmp_path / "own"
    single.mkdir()
    own.mkdir()
    out = str(tmp_path / "weights.safetensors")
    train_once({"toml": configuration(workload), "out": out, "events": str(single)}, rank=0, world_size=1)
    weights = ranks[1].train(configuration(workload, pipeline(schedule, 4), 2), events=str(own))
    assert largest_difference(weights, load_file(out)) <= BARS["fp32"]
    wanted, found = evaluation(single), evaluation(own)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert (found.accuracy, found.samples) == (pytest.approx(wanted.accuracy), wanted.samples)


@cache
def in_this_process(toml: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


@pytest.mark.parametrize(
    ("num_devices", "workload", "accumulate"),
    [
        *by_turns([("gpt", 2), ("mlp", 1), ("gpt-masked", 2), ("gpt-tied", 1), ("batch-norm", 2)]),
        *(pytest.param(num_devices, "resnet", 1, marks=pytest.mark.slow) for num_devices in (2, 4)),
    ],
)
def test_a_layer_split_is_one_device_to_the_last_bit(
    num_devices: int, workload: str, accumulate: int
) -> None:
    if workload == "mlp" and num_devices == 4:
        workload = "mlp-deep"
    toml = configuration(workload, '{ use = "model" }', num_devices, accumulate=accumulate)
    assert largest_difference(in_this_process(toml), of_one_device(workload, "fp32", accumulate)) == 0.0


def test_a_layer_split_in_fp64_is_one_device_too() -> None:
    toml = configuration("gpt-tied", '{ use = "model" }', 3, precision="fp64")
    assert largest_difference(in_this_process(toml), of_one_device("gpt-tied", "fp64")) == 0.0


def test_a_layer_split_whose_tied_weight_forgets_one_end_is_far_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rankdeck.strategies.model_parallel import ModelParallel

    whole = ModelParallel._transfer
    monkeypatch.setattr(
        ModelParallel,
        "_transfer",
        lambda self, tensor, source, target, kind=None: whole(
            self, tensor.detach() if kind == "parameters" else tensor, source, target, kind
        ),
    )
    toml = configuration("gpt-tied", '{ use = "model" }', 2)
    weights = in_this_process.__wrapped__(toml)
    assert largest_difference(weights, of_one_device("gpt-tied")) > MUST_DIFFER
