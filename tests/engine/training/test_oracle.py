"""Runs end where a plain loop of torch ends that knows nothing of the engine (tests/helpers/oracle.py).

Weights, and what a run tells of itself: rates, losses, counts, norms and evaluations, step by step. Mistakes
that strategies share with `single` are seen here, and only here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import SGD, AdamW

from rankdeck import events
from rankdeck.data.base import TensorSamples
from rankdeck.data.digits import Digits
from tests.helpers import oracle, oracle_parts
from tests.helpers.own_models import tiny_conv
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

TOLERANCE = 1e-10
PARTS = "tests.helpers.oracle_parts"
STEPS = 10


@dataclasses.dataclass
class RunOutput:
    """What a run left: its weights, and the events of its ranks."""

    weights: dict[str, Tensor]
    steps: list[list[events.Steps]]
    evaluations: list[events.Evaluation]

    @classmethod
    def read(cls, folder: Path, weights: dict[str, Tensor]) -> RunOutput:
        by_rank = [events.decode_lines(file.read_bytes()) for file in sorted(folder.glob("rank-*.jsonl"))]
        steps = [
            [event for event in rank_events if isinstance(event, events.Steps)] for rank_events in by_rank
        ]
        evaluations = [event for event in by_rank[0] if isinstance(event, events.Evaluation)]
        return cls(weights, steps, evaluations)

    def values_of(self, name: str) -> list[float]:
        """The sum over the ranks that report, step by step; rates and norms are those of the first one."""
        reporting = [rank_steps for rank_steps in self.steps if rank_steps[0].loss_sum is not None]
        columns = [
            list(itertools.chain(*(getattr(lines, name) for lines in rank_steps))) for rank_steps in reporting
        ]
        return (
            columns[0]
            if name in ("lr", "grad_norm")
            else [sum(values) for values in zip(*columns, strict=True)]
        )


def configuration(model: str, data: str, train: str, strategy: str = "single", num_devices: int = 1) -> str:
    return f"""
model = {{ use = "{model}" }}
data = {{ {data} }}
strategy = {{ use = "{strategy}" }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
precision = "fp64"
{train}
"""


def run_in_process(toml: str, folder: Path) -> RunOutput:
    oracle_parts.READ.clear()
    train_once({"toml": toml, "out": str(folder / "weights"), "events": str(folder)}, rank=0, world_size=1)
    return RunOutput.read(folder, load_file(folder / "weights"))


def assert_matches_oracle(output: RunOutput, expected: oracle.TrainingResult) -> None:
    assert output.values_of("lr") == pytest.approx(expected.rates, rel=1e-12)
    assert output.values_of("count") == expected.counts
    assert output.values_of("samples") == [len(batch) for batch in expected.batches]
    assert output.values_of("loss_sum") == pytest.approx(expected.losses, rel=TOLERANCE)
    if expected.norms:
        assert output.values_of("grad_norm") == pytest.approx(expected.norms, rel=TOLERANCE)
    assert largest_difference(output.weights, expected.weights) <= TOLERANCE
    assert [item.step for item in output.evaluations] == [step for step, _, _ in expected.evaluations]
    for evaluation, (_, loss, accuracy) in zip(output.evaluations, expected.evaluations, strict=True):
        assert evaluation.loss == pytest.approx(loss, rel=TOLERANCE)
        assert evaluation.accuracy == pytest.approx(accuracy, rel=TOLERANCE)


def test_two_epochs_of_digits_match_the_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum, a cosine with warm-up, a bounded norm, batch norm, evaluations in between."""
    train, heldout = Digits().load()
    read: list[int] = []
    read_batch = TensorSamples.read_batch

    def noted(self: TensorSamples, indices: Any) -> Any:
        if len(self) == len(train):
            read.extend(int(index) for index in indices)
        return read_batch(self, indices)

    monkeypatch.setattr(TensorSamples, "read_batch", noted)
    train_lines = """
epochs = 2
global_batch = 160
accumulate = 2
evaluate_every = 5
clip_norm = 0.8
optimizer = { use = "sgd", lr = 0.2, momentum = 0.9, weight_decay = 0.01 }
schedule = { use = "cosine", warmup = 4, final = 0.1 }
"""
    output = run_in_process(
        configuration("tests.helpers.own_models:tiny_conv", 'use = "digits"', train_lines), tmp_path
    )
    batches = oracle.split_into_batches(read, len(train), 160, "drop")
    assert len(batches) == 18
    expected = oracle.train(
        tiny_conv,
        lambda weights: SGD(weights, lr=0.2, momentum=0.9, weight_decay=0.01),
        (train.inputs, train.targets),
        (heldout.inputs, heldout.targets),
        batches=batches,
        factors=oracle.factors("cosine", 18, warmup=4, final=0.1),
        accumulate=2,
        clip_norm=0.8,
        evaluate_every=5,
    )
    assert_matches_oracle(output, expected)


CLIP_NORMS = {"plain": 0.4, "with_norm": 1.1}
OPTIMIZERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "two-rates": (
        f'optimizer = {{ use = "{PARTS}:TwoRates", lr = 0.3, momentum = 0.5 }}\n'
        'schedule = { use = "linear", warmup = 3, final = 0.2 }',
        "linear",
        lambda weights: oracle_parts.TwoRates(weights, lr=0.3, momentum=0.5),
    ),
    "adamw": (
        'optimizer = { use = "adamw", lr = 0.05, weight_decay = 0.1, betas = [0.8, 0.9] }\n'
        'schedule = { use = "cosine", warmup = 3, final = 0.2 }',
        "cosine",
        lambda weights: AdamW(weights, lr=0.05, weight_decay=0.1, betas=(0.8, 0.9)),
    ),
}


