"""Whatever a driver answers for some GPUs, the sampler goes on and tells the truth of the others.

A simulated NVML answers anything at any time: every code, odd counts, bytes that are no text. What an example
has found once stays below as an example.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankdeck.telemetry.readings import (
    METRICS,
    AnySamplerLine,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    SampleLine,
)
from tests.engine.telemetry.conftest import MakeGpus
from tests.helpers.fuzzed_nvml import FuzzedSampler
from tests.helpers.nvmlsim import GIB, KINDS, MIB, NOT_SUPPORTED, SimulatedGpus

NUM_GPUS, TICKS, MAX_BYTES = 4, 12, 1 << 20
HEALTHY = (0, 3)
SEEDS = st.integers(0, 2**64 - 1)
CODES = st.one_of(st.integers(1, 30), st.just(999), st.integers(-(2**31), 2**31 - 1).filter(lambda n: n > 0))
BOUNDED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Faults:
    """Of the second and the third GPU, and of the library where it is asked of no GPU."""

    seeds: tuple[int, int] = (0, 0)
    library: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    name: bytes = b"H100"
    uuid: bytes = b"GPU-1"
    mig: bool = False


FAULTS = st.builds(
    Faults,
    seeds=st.tuples(SEEDS, SEEDS),
    library=SEEDS,
    codes=st.dictionaries(st.sampled_from(KINDS), CODES, max_size=4),
    name=st.binary(max_size=95).filter(lambda text: b"\0" not in text),
    uuid=st.binary(max_size=40).filter(lambda text: b"\0" not in text),
    mig=st.booleans(),
)


@pytest.fixture
def gpus(make_gpus: MakeGpus) -> SimulatedGpus:
    return make_gpus(NUM_GPUS)


@pytest.fixture
def fuzzed(gpus: SimulatedGpus) -> Iterator[FuzzedSampler]:
    with FuzzedSampler(gpus) as sampler:
        yield sampler


def apply_faults(gpus: SimulatedGpus, faults: Faults) -> None:
    state = gpus.state
    state.fuzz = faults.library
    for index, seed in enumerate(faults.seeds, 1):
        gpus.device(index).fuzz = seed
    second = gpus.device(1)
    second.name, second.uuid, second.mig = faults.name, faults.uuid, int(faults.mig)
    for position, kind in enumerate(KINDS):
        second.error[position] = faults.codes.get(kind, NOT_SUPPORTED if kind == "FAN" else 0)
    for index in HEALTHY:
        gpus.device(index).used = (3 + index) * GIB
        gpus.put_processes(index, (os.getpid(), GIB))


def check_lines(gpus: SimulatedGpus, lines: list[AnySamplerLine]) -> None:
    (listed,) = (line for line in lines if isinstance(line, DevicesLine))
    assert sorted({device.index for device in listed.devices}) == list(range(NUM_GPUS))
    uuids = [device.uuid for device in listed.devices]
    assert len(set(uuids)) == len(uuids)
    samples = [entry for line in lines if isinstance(line, SampleLine) for entry in line.devices]
    processes = [entry for line in lines if isinstance(line, ProcessesLine) for entry in line.devices]
    totals = {device.uuid: device.total_bytes or 2**50 for device in listed.devices}
    for entry in samples:
        for name, reading in entry.readings.items():
            if reading.state == "value":
                limit = totals[entry.uuid] if name == "used_bytes" else METRICS[name].maximum
                assert reading.value is not None and 0 <= reading.value <= limit, (name, reading)
    for index in HEALTHY:
        (device,) = (device for device in listed.devices if device.uuid == gpus.uuid(index))
        assert device.lost_at is None and device.total_bytes == 81559 * MIB
        values = [entry.readings["used_bytes"].value for entry in samples if entry.uuid == device.uuid]
        assert values == [(3 + index) * GIB] * TICKS
        on_it = [entry.processes for entry in processes if entry.uuid == device.uuid]
        assert on_it and all(matches and matches[0].used_bytes == GIB for matches in on_it)
        assert not [line for line in lines if isinstance(line, NoticeLine) and line.uuid == device.uuid]


def run_example(gpus: SimulatedGpus, sampler: FuzzedSampler, faults: Faults) -> None:
    apply_faults(gpus, faults)
    check_lines(gpus, sampler.run(TICKS))


@settings(BOUNDED, max_examples=150)
@example(Faults(seeds=(11, 0)))  # processes without end
@example(Faults(seeds=(263, 0), mig=True))  # MIG instances without end
@example(Faults(library=1, codes={"STATIC": 4711}))  # an error whose name is no text
@example(Faults(name=b"\xd0\xa0\xd0"))
@example(Faults(codes={"STATIC": 999}))
@example(Faults(codes={"STATIC": 4}))
@example(Faults(codes={"COMPUTE": 7, "GRAPHICS": 7}))
@example(Faults(uuid=b""))
@example(Faults(uuid=b"GPU-51000000-0000-4000-8000-000000000000"))
@given(FAULTS)
def test_faulty_gpus_do_not_affect_the_others(
    gpus: SimulatedGpus, fuzzed: FuzzedSampler, faults: Faults
) -> None:
    run_example(gpus, fuzzed, faults)


@pytest.mark.slow
@settings(BOUNDED, max_examples=3_000, derandomize=False, print_blob=True)
@given(FAULTS)
def test_faulty_gpus_do_not_affect_the_others_in_thousands_of_cases(
    gpus: SimulatedGpus, fuzzed: FuzzedSampler, faults: Faults
) -> None:
    run_example(gpus, fuzzed, faults)
