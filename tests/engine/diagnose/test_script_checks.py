"""What is silently wrong in a script: findings from digests of weights and from reported anomalies."""

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

_DDP = {"wrapper": "DistributedDataParallel"}
_NAMES = ["0.weight", "0.bias"]
_SAME = {0: (5, 7), 1: (6, 7)}


def _write(
    folder: Path,
    digests: Mapping[int, Mapping[int, tuple[int, ...]]],
    *,
    anomalies: Sequence[tuple[int, str, dict[str, Any]]] = (),
    names: Mapping[int, list[str]] | None = None,
    calls: tuple[str, int] | None = None,
    **facts: Any,
) -> WrittenScript:
    """A run of two ranks; `digests` by step and rank, `calls` the bytes of a collective over 10 steps."""
    run = WrittenScript(folder)
    run.start_script(2)
    for rank in (0, 1):
        run.observe_rank(rank, world_size=2, **(facts or _DDP))
        run.write_step_line(rank, 1, [1.0] * 10)
        write = run.writer(f"rank-{rank}").write
        parameters = _NAMES if names is None else names[rank]
        write(
            events.WeightDigests(rank=rank, step=0, digests=[], names=parameters, sizes=[4, 2], num_bytes=24)
        )
        for step, by_rank in digests.items():
            write(events.WeightDigests(rank=rank, step=step, digests=list(by_rank[rank])))
        for reporter, code, fields in anomalies:
            if reporter == rank:
                write(events.Anomaly(rank=rank, code=code, **fields))
        if calls is not None:
            write(
                events.Collectives(
                    rank=rank, step=10, calls={calls[0]: 10}, num_bytes={calls[0]: calls[1]}, seconds={}
                )
            )
    return run


def _findings(run: WrittenScript) -> dict[str, Problem]:
    return {
        problem.code: problem for problem in check_rules(RuleContext(read_run_state(run.dir, curves=True)))
    }


def _steps(*differing: int, equal: Sequence[int] = (0, 1, 2, 4)) -> dict[int, dict[int, tuple[int, ...]]]:
    """Digests that are equal after the steps `equal` and differ in the second parameter after the others."""
    return {
        **{step: {0: (step, 7), 1: (step, 7)} for step in equal},
        **{step: {0: (step, 7), 1: (step, 8)} for step in differing},
    }


_UNREDUCED = (0, "gradients-not-reduced", {"step": 5, "line": "/w/train.py:12"})
_LOADED = (1, "weights-loaded", {"step": 6, "line": "/w/train.py:30", "names": ["/w/train.py:30"]})


@pytest.mark.parametrize(
    ("digests", "more", "since", "cause", "advice"),
    [
        (_steps(8, 16), {}, "between steps 5 and 8", "outside of optimizer.step", "EMA"),
        (_steps(5), {}, "in step 5", "outside of optimizer.step", "EMA"),
        (
            _steps(8),
            {"anomalies": [_UNREDUCED]},
            "between steps 5 and 8",
            "under no_sync()",
            "last micro-batch",
        ),
        (
            _steps(8),
            {"anomalies": [_LOADED]},
            "between steps 5 and 8",
            "after step 6, weights were loaded",
            "same",
        ),
        (
            _steps(8),
            {"anomalies": [(0, "wrapper-bypassed", {"step": 1})]},
            "between steps 5 and 8",
            "bypasses DistributedDataParallel",
            "ddp(x)",
        ),
        (_steps(0, 1, 2, equal=()), {}, "before the first step", "initialised differently", "seed"),
        (
            _steps(0, 1, equal=()),
            {"calls": ("all_reduce", 240), "model": "m:Net"},
            "before the first step",
            "initialised differently",
            "broadcast",
        ),
    ],
)
def test_ranks_that_drift_apart_are_found_with_their_cause(
    tmp_path: Path, digests: Any, more: dict[str, Any], since: str, cause: str, advice: str
) -> None:
    problem = _findings(_write(tmp_path, digests, **more))["ranks-drifted"]
    assert since in problem.message and cause in problem.message, problem.message
    assert advice in (problem.advice or "") and problem.severity == "warning"
    assert problem.evidence[0].text == "on rank 1, 1 of 2 parameters differ from those on rank 0: 0.bias"
    if "anomalies" in more and more["anomalies"][0] in (_UNREDUCED, _LOADED):
        assert problem.evidence[1].location == more["anomalies"][0][2]["line"]


