"""What stages hold, as the ledger sees it: 1f1b keeps fewer microbatches than gpipe, an asynchronous stage
several versions of its weights, a layer split each layer once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet

WIDE_GPT = """
model.use = "gpt"
model.args = {{ layers = 6, heads = 2, width = 64, context = 32, vocabulary = 128 }}
data = {{ use = "synthetic", args = {{ samples = 64 }} }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
train = {{ steps = {steps}, global_batch = 32, evaluate_every = 0 }}
"""
TRACKED_STEPS = [1, 2, 5]


def read_memory(folder: Path, rank: int) -> events.DeviceMemory:
    """The device of a rank in its last followed step."""
    rank_events = events.decode_lines((folder / f"rank-{rank}.0.jsonl").read_bytes())
    last = [event for event in rank_events if isinstance(event, events.Memory)][-1]
    return last.devices[0]


def train(ranks: tuple[int, RankSet], folder: Path, strategy: str, steps: int = 3, **request: object) -> None:
    folder.mkdir()
    toml = WIDE_GPT.format(strategy=strategy, num_devices=ranks[0], steps=steps)
    ranks[1].train(toml, events=str(folder), **request)


def peak_of_kind(memory: events.DeviceMemory, name: str) -> int:
    assert memory.peak_by_kind is not None
    assert sum(memory.peak_by_kind.values()) == memory.peak_bytes > 0
    return memory.peak_by_kind[name]


def live_of_kind(memory: events.DeviceMemory, name: str) -> int:
    assert memory.live_by_kind is not None
    return memory.live_by_kind[name]


@pytest.mark.parametrize(
    ("ranks", "in_turn"), [(2, "1f1b"), (4, "1f1b-by-hand")], indirect=["ranks"], ids=str
)
def test_1f1b_needs_less_than_gpipe_on_the_early_stages(
    ranks: tuple[int, RankSet], tmp_path: Path, in_turn: str
) -> None:
    for schedule in ("gpipe", in_turn):
        strategy = f'{{ use = "pipeline", schedule = "{schedule}", microbatches = 16 }}'
        train(ranks, tmp_path / schedule, strategy, steps=2, always=True)
    last = ranks[0] - 1
    for rank in range(last):
        gpipe, better = (read_memory(tmp_path / schedule, rank) for schedule in ("gpipe", in_turn))
        assert better.peak_bytes < 0.8 * gpipe.peak_bytes
        in_flight = (last - rank + 1) / 16
        assert peak_of_kind(better, "activations") == pytest.approx(
            in_flight * peak_of_kind(gpipe, "activations"), rel=0.3
        )


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param('{ use = "pipeline", schedule = "1f1b", microbatches = 4 }', marks=pytest.mark.slow),
        '{ use = "pipeline", schedule = "1f1b-by-hand", microbatches = 4 }',
        '{ use = "pipeline", schedule = "zbv", microbatches = 4 }',
        '{ use = "pipeline-async" }',
    ],
    ids=["1f1b", "1f1b-by-hand", "zbv", "async"],
)
def test_a_late_sample_equals_an_always_on_ledger(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str
) -> None:
    train(ranks, tmp_path / "always", strategy, steps=5, always=True)
    train(ranks, tmp_path / "late", strategy, steps=5, follow=TRACKED_STEPS)
    for rank in range(2):
        always, late = (read_memory(tmp_path / name, rank) for name in ("always", "late"))
        assert late.live_by_kind == always.live_by_kind
        assert late.peak_by_kind == always.peak_by_kind


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_an_async_stage_holds_its_weight_versions(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    train(ranks, tmp_path / "sync", '{ use = "pipeline", cuts = [2, 4, 6] }', steps=2, always=True)
    train(ranks, tmp_path / "async", '{ use = "pipeline-async", cuts = [2, 4, 6] }', steps=6, always=True)
    for rank in range(4):
        single, several = (
            live_of_kind(read_memory(tmp_path / name, rank), "parameters") for name in ("sync", "async")
        )
        assert several == (4 - rank) * single


def test_a_layer_split_holds_each_layer_on_one_device(tmp_path: Path) -> None:
    devices = {}
    for name, strategy, num_devices in (
        ("single", '{ use = "single" }', 1),
        ("model", '{ use = "model" }', 2),
    ):
        folder = tmp_path / name
        folder.mkdir()
        toml = WIDE_GPT.format(strategy=strategy, num_devices=num_devices, steps=3)
        train_once(
            {"toml": toml, "out": str(folder / "weights"), "events": str(folder), "always": True},
            rank=0,
            world_size=1,
        )
        rank_events = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
        devices[name] = [event for event in rank_events if isinstance(event, events.Memory)][-1].devices
    (single,) = devices["single"]
    for kind in ("parameters", "gradients", "optimizer"):
        assert sum(live_of_kind(device, kind) for device in devices["model"]) == live_of_kind(single, kind)
    assert max(device.peak_bytes for device in devices["model"]) < 0.7 * single.peak_bytes


def test_a_layer_split_reports_transfers_in_both_directions(tmp_path: Path) -> None:
    toml = WIDE_GPT.format(strategy='{ use = "model" }', num_devices=2, steps=3)
    train_once({"toml": toml, "out": str(tmp_path / "out"), "events": str(tmp_path)}, rank=0, world_size=1)
    rank_events = events.decode_lines((tmp_path / "rank-0.0.jsonl").read_bytes())
    sent = [event.sent_bytes for event in rank_events if isinstance(event, events.Comm)]
    activations_bytes = 32 * 32 * 64 * 4  # batch, context, width
    assert set(sent) == {2 * activations_bytes}
