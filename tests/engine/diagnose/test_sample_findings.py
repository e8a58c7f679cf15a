"""What is found of the samples in a script's batches, and of how its ranks divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import check_rules
from rankdeck.diagnose.findings.rule_context import RuleContext
from rankdeck.run.run_state import read_run_state
from tests.helpers.written_script import WrittenScript

_TORCH = "torch.utils.data.distributed:DistributedSampler"
_DDP = {"wrapper": "DistributedDataParallel"}
_RANDOM = {"class": "torch.utils.data.sampler:RandomSampler"}


def _sampler(rank: int, num: int = 2, *, seed: int = 0, shuffle: bool = True, kind: str = _TORCH) -> Any:
    return {"class": kind, "num_replicas": num, "rank": rank, "shuffle": shuffle, "seed": seed}


def _findings(run: WrittenScript) -> dict[str, Problem]:
    context = RuleContext(read_run_state(run.dir, curves=True))
    return {problem.code: problem for problem in check_rules(context)}


def _ranks(
    folder: Path, samplers: Sequence[Mapping[str, Any]], digests: Sequence[str | None], **facts: Any
) -> dict[str, Problem]:
    run = WrittenScript(folder)
    run.start_script(len(samplers))
    for rank, (sampler, digest) in enumerate(zip(samplers, digests, strict=True)):
        options = {"sampler": dict(sampler), "first_batches": digest, "num_samples": 64, **_DDP, **facts}
        run.observe_rank(rank, world_size=len(samplers), **options)
    return _findings(run)


@pytest.mark.parametrize(
    ("samplers", "digests", "message", "advice"),
    [
        ([_sampler(0), _sampler(0)], "aa", "all have rank=0 of 2", "rank=dist.get_rank()"),
        ([_sampler(0), _sampler(0)], "ab", "all have rank=0 of 2", "LOCAL_RANK"),
        ([_sampler(0), _sampler(0)], [None, None], "all have rank=0 of 2", "LOCAL_RANK"),
        ([_sampler(0, 1), _sampler(0, 1)], "aa", "num_replicas=1", "after init_process_group"),
        ([_RANDOM, _RANDOM], "aa", "RandomSampler goes through the whole", "DistributedSampler(dataset)"),
        ([{"class": "x:_Constant", "iterable": True}] * 2, "aa", "IterableDataset yields", "islice"),
        ([_sampler(0), _sampler(1)], "aa", "the dataset returns the same samples", "different seed"),
        ([_sampler(0), _RANDOM], "aa", "Only some of their samplers", "on every rank"),
        ([{}, {}], "aa", "work of a single rank.", "DistributedSampler(dataset)"),
        ([{"drawn": True}] * 2, "aa", "draws its batches itself", "seed + dist.get_rank()"),
    ],
)
def test_ranks_with_the_same_samples_are_found_with_the_cause(
    tmp_path: Path, samplers: Any, digests: Any, message: str, advice: str
) -> None:
    problems = _ranks(tmp_path, samplers, list(digests))
    assert set(problems) == {"same-data-on-all-ranks"}
    problem = problems["same-data-on-all-ranks"]
    assert message in problem.message and advice in (problem.advice or ""), problem
    assert [evidence.path for evidence in problem.evidence] == [f"events/rank-{r}.0.jsonl" for r in (0, 1)]
    if samplers[0].get("seed") is not None:
        assert f"num_replicas={samplers[0]['num_replicas']}, rank=0" in problem.evidence[0].text


def test_the_evidence_names_the_sampler(tmp_path: Path) -> None:
    (problem,) = _ranks(tmp_path, [_sampler(0), _sampler(0)], ["aa", "aa"]).values()
    assert problem.evidence[1].text == (
        "rank 1: DistributedSampler(num_replicas=2, rank=0, shuffle=True, seed=0); "
        "its first training batches have the digest aa"
    )


@pytest.mark.parametrize(
    ("samplers", "digests", "facts"),
    [
        ([_sampler(0), _sampler(1)], "ab", {}),
        ([_sampler(0), _sampler(0)], "ab", {"wrapper": "fully_shard"}),
        ([_sampler(0), _sampler(0)], "aa", {"wrapper_options": {"process_group": "g"}}),
        ([_sampler(0, 1), _sampler(0, 1)], "ab", {}),  # augmented, or parts of its own on each rank
        ([_sampler(0, 1), _sampler(0, 1)], [None, None], {}),
        ([_RANDOM, _RANDOM], "ab", {}),
        ([{"drawn": True}] * 2, "ab", {}),
        ([_sampler(0, seed=1), _sampler(1, seed=2)], "ab", {"wrapper": "fully_shard"}),
        ([_sampler(0, seed=1, shuffle=False), _sampler(1, seed=2, shuffle=False)], "ab", {}),
        ([_sampler(0, seed=1, kind="my:Own"), _sampler(1, seed=2, kind="my:Own")], "ab", {}),
        ([_sampler(0, 8), _sampler(1, 8)], "ab", {"wrapper": "fully_shard"}),
    ],
)
def test_ranks_that_divide_the_samples_are_not_reported(
    tmp_path: Path, samplers: Any, digests: Any, facts: dict[str, Any]
) -> None:
    assert _ranks(tmp_path, samplers, list(digests), **facts) == {}


def test_ranks_of_two_hosts_with_the_same_local_rank_are_found(tmp_path: Path) -> None:
    samplers = [_sampler(rank % 2) for rank in range(4)]
    (problem,) = _ranks(tmp_path, samplers, ["a", "b", "a", "b"]).values()
    assert (problem.code, problem.message) == (
        "same-data-on-some-ranks",
        "Ranks 0 and 2 train on the same samples. Their samplers all have rank=0 of 2, so the other shares "
        "are never used.",
    )
    assert "repeat on each host" in (problem.advice or "")


def test_samplers_with_different_seeds_are_found(tmp_path: Path) -> None:
    (problem,) = _ranks(tmp_path, [_sampler(0, seed=1), _sampler(1, seed=2)], ["a", "b"]).values()
    assert problem.code == "sampler-seeds-differ" and "seed=2" in problem.evidence[1].text


def test_shares_without_a_rank_are_found(tmp_path: Path) -> None:
    (problem,) = _ranks(tmp_path, [_sampler(0, 8), _sampler(1, 8)], ["a", "b"]).values()
    assert problem.code == "samples-left-out"
    assert "8 shares for 2 ranks: 75 % of the samples" in problem.message


def test_shares_of_ranks_that_have_not_reported_are_waited_for(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path)
    run.start_script(4)
    for rank in (0, 1):
        run.observe_rank(rank, world_size=4, sampler=_sampler(rank, 4), first_batches=str(rank), **_DDP)
    assert _findings(run) == {}


@pytest.mark.parametrize("code", ["rank-left", "hang"])
@pytest.mark.parametrize(("lengths", "waits_for", "is_found"), [
    ((10, 9), 1, True), ((10, 9), None, True), ((10, 9), 0, False), ((9, 9), 1, False), ((9, None), 0, False),
])  # fmt: skip
def test_an_epoch_of_another_length_is_found_where_ranks_wait_for_it(
    tmp_path: Path, code: str, lengths: Any, waits_for: int | None, is_found: bool
) -> None:
    run = WrittenScript(tmp_path)
    run.start_script(2)
    for rank, length in enumerate(lengths):
        run.observe_rank(rank, world_size=2, epoch_batches=length, **_DDP)
    assert "epoch-lengths-differ" not in _findings(run)  # model.join(), or each rank starts its loader again
    run.writer("supervisor").write(events.ProblemRaised(problem=Problem(code, "It waits.", rank=waits_for)))
    problem = _findings(run).get("epoch-lengths-differ")
    assert (problem is not None) is is_found
    if problem is not None:
        assert problem.message.startswith("An epoch has 9 batches on rank 1 and 10 on rank 0:")
        assert problem.rank == 1 and "model.join()" in (problem.advice or "")


_ANOMALIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "repeated-by-workers": (
        "repeated-by-workers",
        {"names": ["Stream"], "numbers": {"names": 1, "workers": 4, "groups": 6}},
        "4 loader workers yields the same samples of Stream, so every sample is used 4 times",
        "get_worker_info()",
    ),
    "generator-copied-to-workers": (
        "workers-draw-the-same",
        {"names": ["self.rng", "Images"], "numbers": {"names": 2, "workers": 2}},
        "2 loader workers has a copy of self.rng",
        "torch.initial_seed()",
    ),
    "equal-batches-of-workers": (
        "workers-draw-the-same",
        {"names": ["Images"], "numbers": {"names": 1, "workers": 2, "groups": 6}},
        "return equal batches of Images",
        "worker_init_fn",
    ),
    "labels-constant": (
        "labels-constant",
        {"numbers": {"names": 0, "label": 3, "labels": 640, "batches": 40}},
        "All training labels are 3",
        "reads its labels",
    ),
    "batches-of-one-class": (
        "batches-of-one-class",
        {"numbers": {"names": 0, "classes": 10, "batches": 100, "one_class": 91}},
        "91 of 100 batches contain one class only",
        "shuffle=True",
    ),
    "same-order-every-epoch": (
        "same-order-every-epoch",
        {"names": ["Images"], "numbers": {"names": 1, "passes": 3}},
        "uses the same order, although the DataLoader shuffles",
        "Seed once",
    ),
    "evaluation-on-training-samples": (
        "evaluation-on-training-samples",
        {"names": ["Images"], "numbers": {"names": 1, "shared": 32, "evaluated": 40, "trained": 152}},
        "32 of the 40 evaluated samples are also training samples (80 %)",
        "Split once",
    ),
    "evaluation-padded": (
        "evaluation-padded",
        {
            "names": ["DistributedSampler"],
            "numbers": {"names": 1, "repeated": 3, "evaluated": 41, "ranks": 4},
        },
        "An evaluation counts 3 of 41 samples twice.",
        "Evaluate each sample once",
    ),
}


@pytest.mark.parametrize("anomaly", _ANOMALIES)
def test_an_anomaly_of_batches_becomes_a_finding(tmp_path: Path, anomaly: str) -> None:
    code, fields, message, advice = _ANOMALIES[anomaly]
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0)
    run.writer("rank-0").write(events.Anomaly(rank=0, code=anomaly, step=5, **fields))
    (problem,) = _findings(run).values()
    assert (problem.code, problem.severity) == (code, "warning")
    assert message in problem.message and advice in (problem.advice or ""), problem
    assert problem.evidence[0].text


def test_a_sorted_stream_needs_a_shuffle_buffer(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0)
    numbers = {"classes": 10.0, "batches": 100.0, "one_class": 91.0, "iterable": 1.0}
    run.writer("rank-0").write(events.Anomaly(rank=0, code="batches-of-one-class", step=5, numbers=numbers))
    (problem,) = _findings(run).values()
    assert "shuffle buffer" in (problem.advice or "")
