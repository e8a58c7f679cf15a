"""What a plan says that moves in a step, beside formulas and schedules that know nothing of the planner."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import pytest

from rankdeck.run.movement import RECEIVE, SEND, Operation, Timeline, build_timeline
from tests.helpers.planning import MODELS, Case, Planner


@dataclass(frozen=True)
class StrategyCase(Case):
    """A strategy in TOML."""

    table: str = ""

    @property
    def toml(self) -> str:
        return Case(self.model, "single", self.num_devices).toml.replace('{ use = "single" }', self.table)


def plan_movement(
    planner: Planner, model: str, table: str, num_devices: int
) -> tuple[list[list[Operation]], Timeline]:
    line = planner.plan(StrategyCase(model, "asked", num_devices, table))
    assert line.movement is not None, line.reason
    devices = line.movement.by_device()
    laid_out = build_timeline(devices)
    assert laid_out is not None and laid_out.is_whole and len(devices) == num_devices
    return devices, laid_out


@functools.cache
def weights(planner: Planner, model: str) -> int:
    return planner.plan(Case(model, "single", 1)).devices[0].by_kind["parameters"]


def sent_by(operations: list[Operation]) -> int:
    """What a device sends, numbers of 8 bytes aside."""
    return sum(
        operation.num_bytes
        for operation in operations
        if operation.peers and operation.name != RECEIVE and operation.num_bytes > 64
    )


@pytest.mark.parametrize("num_devices", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("sync", ["native", "ring", "all-to-all", "reduce-broadcast"])
def test_ddp_sends_what_its_algorithm_defines(planner: Planner, sync: str, num_devices: int) -> None:
    devices, laid_out = plan_movement(planner, "mlp", f'{{ use = "ddp", sync = "{sync}" }}', num_devices)
    weight_bytes, n = weights(planner, "mlp"), num_devices
    each = {
        "native": [2 * (n - 1) / n * weight_bytes] * n,
        "ring": [2 * (n - 1) / n * weight_bytes] * n,
        "all-to-all": [(n - 1) * weight_bytes] * n,
        "reduce-broadcast": [(n - 1) * weight_bytes, *[weight_bytes] * (n - 1)],
    }[sync]
    assert [sent_by(operations) for operations in devices] == pytest.approx(each, rel=1e-3)
    peers = [
        {peer for operation in operations if operation.name == SEND for peer in operation.peers or ()}
        for operations in devices
    ]
    assert (
        peers
        == {
            "native": [set()] * n,
            "ring": [{(rank + 1) % n} for rank in range(n)],
            "all-to-all": [set(range(n)) - {rank} for rank in range(n)],
            "reduce-broadcast": [set(range(1, n)), *[{0}] * (n - 1)],
        }[sync]
    )
    backward = [interval for interval in laid_out.intervals[0] if interval.operation.name == "backward"]
    assert all(line.at >= backward[0].start for line in laid_out.lines)


def test_dp_sends_weights_out_and_gradients_back(planner: Planner) -> None:
    devices, laid_out = plan_movement(planner, "mlp", '{ use = "dp" }', 4)
    weight_bytes = weights(planner, "mlp")
    out = sum(line.num_bytes for line in laid_out.lines if line.source == 0)
    back = sum(line.num_bytes for line in laid_out.lines if line.target == 0)
    assert out == pytest.approx(3 * weight_bytes, rel=0.01) and back == pytest.approx(
        3 * weight_bytes, rel=0.01
    )
    assert {line.source for line in laid_out.lines} | {line.target for line in laid_out.lines} == {0, 1, 2, 3}
    assert all(
        {operation.name for operation in operations} >= {"forward", "backward"} for operations in devices
    )
    only_first = {operation.name for operation in devices[0]} - {operation.name for operation in devices[1]}
    assert {"replicate", "gather", "loss", "step"} <= only_first


@pytest.mark.parametrize("num_devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_fsdp_gathers_twice_and_scatters_once(planner: Planner, num_devices: int) -> None:
    _, laid_out = plan_movement(planner, "gpt", '{ use = "fsdp" }', num_devices)
    moves, weight_bytes = laid_out.traffic_by_operation(), weights(planner, "gpt")
    assert moves["reduce-scatter"].num_bytes == pytest.approx((num_devices - 1) * weight_bytes, rel=0.01)
    assert weight_bytes < moves["all-gather"].num_bytes / (num_devices - 1) < 2 * weight_bytes
    assert moves["all-gather"].count == 2 * moves["reduce-scatter"].count - 1, "the root is gathered once"


def one_forward_one_backward(rank: int, num_ranks: int, microbatches: int) -> list[tuple[str, int]]:
    """The order of work of a stage, from the paper."""
    num_warmup = min(microbatches, num_ranks - 1 - rank)
    order = [("forward", number) for number in range(num_warmup)]
    for number in range(microbatches):
        if num_warmup + number < microbatches:
            order.append(("forward", num_warmup + number))
        order.append(("backward", number))
    return order


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("gpipe", marks=pytest.mark.slow)])
def test_a_pipeline_runs_in_the_order_of_its_schedule(planner: Planner, schedule: str) -> None:
    table = f'{{ use = "pipeline", schedule = "{schedule}", microbatches = 4 }}'
    devices, laid_out = plan_movement(planner, "gpt", table, 4)
    for rank, row in enumerate(laid_out.intervals):
        order = [
            (item.operation.name, item.operation.microbatch)
            for item in row
            if item.operation.microbatch is not None
        ]
        expected = one_forward_one_backward(rank, 4 if schedule == "1f1b" else 5 + rank, 4)
        assert order == expected, rank
        assert all(before.end <= after.start + 1e-12 for before, after in itertools.pairwise(row))
    boundary = 16 * 32 * 64 * 4  # (B, T, C) in fp32
    between = {(item, item + 1) for item in range(3)} | {(item + 1, item) for item in range(3)}
    sends = [line for line in laid_out.lines if line.name == SEND]
    assert {(line.source, line.target) for line in sends} == between
    assert sum(line.num_bytes for line in sends) == 6 * boundary
    assert [sent_by(operations) for operations in devices] == [boundary, 2 * boundary, 2 * boundary, boundary]


def test_pipeline_replicas_reduce_within_their_stage(planner: Planner) -> None:
    devices, laid_out = plan_movement(
        planner, "gpt", '{ use = "hybrid", data = 2, stage = 2, microbatches = 4 }', 4
    )
    large = {line.group for line in laid_out.lines if line.group and line.num_bytes > 64}
    assert large == {(0, 2), (1, 3)}
    assert {(line.source, line.target) for line in laid_out.lines if line.name == SEND} == {
        (0, 1),
        (1, 0),
        (2, 3),
        (3, 2),
    }
    assert [operation.device for operations in devices for operation in operations[:1]] == [0, 1, 2, 3]


def test_a_single_device_sends_nothing(planner: Planner) -> None:
    devices, laid_out = plan_movement(planner, "gpt", '{ use = "single" }', 1)
    assert not laid_out.lines
    flops = {
        name: sum(operation.flops for operation in devices[0] if operation.name == name)
        for name in ("forward", "backward")
    }
    assert flops["backward"] == pytest.approx(2 * flops["forward"], rel=0.1)


@pytest.mark.parametrize("model", ["resnet", pytest.param("unet", marks=pytest.mark.slow)])
def test_other_models_have_a_timeline(planner: Planner, model: str) -> None:
    assert model in MODELS
    _, laid_out = plan_movement(planner, model, '{ use = "ddp" }', 2)
    assert laid_out.traffic_by_operation()["all-reduce"].num_bytes == pytest.approx(
        2 * weights(planner, model), rel=0.01
    )
