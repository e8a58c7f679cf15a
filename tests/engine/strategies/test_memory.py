"""What the ledger says of whole training steps, against torch's allocator, and dp's imbalance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankdeck import events
from rankdeck.config import from_text
from rankdeck.run_dir import EventWriter
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from rankdeck.training.sampling_budget import SamplingBudget
from tests.helpers.tiny_training import allocator_rise_bytes

WIDE_GPT = """
model.use = "gpt"
model.args = {{ layers = 2, heads = 2, width = 64, context = 32, vocabulary = {vocabulary} }}
data = {{ use = "synthetic", args = {{ samples = 256 }} }}
strategy = {strategy}
devices = {{ use = "cpu:4" }}
train = {{ steps = {steps}, global_batch = 16, evaluate_every = 0 }}
"""
DP = '{ use = "dp" }'
PARALLEL_LOSS = '{ use = "dp", parallel_loss = true }'
MODEL = '{ use = "model" }'
SINGLE = '{ use = "single" }'


def make_trainer(
    strategy: str,
    folder: Path,
    *,
    vocabulary: int = 4096,
    steps: int = 4,
    sampling: SamplingBudget | None = None,
) -> Trainer:
    """A trainer in this process, whose events go to rank-0.0.jsonl in `folder`."""
    toml = WIDE_GPT.format(strategy=strategy, vocabulary=vocabulary, steps=steps)
    config = from_text(toml, folder=folder)
    device_indices = [0] if config.strategy_spec.one_device else list(range(4))
    return assemble(
        workloads.load(config),
        rank=0,
        world_size=1,
        devices=[torch.device("cpu")] * len(device_indices),
        device_indices=device_indices,
        writer=EventWriter(folder / "rank-0.0.jsonl"),
        sampling=sampling or SamplingBudget(always=True),
    )


def read_memory(folder: Path) -> list[events.Memory]:
    rank_events = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
    return [event for event in rank_events if isinstance(event, events.Memory)]


def run_and_close(trainer: Trainer) -> None:
    try:
        trainer.run()
    finally:
        trainer.strategy.close()


def device_0_ratio(memory: events.Memory) -> float:
    """Device 0's peak over the median of the others."""
    lead, *others = [device.peak_bytes for device in memory.devices]
    return lead / sorted(others)[len(others) // 2]


@pytest.fixture(scope="module")
def last_dp_memory(tmp_path_factory: pytest.TempPathFactory) -> events.Memory:
    folder = tmp_path_factory.mktemp("dp")
    run_and_close(make_trainer(DP, folder))
    return read_memory(folder)[-1]


def test_dp_needs_most_on_device_0_for_gathered_outputs(last_dp_memory: events.Memory) -> None:
    last = last_dp_memory
    assert device_0_ratio(last) > 1.8
    lead, other = last.devices[0].peak_by_kind, last.devices[1].peak_by_kind
    assert lead is not None and other is not None
    excess = {kind: lead[kind] - other[kind] for kind in lead}
    assert max(excess, key=lambda kind: excess[kind]) == "gathered"


def test_parallel_loss_removes_the_excess(last_dp_memory: events.Memory, tmp_path: Path) -> None:
    run_and_close(make_trainer(PARALLEL_LOSS, tmp_path))
    assert device_0_ratio(read_memory(tmp_path)[-1]) < 0.6 * device_0_ratio(last_dp_memory)


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_kinds_add_up_to_the_peak(tmp_path: Path, strategy: str) -> None:
    run_and_close(make_trainer(strategy, tmp_path, vocabulary=256))
    for memory in read_memory(tmp_path):
        for device in memory.devices:
            assert device.peak_by_kind is not None
            assert sum(device.peak_by_kind.values()) == device.peak_bytes > 0


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("strategy", [PARALLEL_LOSS, MODEL])
def test_bytes_of_an_evaluation_are_not_counted_in_a_step(tmp_path: Path, strategy: str, steps: int) -> None:
    """Three of four devices get all weights and give all gradients and a loss; or three cuts let activations
    through and their gradients back. Batches come from the host."""
    trainer = make_trainer(strategy, tmp_path, steps=steps, vocabulary=256)
    run_and_close(trainer)
    weights_bytes = sum(weight.numel() * 4 for weight in trainer.strategy.module.parameters())
    crossing_bytes = {PARALLEL_LOSS: 2 * weights_bytes, MODEL: 2 * 16 * 32 * 64 * 4}
    sent = trainer.strategy.facts.sent_bytes()
    assert sent is not None and sent.is_measured
    assert 0 <= sent.num_bytes / 3 - crossing_bytes[strategy] < 64


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_the_sum_over_devices_matches_the_allocator(tmp_path: Path, strategy: str) -> None:
    trainer = make_trainer(strategy, tmp_path, vocabulary=1024)
    ledger, loader = trainer.ledger, trainer.loader()
    assert ledger is not None
    batches = iter(loader)
    for step in (1, 2, 3):
        trainer.step(step, batches, is_tracked=True)
    # The profiler does not know what it has not seen begin, so the old gradients must go before it looks.
    trainer.strategy.module.zero_grad(set_to_none=True)
    before_bytes = ledger.live_bytes
    threads = getattr(trainer.strategy, "_threads", None)
    rise_bytes = allocator_rise_bytes(lambda: trainer.step(4, batches, is_tracked=True), tmp_path, threads)
    assert ledger.peak_bytes - before_bytes == pytest.approx(rise_bytes, rel=0.01)
    loader.close()
    trainer.strategy.close()


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_a_late_sample_equals_an_always_on_ledger(tmp_path: Path, strategy: str) -> None:
    always, late = tmp_path / "always", tmp_path / "late"
    run_and_close(make_trainer(strategy, always, steps=6, vocabulary=512))
    run_and_close(make_trainer(strategy, late, steps=6, vocabulary=512, sampling=_LateSamplingBudget()))
    last = read_memory(late)[-1]
    assert last.step == 6
    same = next(memory for memory in read_memory(always) if memory.step == 6)
    assert last.devices == same.devices


PADDED = """
import torch

class Padded:
    \"\"\"48 samples; the second part of step 6 is longer than all others, the first of step 9 shorter.\"\"\"
    def __len__(self): return 48
    def read_batch(self, indices):
        length = 256 if 7 in indices else 6 if 14 in indices else 8
        tokens = torch.ones(len(indices), length, dtype=torch.long)
        return tokens, tokens
    def __getitem__(self, index): return tuple(part[0] for part in self.read_batch([index]))

def data(): return Padded(), None
"""


def test_a_batch_longer_than_all_tracked_ones_is_tracked(tmp_path: Path) -> None:
    (tmp_path / "padded.py").write_text(PADDED)
    peaks = {}
    poor, rich = _FakeSamplingBudget(can_afford=False), _FakeSamplingBudget(can_afford=True)
    samplings = {"poor": poor, "rich": rich, "always": SamplingBudget(always=True)}
    for name, sampling in samplings.items():
        folder = tmp_path / name
        config = from_text(
            """
            model.use = "gpt"
            model.args = { layers = 1, heads = 2, width = 32, context = 256, vocabulary = 64 }
            data.use = "padded.py:data"
            devices.use = "cpu:1"
            rehearsal.capacity = "1MiB"
            train = { steps = 12, global_batch = 4, accumulate = 2, evaluate_every = 0 }
            """,
            folder=tmp_path,
        )
        run_and_close(
            assemble(
                workloads.load(config),
                rank=0,
                world_size=1,
                devices=[torch.device("cpu")],
                device_indices=[0],
                writer=EventWriter(folder / "rank-0.0.jsonl"),
                sampling=sampling,
            )
        )
        peaks[name] = {event.step: event.devices[0].peak_bytes for event in read_memory(folder)}
        (raised,) = (
            event.problem
            for event in events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
            if isinstance(event, events.ProblemRaised)
        )
        assert raised.code == "over-capacity" and "step 6" in raised.message
    assert list(peaks["poor"]) == [1, 2, 3, 6] and list(peaks["rich"]) == [1, 2, 3, 6, 9]
    assert poor.untypical_steps == rich.untypical_steps == [6], "what following costs is not seen from it"
    # The sums of the part before are three numbers that nobody followed.
    assert peaks["poor"][6] == pytest.approx(peaks["always"][6], abs=24)
    assert peaks["always"][6] > 3 * peaks["always"][5]


class _FakeSamplingBudget(SamplingBudget):
    """Nothing by the clock after step 3; `pays` for what is new, or does not."""

    def __init__(self, *, can_afford: bool) -> None:
        super().__init__(budget=0.0)
        self._can_afford = can_afford
        self.untypical_steps: list[int] = []

    def record(
        self,
        step: int,
        step_s: float,
        *,
        is_tracked: bool,
        is_typical: bool = True,
        cpu_s: float | None = None,
    ) -> None:
        if not is_typical:
            self.untypical_steps.append(step)
        super().record(step, step_s, is_tracked=is_tracked, is_typical=is_typical, cpu_s=cpu_s)

    def should_track(self, step: int) -> bool:
        return step <= 3

    def can_afford(self) -> bool:
        return self._can_afford


class _LateSamplingBudget(SamplingBudget):
    """Steps 1 to 3, then only step 6."""

    def should_track(self, step: int) -> bool:
        return step <= 3 or step == 6