@pytest.mark.parametrize(
    ("digests", "more"),
    [
        (_steps(equal=(0, 1, 2, 4, 8)), {}),
        ({**_steps(1, 2, equal=(0,)), **_steps(equal=(4,)), **_steps(8, equal=())}, {}),  # local SGD
        (_steps(8), {"anomalies": [(0, "comm-hook", {"step": 2, "names": ["post_localSGD_hook"]})]}),
        (_steps(8), {"wrapper": "DistributedDataParallel", "wrapper_options": {"process_group": "g"}}),
        (_steps(0, 1, equal=()), {"model": "m:Net"}),  # each rank trains its own
        (_steps(0, 1, equal=()), {"calls": ("all_reduce", 999), "model": "m:Net"}),  # tensor parallel
        (_steps(0, 1, equal=()), {"names": {0: _NAMES, 1: ["1.weight", "1.bias"]}}),  # stages
        ({1: {0: (5, 7), 1: (5, 7)}}, {"anomalies": [_UNREDUCED, _LOADED]}),
    ],
)  # fmt: skip
def test_ranks_that_may_differ_are_not_reported(tmp_path: Path, digests: Any, more: dict[str, Any]) -> None:
    assert "ranks-drifted" not in _findings(_write(tmp_path, digests, **more))


@pytest.mark.parametrize(
    ("world_size", "is_over", "wrapper", "steps", "is_found"),
    [
        (2, True, "DistributedDataParallel", 12, True),
        (2, False, "DistributedDataParallel", 12, False),
        (None, True, "DistributedDataParallel", 12, False),
        (4, True, "DistributedDataParallel", 12, False),
        (2, True, "fully_shard", 12, False),
        (2, True, "DistributedDataParallel", 5, False),
    ],
)
def test_a_rank_that_never_steps_is_found(
    tmp_path: Path, world_size: int | None, is_over: bool, wrapper: str, steps: int, is_found: bool
) -> None:
    run = WrittenScript(tmp_path)
    run.start_script(2)
    run.observe_rank(0, world_size=world_size, wrapper=wrapper)
    run.write_step_line(0, 1, [1.0] * steps)
    context = RuleContext(read_run_state(run.dir, curves=True), is_over=is_over)
    found = {problem.code: problem for problem in check_rules(context)}
    assert ("ranks-drifted" in found) is is_found
    if is_found:
        assert "Rank 1 has never called optimizer.step" in found["ranks-drifted"].message
        assert "on every rank" in (found["ranks-drifted"].advice or "")


def test_a_rank_that_has_not_reported_is_waited_for(tmp_path: Path) -> None:
    run = _write(tmp_path, _steps(equal=(0, 1)))
    run.writer("rank-0").write(events.WeightDigests(rank=0, step=2, digests=[1, 2]))
    assert "ranks-drifted" not in _findings(run)
    run.writer("rank-1").write(events.WeightDigests(rank=1, step=2, digests=[1, 3]))
    assert "in step 2" in _findings(run)["ranks-drifted"].message


_ANOMALIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "clip-before-unscale": (
        "clip-before-unscale", {"numbers": {"scale": 16384.0, "limit": 1.0}}, "at most 6.1e-05", "unscale_",
    ),
    "gradients-not-cleared": ("gradients-not-cleared", {}, "never cleared", "zero_grad()"),
    "zeroed-before-step": ("zeroed-before-step", {}, "between the backward pass", "before the backward pass"),
    "optimizer-without-gradients": (
        "optimizer-without-gradients",
        {"names": ["AdamW"], "numbers": {"parameters": 6, "foreign": 6, "sharded": 1}},
        "None of AdamW's 6 parameters",
        "after fully_shard",
    ),
    "gradient-without-optimizer": (
        "gradient-without-optimizer",
        {"names": ["3.weight", "3.bias"], "numbers": {"names": 2, "replaced": 2}},
        "no optimizer updates them: 3.weight, 3.bias",
        "after the last change",
    ),
    "no-gradient-graph": (
        "no-parameter-gradient", {"names": ["a"], "numbers": {"names": 1}}, "never gets a gradient", "detach",
    ),
    "no-gradient-disabled": (
        "no-parameter-gradient",
        {"names": ["encoder.weight"], "numbers": {"names": 1}},
        "never gets a gradient",
        "run under torch.no_grad()",
    ),
    "no-gradient-checkpoint": (
        "no-parameter-gradient",
        {"names": list("abcdefgh"), "numbers": {"names": 8}},
        "8 trainable parameters never get a gradient although their layers run: a, b, c and 5 more.",
        "use_reentrant=False",
    ),
    "stepped-twice": ("stepped-twice", {"names": ["w"], "numbers": {"names": 1}}, "same parameter", "one"),
    "frozen-after-wrapping": (
        "frozen-after-wrapping", {"names": ["w"], "numbers": {"names": 1}}, "frozen after", "before wrapping",
    ),
    "weights-unchanged": (
        "weights-unchanged",
        {"names": ["bfloat16"], "numbers": {"share": 0.01, "rate": 1e-6}},
        "only 1 % of the bfloat16 weights",
        "torch.autocast",
    ),
    "eval-while-training": (
        "eval-while-training",
        {"names": ["2 Dropout"], "numbers": {"names": 1, "was_training": 4}},
        "behave as in evaluation: 2 Dropout",
        "after each evaluation",
    ),
    "layers-eval-while-training": (
        "layers-eval-while-training",
        {"names": ["encoder", "2 Dropout"], "numbers": {"names": 2, "was_training": 4}},
        "encoder trains in evaluation mode from step 5 on",
        "model.train() after each evaluation",
    ),
    "train-while-evaluating": (
        "train-while-evaluating", {"names": ["1 BatchNorm2d"], "numbers": {"names": 1, "batches": 3}},
        "training mode. Layers that behave as in training: 1 BatchNorm2d", "model.eval()",
    ),
    "nothing-loaded-with": (
        "nothing-loaded",
        {"names": ["module.", "module.a", "a"], "numbers": {"matched": 0, "given": 6, "wanted": 6}},
        "loaded 0 of 6 tensors",
        'Remove the prefix "module."',
    ),
    "nothing-loaded-without": (
        "nothing-loaded",
        {"names": ["net.", "a", "net.a"], "numbers": {"matched": 0, "given": 6, "wanted": 6}},
        "loaded 0 of 6 tensors",
        'Add the prefix "net."',
    ),
    "nothing-loaded": (
        "nothing-loaded", {"names": ["", "a", "b"], "numbers": {"wanted": 6}}, "0 of 6", "Compare the keys",
    ),
    "scheduler-steps-rarely": (
        "scheduler-steps-rarely",
        {"names": ["OneCycleLR"], "numbers": {"done": 3, "steps": 300, "scheduled": 300}},
        "OneCycleLR has stepped 3 times in 300 steps",
        "after each optimizer.step()",
    ),
    "scheduler-steps-often": (
        "scheduler-steps-often",
        {"names": ["LambdaLR"], "numbers": {"ratio": 2, "counter": 8, "zero": 1, "accelerate": 1}},
        "LambdaLR steps 2 times per optimizer step: the learning rate has been 0 since step 5",
        "accelerator.num_processes",
    ),
    "rate-zero": (
        "learning-rate-zero",
        {"names": ["PolynomialLR"], "numbers": {"ratio": 1, "counter": 4, "length": 4, "steps": 60}},
        "has been 0 since step 5",
        "as long as the run",
    ),
    "resume-without-optimizer": (
        "resume-without-optimizer",
        {"names": ["AdamW", "half.pt", "step"], "numbers": {"counter": 120, "saved": 0}},
        "resumes at step 120 without the optimizer's state: AdamW's moments",
        "Save optimizer.state_dict()",
    ),
    "resume-without-scheduler": (
        "resume-without-scheduler",
        {"names": ["LambdaLR", "half.pt", "epoch"], "numbers": {"counter": 12, "saved": 1}},
        "resumes at epoch 12, but LambdaLR starts its schedule again",
        "scheduler.load_state_dict with the scheduler's state in half.pt",
    ),
    "graphs-retained-container": (
        "graphs-retained",
        {"names": ["losses", "", "root"], "numbers": {"elements": 167, "first": 9, "host_bytes": 4096}},
        "losses stores 167 tensors with their computation graphs",
        "loss.item()",
    ),
    "graphs-retained-chain": (
        "graphs-retained",
        {"names": ["state", "32x8", "root"], "numbers": {"first": 9}},
        "The computation graph of state reaches back to step 9",
        "state = state.detach()",
    ),
    "graphs-retained": (
        "graphs-retained", {"names": ["", "", "end"], "numbers": {"first": 9}}, "since step 9", "detach()",
    ),
    "growing-hooks": (
        "hooks-growing",
        {"names": ["hook"], "numbers": {"before": 31, "after": 127, "steps": 96}},
        "96 hooks have been added in 96 steps",
        "remove()",
    ),
    "growing-parameters": (
        "optimizer-growing", {"numbers": {"before": 4, "after": 100, "steps": 96}},
        "96 more parameters after 96 steps", "copy_",
    ),
    "growing-states": (
        "optimizer-growing", {"numbers": {"before": 4, "after": 100, "steps": 96}},
        "the state of 96 more parameters", "copy_",
    ),
    "growing-threads": (
        "workers-growing", {"numbers": {"before": 4, "after": 100, "steps": 96}}, "96 threads", "once",
    ),
    "growing-processes": (
        "workers-growing", {"numbers": {"before": 4, "after": 100, "steps": 96}}, "96 processes", "once",
    ),
    "growing-memory": (
        "memory-growing",
        {
            "names": ["images", "list"],
            "numbers": {"slope": 524288, "gpu": 1, "elements": 167, "new": 1, "element_bytes": 524288},
        },
        "images (list) is never cleared",
        "tensor.cpu()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("anomaly", _ANOMALIES)
def test_an_anomaly_becomes_a_finding_with_evidence_and_cure(tmp_path: Path, anomaly: str) -> None:
    code, fields, message, advice = _ANOMALIES[anomaly]
    run = WrittenScript(tmp_path)
    run.start_script(2)
    for rank in (0, 1):
        run.observe_rank(rank, world_size=2)
    event = events.Anomaly(rank=1, code=anomaly, step=5, line="/work here/train.py:41", **fields)
    run.writer("rank-1").write(event)
    (problem,) = _findings(run).values()
    assert (problem.code, problem.rank, problem.severity) == (code, 1, "warning")
    assert message in problem.message and advice in (problem.advice or ""), problem
    assert problem.evidence[0].text and problem.evidence[0].location == "/work here/train.py:41"
    # On all ranks it is nobody's own.
    run.writer("rank-0").write(events.Anomaly(rank=0, code=anomaly, step=5, **fields))
    (problem,) = _findings(run).values()
    assert problem.rank is None


def test_a_rate_that_was_never_above_zero_is_found(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0)
    numbers = {"names": 0.0, "steps": 52.0, "never": 1.0}
    run.writer("rank-0").write(events.Anomaly(rank=0, code="rate-zero", step=1, numbers=numbers))
    problem = _findings(run)["learning-rate-zero"]
    assert problem.message == "The learning rate is 0 in every step: steps do not change the parameters."
    assert problem.evidence[0].text == "in all parameter groups from step 1 to 52"
    assert "step // warmup_steps" in (problem.advice or "")


def test_unknown_anomalies_and_odd_ones_are_passed_over(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0)
    run.writer("rank-0").write(events.Anomaly(rank=0, code="of-a-newer-version", step=1))
    assert _findings(run) == {}
    run.writer("rank-0").write(events.Anomaly(rank=0, code="nothing-loaded", step=-1, line="nowhere"))
    assert _findings(run)["nothing-loaded"].evidence[0].location == ""


@pytest.mark.parametrize("divided", [True, False])
def test_a_script_whose_loss_becomes_nan_is_found(tmp_path: Path, divided: bool) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0, not_finite=4)
    run.write_step_line(0, 1, [1.0, 8.0, 64.0, None, None], lr=0.06, grad_norm=3.0)
    if not divided:
        numbers = {"names": 0.0, "backwards": 8.0}
        run.writer("rank-0").write(
            events.Anomaly(rank=0, code="accumulation-not-divided", step=3, numbers=numbers)
        )
    problem = _findings(run)["loss-not-finite"]
    assert problem.message == "The loss is NaN or infinite from step 4 on, first on rank 0."
    assert problem.evidence[0].text == "just before: loss 64, learning rate 0.06, gradient norm 3"
    assert ("Divide each loss by 8" in (problem.advice or "")) is not divided