def masked_config(
    model: str,
    optimizer: str,
    accumulate: int,
    strategy: str = "single",
    num_devices: int = 1,
    last: str = "drop",
    bounded: bool = True,
) -> str:
    train = f"""
steps = {STEPS}
global_batch = 12
accumulate = {accumulate}
evaluate_every = 4
{f"clip_norm = {CLIP_NORMS[model]}" if bounded else ""}
{OPTIMIZERS[optimizer][0]}
"""
    data = f'use = "{PARTS}:rows", args = {{ masked = 0.3 }}, last = "{last}"'
    return configuration(f"{PARTS}:{model}", data, train, strategy, num_devices)


def read_batches(last: str) -> list[list[int]]:
    return oracle.split_into_batches(oracle_parts.READ, oracle_parts.NUM_TRAIN, 12, last)


def train_oracle(
    model: str,
    optimizer: str,
    accumulate: int,
    batches: Sequence[Sequence[int]],
    *,
    bounded: bool = True,
    late: bool = False,
) -> oracle.TrainingResult:
    expected = oracle.train(
        getattr(oracle_parts, model),
        OPTIMIZERS[optimizer][2],
        oracle_parts.tensors(0.3, oracle_parts.NUM_TRAIN, seed=1),
        oracle_parts.tensors(0.3, oracle_parts.NUM_HELDOUT, seed=2),
        batches=batches,
        factors=oracle.factors(OPTIMIZERS[optimizer][1], STEPS, warmup=3, final=0.2),
        accumulate=accumulate,
        clip_norm=CLIP_NORMS[model] if bounded else None,
        evaluate_every=4,
        late=late,
    )
    if bounded:
        assert min(expected.norms) < CLIP_NORMS[model] < max(expected.norms), (
            "some steps are clipped, not all"
        )
    return expected


