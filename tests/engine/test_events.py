"""Events become one line each and come back the same; readers skip what they do not know."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem

EXAMPLES: list[events.AnyEvent] = [
    events.RunStarted(
        run="r",
        attempt=0,
        strategy="dp",
        options={"parallel_loss": True},
        world_size=1,
        devices=[
            events.DeviceInfo(0, "CPU 0", "virtual"),
            events.DeviceInfo(1, "H100", "gpu", "GPU-1", 80, 2),
        ],
        steps=5,
        global_batch=8,
        started=1.5,
    ),
    events.RankStarted(rank=0, pid=7, devices=[0, 1], uuids=[None, "GPU-1"]),
    events.Phase(rank=0, phase="loading data"),
    events.Steps(rank=1, first=3, loss_sum=[1.0, None], count=[2.0, 2.0], samples=[4, 4], ended=[1.0, 2.0]),
    events.Memory(
        rank=0,
        step=3,
        source=events.MEASURED_IN_REHEARSAL,
        devices=[events.DeviceMemory(0, 1, 2, peak_by_kind={"parameters": 2})],
    ),
    events.Sample(devices=[events.DeviceSample(0, utilisation=0.5)], interval_s=0.25),
    events.DeviceNotice(code="xid", message="GPU 0: XID 79.", device=0, xid=79),
    events.Comm(rank=0, step=3, algorithm="ring", sent_bytes=9, by_peer={"1": 9}),
    events.Pipeline(rank=1, step=3, stages=[1, 5], microbatches=8, in_flight=6, theory_bubble=0.3),
    events.Spans(
        rank=0,
        step=4,
        began=12.5,
        seconds=0.1,
        names=["forward", "all-reduce"],
        name=[0, 1],
        device=[0, 0],
        start_us=[10, 40],
        duration_us=[30, 20],
        num_bytes=[None, 64],
    ),
    events.Drained(rank=0, microbatches=2, updates=5),
    events.CheckpointSaved(step=3, num_bytes=10, seconds=0.1, reason="schedule"),
    events.StoodStill(
        rank=1,
        pid=7,
        step=20,
        phase="step",
        silent_s=5.5,
        until_told_s=15.0,
        is_excused=True,
        is_close=True,
        suspended=True,
        cores=0.5,
        frames=[("/home/me/트레인.py", 3, "loss")],
        calls=[("0", 84, "all_reduce", "650 Float", False)],
        work=("forward", 3),
    ),
    events.Observed(rank=0, script="train.py", wrapper="DataParallel", skipped=1, parts={"loss": "off"}),
    events.Metrics(
        rank=0, through="wandb", steps=[3, None], times=[1.0, 2.0], after=[3, 4], values={"acc": [0.5, None]}
    ),
    events.Anomaly(
        rank=1, code="zeroed-before-step", step=3, line="/w/t.py:4", names=["a"], numbers={"names": 1.0}
    ),
    events.WeightDigests(
        rank=0, step=8, digests=[7, (1 << 53) - 1], training=1, names=["a", "b"], sizes=[4, 2], num_bytes=24
    ),
    events.Collectives(
        rank=0,
        step=4,
        calls={"broadcast": 2},
        num_bytes={"broadcast": 16},
        seconds={"broadcast": 0.1},
        counted_until=4,
        changed_steps=[1, 3],
        changed_calls=[{"broadcast /w/t.py:4": 1}, {}],
    ),
    events.Restored(rank=0, step=3),
    events.LossScale(rank=0, step=3, scale=65536.0),
    events.Evaluation(step=3, loss=0.5, samples=10, seconds=0.1, accuracy=0.9, final=True),
    events.ProblemRaised(problem=Problem("nan", "The loss is not a number.", rank=1)),
    events.RankFailed(rank=1, problem=Problem("oom", "No memory.", rank=1), is_communication=True),
    events.OutOfMemory(
        rank=1,
        step=3,
        allocation=Allocation(asked_bytes=8, device=0, free_bytes=4),
        device=1,
        module="blocks.0.mlp",
        devices=[events.DeviceMemory(1, 1, 2)],
        modules={"blocks.0": {"parameters": 2}},
    ),
    events.WeightsSaved(path="weights.safetensors", num_bytes=5),
    events.Verified(rank=0, outcome="noted", cause="batch-norm", names=["norm.weight"], largest=1e-3),
    events.Dropped(lines=3, reason="no space"),
    events.RankEnded(rank=0, reason="completed", step=5),
    events.Stopping(attempt=0),
    events.RunEnded(outcome="completed", exit_code=0, attempt=0),
]


EVENT_KINDS = [
    "run_started",
    "rank_started",
    "phase",
    "steps",
    "memory",
    "sample",
    "device_notice",
    "comm",
    "pipeline",
    "spans",
    "drained",
    "checkpoint",
    "stood_still",
    "observed",
    "metric",
    "anomaly",
    "weights",
    "collectives",
    "restored",
    "loss_scale",
    "evaluation",
    "problem",
    "rank_failed",
    "out_of_memory",
    "weights_saved",
    "verified",
    "dropped",
    "rank_ended",
    "stopping",
    "run_ended",
]


def test_every_event_kind_has_an_example_and_keeps_its_tag() -> None:
    assert {type(event) for event in EXAMPLES} == set(typing.get_args(events.AnyEvent))
    assert [json.loads(events.encode(event))["kind"] for event in EXAMPLES] == EVENT_KINDS


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_survives_encoding_as_one_line(event: events.AnyEvent) -> None:
    event.seq, event.t = 4, 12.5
    line = events.encode(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert events.decode(line) == event
    plain = json.loads(line)
    assert (plain["seq"], plain["t"]) == (4, 12.5) and plain["kind"].islower()


def test_a_negative_time_is_accepted() -> None:
    event = events.Phase(rank=0, phase="training")
    event.t = -86_400.0
    assert events.decode(events.encode(event)) == event


def test_a_non_finite_loss_becomes_null() -> None:
    line = events.encode(
        events.Steps(rank=0, first=1, loss_sum=[float("nan"), float("inf")], count=[1.0, 1.0])
    )
    assert json.loads(line)["loss_sum"] == [None, None]
    event = events.decode(
        events.encode(events.Evaluation(step=1, loss=float("nan"), samples=1, seconds=1.0)).rstrip()
    )
    assert isinstance(event, events.Evaluation) and event.loss is None


def test_an_unknown_kind_and_an_unknown_key_are_skipped() -> None:
    assert events.decode(b'{"kind":"weather","seq":3,"rain":true}') is None
    event = events.decode(b'{"kind":"phase","seq":3,"rank":0,"phase":"x","mood":"good"}')
    assert isinstance(event, events.Phase)


def test_an_event_of_a_newer_version_is_skipped() -> None:
    """What its fields mean then, nobody here knows."""
    line = b'{"kind":"phase","v":%d,"seq":3,"rank":0,"phase":"x"}'
    assert isinstance(events.decode(line % events.VERSION), events.Phase)
    assert events.decode(line % (events.VERSION + 1)) is None


@pytest.mark.parametrize("line", [b"{", b"5", b'{"seq":3}', b"\x00\x01"])
def test_decoding_an_invalid_event_raises(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        events.decode(line)


def test_an_unknown_kind_does_not_drop_the_other_lines_of_a_chunk() -> None:
    phase = events.encode(events.Phase(rank=0, phase="x"))
    chunk = phase + b'{"kind":"weather","seq":1}\n' + phase
    lines = events.decode_lines(chunk)
    assert [type(event).__name__ for event in lines] == ["Phase", "NoneType", "Phase"]
