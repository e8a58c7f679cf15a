"""What the ledger says of whole training steps, against torch's allocator, and dp's imbalance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankdeck import events
from rankdeck.config import from_text
from rankdeck.rundir import EventWriter
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from rankdeck.training.sampling import SamplingBudget
from tests.helpers.tiny_training import allocator_rise_bytes

WIDE = """
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


def trainer_of(
    strategy: str,
    folder: Path,
    *,
    vocabulary: int = 4096,
    steps: int = 4,
    sampling: SamplingBudget | None = None,
) -> Trainer:
    """A trainer in this process, whose events go to rank-0.0.jsonl in `folder`."""
    toml = WIDE.format(strategy=strategy, vocabulary=vocabulary, steps=steps)
    config = from_text(toml, folder=folder)
    places = [0] if config.strategy_card.one_device else list(range(4))
    return assemble(
        workloads.load(config),
        rank=0,
        world_size=1,
        devices=[torch.device("cpu")] * len(places),
        places=places,
        writer=EventWriter(folder / "rank-0.0.jsonl"),
        sampling=sampling or SamplingBudget(always=True),
    )


def memory_of(folder: Path) -> list[events.Memory]:
    found = events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
    return [event for event in found if isinstance(event, events.Memory)]


def run(trainer: Trainer) -> None:
    try:
        trainer.run()
    finally:
        trainer.strategy.close()


def lead_ratio(memory: events.Memory) -> float:
    """Device 0's peak over the median of the others."""
    lead, *others = [device.peak_bytes for device in memory.devices]
    return lead / sorted(others)[len(others) // 2]


@pytest.fixture(scope="module")
def last_of_dp(tmp_path_factory: pytest.TempPathFactory) -> events.Memory:
    folder = tmp_path_factory.mktemp("dp")
    run(trainer_of(DP, folder))
    return memory_of(folder)[-1]


def test_dp_leads_because_of_gathered_outputs(last_of_dp: events.Memory) -> None:
    last = last_of_dp
    assert lead_ratio(last) > 1.8
    lead, other = last.devices[0].peak_by_kind, last.devices[1].peak_by_kind
    assert lead is not None and other is not None
    excess = {kind: lead[kind] - other[kind] for kind in lead}
    assert max(excess, key=lambda kind: excess[kind]) == "gathered"


def test_parallel_loss_takes_the_excess_away(last_of_dp: events.Memory, tmp_path: Path) -> None:
    run(trainer_of(PARALLEL_LOSS, tmp_path))
    assert lead_ratio(memory_of(tmp_path)[-1]) < 0.6 * lead_ratio(last_of_dp)


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_kinds_add_up_to_the_peak(tmp_path: Path, strategy: str) -> None:
    run(trainer_of(strategy, tmp_path, vocabulary=256))
    for memory in memory_of(tmp_path):
        for device in memory.devices:
            assert device.peak_by_kind is not None
            assert sum(device.peak_by_kind.values()) == device.peak_bytes > 0


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("strategy", [PARALLEL_LOSS, MODEL])
def test_what_a_step_moves_is_no_evaluations(tmp_path: Path, strategy: str, steps: int) -> None:
    """Three of four devices get all weights and give all gradients and a loss; or three cuts let activations
    through and their gradients back. Batches come from the host."""
    trainer = trainer_of(strategy, tmp_path, steps=steps, vocabulary=256)
    run(trainer)
    weights_bytes = sum(weight.numel() * 4 for weight in trainer.strategy.module.parameters())
    crossing_bytes = {PARALLEL_LOSS: 2 * weights_bytes, MODEL: 2 * 16 * 32 * 64 * 4}
    sent = trainer.strategy.facts.sent()
    assert sent is not None and sent.is_measured
    assert 0 <= sent.num_bytes / 3 - crossing_bytes[strategy] < 64


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_the_sum_over_devices_is_what_the_allocator_gave(tmp_path: Path, strategy: str) -> None:
    trainer = trainer_of(strategy, tmp_path, vocabulary=1024)
    ledger, loader = trainer.ledger, trainer.loader()
    assert ledger is not None
    batches = iter(loader)
    for step in (1, 2, 3):
        trainer.step(step, batches, followed=True)
    # The profiler does not know what it has not seen begin, so the old gradients must go before it looks.
    trainer.strategy.module.zero_grad(set_to_none=True)
    before_bytes = ledger.live_bytes
    threads = getattr(trainer.strategy, "_threads", None)
    rise_bytes = allocator_rise_bytes(lambda: trainer.step(4, batches, followed=True), tmp_path, threads)
    assert ledger.peak_bytes - before_bytes == pytest.approx(rise_bytes, rel=0.01)
    loader.close()
    trainer.strategy.close()


@pytest.mark.parametrize("strategy", [SINGLE, DP, PARALLEL_LOSS])
def test_a_late_sample_equals_an_always_on_ledger(tmp_path: Path, strategy: str) -> None:
    always, late = tmp_path / "always", tmp_path / "late"
    run(trainer_of(strategy, always, steps=6, vocabulary=512))
    run(trainer_of(strategy, late, steps=6, vocabulary=512, sampling=_OnlyLate()))
    last = memory_of(late)[-1]
    assert last.step == 6
    same = next(memory for memory in memory_of(always) if memory.step == 6)
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


def test_a_longer_batch_than_all_that_were_followed_is_followed(tmp_path: Path) -> None:
    (tmp_path / "padded.py").write_text(PADDED)
    told = {}
    poor, rich = _Sampling(pays=False), _Sampling(pays=True)
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
        run(
            assemble(
                workloads.load(config),
                rank=0,
                world_size=1,
                devices=[torch.device("cpu")],
                places=[0],
                writer=EventWriter(folder / "rank-0.0.jsonl"),
                sampling=sampling,
            )
        )
        told[name] = {event.step: event.devices[0].peak_bytes for event in memory_of(folder)}
        (raised,) = (
            event.problem
            for event in events.decode_lines((folder / "rank-0.0.jsonl").read_bytes())
            if isinstance(event, events.ProblemRaised)
        )
        assert raised.code == "over-capacity" and "step 6" in raised.message
    assert list(told["poor"]) == [1, 2, 3, 6] and list(told["rich"]) == [1, 2, 3, 6, 9]
    assert poor.unusual == rich.unusual == [6], "what following costs is not seen from it"
    # The sums of the part before are three numbers that nobody followed.
    assert told["poor"][6] == pytest.approx(told["always"][6], abs=24)
    assert told["always"][6] > 3 * told["always"][5]


class _Sampling(SamplingBudget):
    """Nothing by the clock after step 3; `pays` for what is new, or does not."""

    def __init__(self, *, pays: bool) -> None:
        super().__init__(budget=0.0)
        self._pays = pays
        self.unusual: list[int] = []

    def record(
        self, step: int, step_s: float, *, followed: bool, usual: bool = True, cpu_s: float | None = None
    ) -> None:
        if not usual:
            self.unusual.append(step)
        super().record(step, step_s, followed=followed, usual=usual, cpu_s=cpu_s)

    def should_follow(self, step: int) -> bool:
        return step <= 3

    def can_pay(self) -> bool:
        return self._pays


class _OnlyLate(SamplingBudget):
    """Steps 1 to 3, then only step 6."""

    def should_follow(self, step: int) -> bool:
        return step <= 3 or step == 6