@pytest.mark.parametrize(("optimizer", "accumulate"), [("two-rates", 3), ("adamw", 1)])
def test_masked_targets_with_accumulation_match_the_oracle(
    tmp_path: Path, optimizer: str, accumulate: int
) -> None:
    """Clipping is of the mean over targets, an optimizer's groups keep their rates, batch norm sees parts."""
    # Adam makes steps of the noise that is the gradient of a bias before a batch norm.
    model = "plain" if optimizer == "adamw" else "with_norm"
    output = run_in_process(masked_config(model, optimizer, accumulate), tmp_path)
    batches = read_batches("drop")
    expected = train_oracle(model, optimizer, accumulate, batches)
    assert_matches_oracle(output, expected)
    other = train_oracle(model, optimizer, accumulate, [*batches[1:], batches[0]])
    assert largest_difference(output.weights, other.weights) > 1e-4, "the control: another order"


@functools.cache
def train_shared_oracle() -> oracle.TrainingResult:
    """Where each strategy has to end, with the order in which single reads; an epoch ends in a step of 2."""
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(masked_config("plain", "two-rates", 2, last="keep"), Path(folder))
    expected = train_oracle("plain", "two-rates", 2, read_batches("keep"))
    assert [len(batch) for batch in expected.batches] == [12, 12, 12, 12, 2] * 2
    return expected


@pytest.mark.parametrize("strategy", ["dp", "model"])
def test_devices_of_one_process_match_the_plain_loop(tmp_path: Path, strategy: str) -> None:
    output = run_in_process(
        masked_config("plain", "two-rates", 2, strategy, num_devices=3, last="keep"), tmp_path
    )
    assert_matches_oracle(output, train_shared_oracle())


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline", "tensor", "hybrid"])
def test_ranks_match_the_plain_loop(ranks: tuple[int, RankSet], tmp_path: Path, strategy: str) -> None:
    toml = masked_config("plain", "two-rates", 2, strategy, 2, last="keep")
    weights = ranks[1].train(toml, events=str(tmp_path))
    assert_matches_oracle(RunOutput.read(tmp_path, weights), train_shared_oracle())


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
def test_delayed_gradients_match_the_plain_loop(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    """A pipe without a flush bounds no norm: no moment has all gradients."""
    toml = masked_config("plain", "two-rates", 2, "STRATEGY", 2, last="keep", bounded=False)
    toml = toml.replace('"STRATEGY"', '"pipeline-async", mode = "2bw"')
    weights = ranks[1].train(toml, events=str(tmp_path))
    batches = train_shared_oracle().batches
    expected_with = functools.partial(train_oracle, "plain", "two-rates", 2, batches, bounded=False)
    assert_matches_oracle(RunOutput.read(tmp_path, weights), expected_with(late=True))
    assert largest_difference(weights, expected_with().weights) > 1e-3, "the control: no gradient is late"


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])
@pytest.mark.parametrize(
    "strategy",
    ['"ddp"', '"ddp", sync = "ring"', '"fsdp"', '"hybrid", data = 2', '"hybrid", shard = 2'],
)
def test_the_evaluated_weights_are_the_saved_weights(
    ranks: tuple[int, RankSet], tmp_path: Path, strategy: str
) -> None:
    """Batch norms keep statistics of each rank's own samples: all evaluate with those that the run leaves."""
    train = "steps = 3\nglobal_batch = 16\nevaluate_every = 0"
    toml = configuration("tests.helpers.own_models:tiny_conv", 'use = "digits"', train, "STRATEGY", 2)
    weights = ranks[1].train(toml.replace('"STRATEGY"', strategy), events=str(tmp_path))
    (evaluation,) = RunOutput.read(tmp_path, weights).evaluations
    model, (_, heldout) = tiny_conv().double(), Digits().load()
    model.load_state_dict(weights)
    loss, accuracy = oracle.evaluate(model, (heldout.inputs, heldout.targets))
    assert (evaluation.loss, evaluation.accuracy) == (
        pytest.approx(loss, rel=TOLERANCE),
        pytest.approx(accuracy),
    )