@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_passes_its_nan_on_is_blamed(tmp_path: Path, first: int) -> None:
    """The other rank gets weights that are not finite with the average of the gradients."""
    run = WrittenScript(tmp_path)
    run.start_script()
    for rank in (0, 1):
        run.observe_rank(rank, not_finite=4, world_size=2)
        run.write_step_line(rank, 1, [1.0, 8.0, 64.0, None, None], lr=0.06, grad_norm=3.0)
        numbers = {"loss": 1.0, "weights": 0.0 if rank == first else 6.0, "examined": 4.0}
        run.writer(f"rank-{rank}").write(
            events.Anomaly(rank=rank, code="not-finite", step=4, numbers=numbers)
        )
    problem = _findings(run)["loss-not-finite"]
    assert problem.message.endswith(f"first on rank {first}.") and problem.rank == first


def test_no_rank_is_blamed_alone_if_the_first_step_is_unclear(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    for rank in (0, 1):
        run.observe_rank(rank, not_finite=5, world_size=2)
        run.write_step_line(rank, 1, [1.0, 8.0, None, None, None], lr=0.06)
    problem = _findings(run)["loss-not-finite"]
    assert problem.message == "The loss became NaN or infinite between steps 3 and 5, on ranks 0, 1."
    assert problem.rank is None


@pytest.mark.parametrize(
    ("names", "numbers", "evidence", "advice"),
    [
        (["head (Head)"], {"loss": 1, "module": 2}, "step 4 is that of head (Head)", "log(0)"),
        (["body"], {"loss": 1, "module": 1}, "whose input is not finite either", "Find the sample"),
        ([], {"loss": 1, "batch": 1}, "loaded before step 4 contains NaN", "Find the sample"),
        (["a", "b"], {"gradients": 2, "names": 2}, "nearest to the loss: a, b", "epsilon"),
        (["a"], {"loss": 1, "weights": 1, "parameters": 6, "examined": 5}, "of step 5, 1 of 6", "Lower"),
        (["v"], {"loss": 1, "buffers": 1, "examined": 4}, "buffers are not finite: v", "log(0)"),
        ([], {"loss": 1, "batch": 0}, "weights and the batch of step 4 are finite", "log(0)"),
        ([], {"loss": 1, "batch": 0, "outputs": 0}, "outputs of all modules are finite", "computes the loss"),
        ([], {"loss": 1, "examined": 4}, "all weights are finite", "log(0)"),
    ],
)
def test_what_was_not_finite_first_is_evidence(
    tmp_path: Path, names: list[str], numbers: dict[str, float], evidence: str, advice: str
) -> None:
    run = WrittenScript(tmp_path)
    run.start_script()
    run.observe_rank(0, not_finite=4)
    run.write_step_line(0, 1, [1.0, 8.0, 64.0, None, None], lr=0.06, grad_norm=3.0)
    run.writer("rank-0").write(
        events.Anomaly(rank=0, code="not-finite", step=4, names=names, numbers={"scale": 8.0, **numbers})
    )
    problem = _findings(run)["loss-not-finite"]
    assert evidence in problem.evidence[0].text and advice in (problem.advice or ""), problem
    assert problem.evidence[1].text == (
        "just before: loss 64, learning rate 0.06, gradient norm 3, gradient scaler's scale 8"
    )
