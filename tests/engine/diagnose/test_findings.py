"""Each rule over the figures of a run: what makes it speak, and a healthy run beside it of which it says
nothing. Events are written as the engine writes them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.findings import (
    FINDING_RULES,
    FindingTracker,
    RuleContext,
    check_rules,
    problems_and_findings,
)
from rankdeck.run.batch import Batch, iter_batches
from rankdeck.run.run_state import RunState
from rankdeck.run.step_blocks import StepBlock
from rankdeck.run_dir import EventReader
from tests.helpers.checkout import CHECKOUT
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_run import MIB, WrittenRun, device_infos, write_backdated
from tests.helpers.written_script import WrittenScript

GIB = 1 << 30
NOISE = np.random.default_rng(0)


@pytest.fixture
def written_runs(tmp_path: Path) -> Iterator[list[WrittenRun]]:
    """Runs that a test has written: their locks go at its end."""
    runs: list[WrittenRun] = []
    yield runs
    for run in runs:
        run.lose()


@pytest.fixture
def configured(tmp_path: Path, written_runs: list[WrittenRun]) -> Any:
    def make(strategy: Mapping[str, Any] | None = None, **tables: Any) -> WrittenRun:
        config = {"strategy": strategy or {"use": "ddp"}, "devices": {"use": "cpu:2"}, **tables}
        written_runs.append(WrittenRun(tmp_path / "runs", f"run-{len(written_runs)}", config))
        return written_runs[-1]

    return make


@pytest.fixture
def script(tmp_path: Path, written_runs: list[WrittenRun]) -> Any:
    def make() -> WrittenScript:
        run = WrittenScript(tmp_path / "runs", f"train-{len(written_runs)}.py")
        written_runs.append(run)
        return run

    return make


def run_state(run: WrittenRun) -> RunState:
    state = RunState()
    for batch in iter_batches(EventReader(run.dir)):
        state.apply(batch)
    return state


def run_problems(run: WrittenRun) -> dict[str, Problem]:
    """What is found in a run, by code; all of it is a warning that says what was seen and what to do."""
    try:
        config = run.dir.config()
    except ConfigError:
        config = None
    problems = check_rules(RuleContext(run_state(run), config))
    for problem in problems:
        assert problem.severity == "warning" and problem.advice and problem.evidence, problem
        assert problem.templates["message"] and problem.templates["evidence.0"], problem
        for evidence in problem.evidence:
            assert evidence.path is None or (run.path / evidence.path).is_file(), evidence
    return {problem.code: problem for problem in problems}


def write_spans(
    run: WrittenRun, rank: int, step: int, seconds: float, microbatch: int | None = None, **phases: float
) -> None:
    """A sampled step of a rank: its phases one after the other."""
    starts = np.concatenate([[0.0], np.cumsum(list(phases.values()))])[:-1]
    run.writer(f"rank-{rank}").write(
        events.Spans(
            rank=rank,
            step=step,
            began=run.started + step,
            seconds=seconds,
            names=[name.replace("_", "-") for name in phases],
            name=list(range(len(phases))),
            device=[rank] * len(phases),
            start_us=[round(1e6 * start) for start in starts],
            duration_us=[round(1e6 * duration) for duration in phases.values()],
            microbatch=None if microbatch is None else [microbatch] * len(phases),
        )
    )


def start_ranks(run: WrittenRun, ranks: int, threads: int | None = None) -> None:
    for rank in range(ranks):
        started = events.RankStarted(rank=rank, pid=100 + rank, devices=[rank], threads=threads)
        run.writer(f"rank-{rank}").write(started)


def falling_losses(num: int, start: float = 2.3, end: float = 0.4, scatter: float = 0.05) -> list[float]:
    losses = end + (start - end) * np.exp(-np.arange(num) / (num / 5)) + NOISE.normal(0, scatter, num)
    return [float(loss) for loss in losses]


def test_rules_are_unique_and_come_after_their_causes() -> None:
    codes = [rule.code for rule in FINDING_RULES]
    assert len(codes) == len(set(codes)) >= 14
    assert all(
        codes.index(cause) < index for index, rule in enumerate(FINDING_RULES) for cause in rule.unless
    )


def test_memory_imbalance_is_found(configured: Any) -> None:
    run, even = configured({"use": "dp"}), configured({"use": "dp"})
    for case_run, lead in ((run, 300), (even, 65)):
        case_run.start(1, device_infos(2), strategy="dp")
        case_run.write_memory(0, 1, {0: {"activations": lead * MIB}, 1: {"activations": 60 * MIB}})
    problem = run_problems(run)["imbalance"]
    assert problem.message.startswith("Virtual 0 holds 240.0 MiB more") and problem.cure == {
        "strategy.use": "ddp"
    }
    assert problem.evidence[0].text == "300.0 MiB on Virtual 0, median of 60.0 MiB on the other devices"
    assert run_problems(even) == {}


@pytest.mark.parametrize("times_slow, speaks", [(12, True), (7, False)])
def test_an_always_slower_rank_is_a_straggler(configured: Any, times_slow: int, speaks: bool) -> None:
    run = configured()
    run.start(3, device_infos(3), strategy="ddp")
    start_ranks(run, 3)
    for step in range(1, 13):
        for rank in range(3):
            is_slow = rank == 2 and step <= times_slow
            write_spans(run, rank, step, 0.1, data=0.001, forward=0.03 if is_slow else 0.02, backward=0.06)
    problems = run_problems(run)
    assert set(problems) == ({"straggler"} if speaks else set())
    if speaks:
        assert problems["straggler"].rank == 2 and "1.5 times as long" in problems["straggler"].message
        assert problems["straggler"].evidence[0].path == "events/rank-2.0.jsonl"
        assert "12 of the last 12 sampled steps" in problems["straggler"].evidence[0].text


def test_waiting_ranks_and_stages_are_not_stragglers(configured: Any) -> None:
    waits, stages = configured(), configured({"use": "pipeline"})
    waits.start(2, device_infos(2), strategy="ddp")
    stages.start(2, device_infos(2), strategy="pipeline")
    for run in (waits, stages):
        start_ranks(run, 2)
        for step in range(1, 13):
            write_spans(run, 0, step, 0.1, data=0.001, forward=0.02, backward=0.06)
            forward_s = 0.02 if run is waits else 0.04
            write_spans(run, 1, step, 0.1, data=0.001, forward=forward_s, backward=0.02, all_reduce=0.04)
    assert run_problems(waits) == run_problems(stages) == {}


def test_steps_that_wait_for_data_suggest_workers(configured: Any) -> None:
    run, fine, quick, has_workers = (configured(data={"use": "digits", "workers": n}) for n in (0, 0, 0, 4))
    for case_run, data_s, step_s in (
        (run, 0.04, 0.1),
        (fine, 0.01, 0.1),
        (quick, 0.001, 0.002),
        (has_workers, 0.04, 0.1),
    ):
        case_run.start(2, device_infos(2), strategy="ddp", cores=8)
        start_ranks(case_run, 2)
        for step in range(1, 8):
            for rank in range(2):
                write_spans(case_run, rank, step, step_s, data=data_s, forward=step_s - data_s)
    problem = run_problems(run)["input-bound"]
    assert problem.message == "Steps spend 40 % of their time waiting for data: 40 ms per step."
    assert problem.cure == {"data.workers": 4} and problem.rank is None
    assert run_problems(fine) == run_problems(quick) == {}
    assert run_problems(has_workers)["input-bound"].cure == {}


def test_a_script_that_waits_for_its_loader_is_input_bound(script: Any) -> None:
    run, fine = script(), script()
    for case_run, waits_s in ((run, (0.3, 0.01)), (fine, (0.05, 0.01))):
        case_run.start_script(2, cores=8)
        for rank, wait_s in enumerate(waits_s):
            case_run.observe_rank(rank, world_size=2, dataset="a:B", loader_workers=0)
            case_run.write_step_line(rank, 1, falling_losses(40), wait_s=wait_s)
    problem = run_problems(run)["input-bound"]
    assert (problem.rank, problem.cure) == (0, {}) and "60 % of their time" in problem.message
    assert problem.advice is not None and "num_workers=4" in problem.advice
    assert (
        problem.evidence[0].path == "events/rank-0.0.jsonl" and "11.7 s of 19.5 s" in problem.evidence[0].text
    )
    assert run_problems(fine) == {}


def gpus(total_bytes: int = 80 * GIB) -> list[events.DeviceInfo]:
    return device_infos(2, "gpu", total_bytes)


@pytest.mark.parametrize("sync_s, hidden_s, speaks", [(0.06, 0.01, True), (0.06, 0.05, False)])
def test_exposed_gradient_sync_is_comm_bound(
    configured: Any, sync_s: float, hidden_s: float, speaks: bool
) -> None:
    run, rehearsed = configured(), configured()
    for case_run, devices in ((run, gpus()), (rehearsed, device_infos(2))):
        case_run.start(2, devices, strategy="ddp")
        start_ranks(case_run, 2)
        for rank in range(2):
            for step in range(1, 8):
                write_spans(case_run, rank, step, 0.1, forward=0.03, all_reduce=sync_s)
            comm = events.Comm(
                rank=rank, step=3, algorithm="ring", sent_bytes=9, sync_s=sync_s, overlapped_s=hidden_s
            )
            case_run.writer(f"rank-{rank}").write(comm)
    problems = run_problems(run)
    assert set(problems) == ({"comm-bound"} if speaks else set())
    if speaks:
        assert "communicate for 50 % of a step" in problems["comm-bound"].message
    assert run_problems(rehearsed) == {}, "there ranks wait for each other's cores"


def test_a_script_with_slow_collectives_is_comm_bound(script: Any) -> None:
    run, fine = script(), script()
    for case_run, seconds in (
        (run, (12.0, 18.0)),
        (fine, (2.0, 18.0)),
    ):  # who waits for a slow rank is no sender
        case_run.start_script(2)
        for rank in range(2):
            case_run.observe_rank(rank, world_size=2)
            case_run.write_step_line(rank, 1, falling_losses(40), wait_s=0.0)
            collectives = events.Collectives(
                rank=rank, step=40, calls={"all_reduce": 40}, num_bytes={"all_reduce": 9},
                seconds={"all_reduce": seconds[rank]},
            )  # fmt: skip
            case_run.writer(f"rank-{rank}").write(collectives)
    problem = run_problems(run)["comm-bound"]
    assert "communicate for 62 % of a step" in problem.message and "no_sync" in (problem.advice or "")
    assert run_problems(fine) == {}


@pytest.mark.parametrize(
    "idle_s, theory, fix",
    [
        (0.05, 0.45, {"strategy.microbatches": 8}),
        (0.05, 0.2, {"strategy.balance": "time"}),
        (0.02, 0.2, None),
    ],
)
def test_a_large_bubble_suggests_microbatches_or_balance(
    configured: Any, idle_s: float, theory: float, fix: Any
) -> None:
    run = configured({"use": "pipeline", "microbatches": 4}, train={"global_batch": 32})
    run.start(2, gpus(), strategy="pipeline")
    start_ranks(run, 2)
    for rank in range(2):
        pipeline = events.Pipeline(
            rank=rank, step=3, stages=[rank], microbatches=4, in_flight=2, theory_bubble=theory
        )
        run.writer(f"rank-{rank}").write(pipeline)
        for step in range(1, 8):
            busy_s = 0.1 if rank else 0.1 - 2 * idle_s
            write_spans(run, rank, step, 0.1, 0, forward=busy_s / 2, backward=busy_s / 2)
    problems = run_problems(run)
    if fix is None:
        assert problems == {}
    else:
        assert problems["bubble-large"].cure == fix
        assert f"measured: 50 %; theoretical value for this schedule: {theory:.0%}"[:-1] in (
            problems["bubble-large"].evidence[0].text
        )


@pytest.mark.parametrize(
    "threads, cores, speaks", [(8, 8, True), (4, 8, False), (1, 1, False), (8, None, False)]
)
def test_more_threads_than_cores_is_found(
    configured: Any, script: Any, threads: int, cores: int | None, speaks: bool
) -> None:
    run, on_gpus, script_run = configured(), configured(), script()
    run.start(2, device_infos(2), strategy="ddp", cores=cores)
    on_gpus.start(2, gpus(), strategy="ddp", cores=cores)
    script_run.start_script(2, cores=cores)
    for case_run in (run, on_gpus):
        start_ranks(case_run, 2, threads)
    for rank in range(2):
        script_run.observe_rank(rank, world_size=2, threads=threads)
    for case_run in (run, script_run):
        problems = run_problems(case_run)
        assert set(problems) == ({"thread-oversubscription"} if speaks else set())
        if speaks:
            problem = problems["thread-oversubscription"]
            assert "2 ranks compute with 16 threads on 8 cores" in problem.message
            assert "OMP_NUM_THREADS=4" in (problem.advice or "")
    assert run_problems(on_gpus) == {}


def test_more_workers_than_cores_is_found(configured: Any, script: Any) -> None:
    run, fine = (configured(data={"use": "digits", "workers": n}) for n in (16, 4))
    for case_run in (run, fine):
        case_run.start(2, gpus(), strategy="ddp", cores=8)
        start_ranks(case_run, 2)
    problem = run_problems(run)["workers-too-many"]
    assert "32 worker processes read data on 8 cores" in problem.message
    assert problem.cure == {"data.workers": 4} and problem.evidence[0].path == "config.toml"
    script_run, few = script(), script()
    for case_run, workers in ((script_run, 16), (few, 4)):
        case_run.start_script(2, cores=8)
        for rank in range(2):
            case_run.observe_rank(rank, world_size=2, loader_workers=workers)
    assert "num_workers=4" in (run_problems(script_run)["workers-too-many"].advice or "")
    assert run_problems(fine) == run_problems(few) == {}


def gpu_memory(run: WrittenRun, peak: int, reserved: int, used: int) -> None:
    run.writer("rank-0").write(
        events.Memory(
            rank=0,
            step=5,
            source=events.MEASURED_ON_GPU,
            devices=[events.DeviceMemory(0, peak // 2, peak, reserved_bytes=reserved)],
        )
    )
    sample = events.Sample(devices=[events.DeviceSample(device=0, used_bytes=used)], interval_s=1.0)
    run.writer("sampler").write(sample)


def test_nearly_full_memory_is_found(configured: Any) -> None:
    full, cached, rehearsed, roomy = (
        configured({"use": "single"}, devices={"use": "cpu:1"}, rehearsal={"capacity": "1GiB"})
        for _ in range(4)
    )
    for case_run in (full, cached):
        case_run.start(1, device_infos(1, "gpu", 80 * GIB), strategy="single")
    gpu_memory(full, 75 * GIB, 76 * GIB, 78 * GIB)
    gpu_memory(cached, 30 * GIB, 77 * GIB, 79 * GIB)  # torch keeps what it does not need
    for case_run, num_bytes in ((rehearsed, 1000 * MIB), (roomy, 800 * MIB)):
        case_run.start(1, device_infos(1), strategy="single")
        case_run.write_memory(0, 1, {0: {"activations": num_bytes}})
    problem = run_problems(full)["memory-tight"]
    assert problem.message.startswith("GPU 0's memory is 96 % full") and problem.cure == {
        "train.accumulate": 2
    }
    assert problem.evidence[0].text == "77.0 GiB of 80.0 GiB, in step 5"
    assert run_problems(rehearsed)["memory-tight"].message.startswith("Virtual 0's memory is 98 % full")
    assert run_problems(cached) == run_problems(roomy) == {}


def write_training(
    run: WrittenRun, losses: Sequence[float], lr: Sequence[float] | None = None, **more: Any
) -> None:
    num = len(losses)
    run.start(1, steps=num, strategy="single", **more)
    run.writer("rank-0").write(
        events.Steps(
            rank=0,
            first=1,
            loss_sum=list(losses),
            count=[1.0] * num,
            lr=list(lr or [1e-3] * num),
            samples=[16] * num,
            step_s=[0.01] * num,
            ended=[run.started + 0.01 * (at + 1) for at in range(num)],
        )
    )


def flat_losses(num: int, at: float = 2.3, scatter: float = 0.03) -> list[float]:
    return [float(loss) for loss in NOISE.normal(at, scatter, num)]


def slightly_rising(losses: Sequence[float]) -> list[float]:
    """A little above its beginning at the end, so that chance has no say."""
    return [loss + 0.02 * at / len(losses) for at, loss in enumerate(losses)]


def test_a_loss_that_does_not_fall_is_found(configured: Any) -> None:
    warm_up = [1e-6 * (at + 1) for at in range(1000)]
    cases: dict[str, tuple[Sequence[float], Sequence[float] | None]] = {
        "falls": (falling_losses(1000), None),
        "falls a little": ([loss - 0.1 * at / 1000 for at, loss in enumerate(flat_losses(1000))], None),
        "is near zero": ([loss / 1000 for loss in slightly_rising(flat_losses(1000))], None),
        "scatters too much to know": (slightly_rising(flat_losses(1000, 2.3, 1.0)), None),
        "is young": (slightly_rising(flat_losses(250)), None),
        "warms up": (slightly_rising(flat_losses(1000)), warm_up),
    }
    run = configured({"use": "single"})
    write_training(run, slightly_rising(flat_losses(1000)))
    problem = run_problems(run)["loss-not-falling"]
    assert problem.message == "The loss has not fallen in 1000 steps."
    assert "in steps 1 to 100, 2.3" in problem.evidence[0].text
    for name, (losses, rates) in cases.items():
        healthy = configured({"use": "single"})
        write_training(healthy, losses, rates)
        assert run_problems(healthy) == {}, name


def test_adversarial_losses_need_not_fall(script: Any) -> None:
    one_model, two_models = script(), script()
    for run, others in ((one_model, {}), (two_models, {"Adam": 500})):
        run.start_script()
        run.observe_rank(other_optimizers=others)
        run.write_step_line(0, 1, slightly_rising(flat_losses(500)), step_s=0.01)
    assert set(run_problems(one_model)) == {"loss-not-falling"} and run_problems(two_models) == {}


def test_an_exploding_loss_is_found(configured: Any) -> None:
    run = configured({"use": "single"})
    write_training(run, [*falling_losses(700, end=0.3), *(0.3 + 0.02 * at for at in range(300))])
    problem = run_problems(run)["loss-exploding"]
    assert "times its minimum" in problem.message and problem.cure == {"train.clip_norm": 1.0}
    healed = {
        "an old spike": [*falling_losses(700), 40.0, 40.0, *flat_losses(298, 0.4)],
        "a new spike": [*falling_losses(900), 400.0, 400.0, *flat_losses(98, 0.4)],
        "more than next to nothing": [2.3 * 0.97**at + 0.001 for at in range(700)]
        + flat_losses(300, 0.02, 0.001),
    }
    for name, losses in healed.items():
        fine = configured({"use": "single"})
        write_training(fine, losses)
        assert run_problems(fine) == {}, name


def test_an_unreadable_configuration_gets_no_changes(
    configured: Any,
) -> None:
    run = configured({"use": "single"})
    write_training(run, [*falling_losses(700, end=0.3), *(0.3 + 0.02 * at for at in range(300))])
    with run.dir.config_file.open("a") as file:
        file.write("\nof_a_newer_version = true\n")
    problem = run_problems(run)["loss-exploding"]
    assert problem.cure == {} and "train.clip_norm" in str(problem.advice)


def test_zero_gradients_are_found(script: Any) -> None:
    run, fine, late = script(), script(), script()
    for case_run in (run, fine, late):
        case_run.start_script()
        case_run.observe_rank()
    run.write_step_line(0, 1, slightly_rising(flat_losses(400)), step_s=0.01, grad_norm=0.0)
    fine.write_step_line(0, 1, falling_losses(400), step_s=0.01, grad_norm=0.5)
    late.write_step_line(0, 1, falling_losses(400), step_s=0.01, grad_norm=0.5)
    late.write_step_line(0, 401, [0.4] * 400, step_s=0.01, grad_norm=0.0)
    problems = run_problems(run)
    assert list(problems) == ["no-gradient"], "that the loss does not fall follows from it"
    assert problems["no-gradient"].evidence[0].text.endswith("in every sampled step from 201 to 400")
    assert set(run_problems(late)) == {"no-gradient"} and run_problems(fine) == {}


def test_a_scaler_that_skips_many_steps_is_found(script: Any) -> None:
    run, healthy_run = script(), script()
    for case_run, skipped in ((run, 60), (healthy_run, 8)):
        case_run.start_script()
        case_run.observe_rank(skipped=skipped, precision="fp16")
        case_run.write_step_line(0, 1, falling_losses(240), step_s=0.01)
    problem = run_problems(run)["gradient-overflow"]
    assert problem.message == "The gradient scaler skips 20 % of the steps."
    assert "60 steps skipped" in problem.evidence[0].text and "bf16" in (problem.advice or "")
    assert run_problems(healthy_run) == {}


def test_many_skipped_fp16_steps_are_found(configured: Any) -> None:
    run, healthy_run = (configured(train={"precision": "fp16"}, devices={"use": "gpu:0,1"}) for _ in range(2))
    for case_run, every in ((run, 10), (healthy_run, 100)):
        write_training(case_run, falling_losses(400))
        scale, writer = 2.0**16, case_run.writer("rank-0")
        writer.write(events.LossScale(rank=0, step=1, scale=scale))
        for step in range(every, 400, every):
            scale /= 2
            writer.write(events.LossScale(rank=0, step=step + 1, scale=scale))
        writer.write(events.LossScale(rank=0, step=400, scale=2 * scale))
    problem = run_problems(run)["gradient-overflow"]
    assert problem.message == "The gradient scaler skips 10 % of the steps."
    assert "39 steps skipped" in problem.evidence[0].text and "361 taken" in problem.evidence[0].text
    assert problem.cure == {"train.precision": "bf16"}
    assert run_problems(healthy_run) == {}
    facts = rankdeck_in_process("show", run.path, "--json", exit_code=0).json
    assert facts["loss_scaling"] == {"scale": 2.0**-22, "num_left_out": 39}
    assert [finding["code"] for finding in facts["findings"]] == ["gradient-overflow"]
    report = rankdeck_in_process("show", run.path, exit_code=0)
    assert "skipped steps: 39" in report.out and problem.message in report.err


def test_a_zero_learning_rate_is_found(configured: Any, script: Any) -> None:
    run, decays, groups = configured({"use": "single"}), configured({"use": "single"}), script()
    write_training(run, falling_losses(1000), [1e-3] * 800 + [0.0] * 200)
    write_training(decays, falling_losses(1000), [1e-3 * (999 - at) / 999 for at in range(1000)])
    groups.start_script()
    groups.observe_rank(parameter_groups=[{"lr": 0.0}, {"lr": 0.1}])
    groups.write_step_line(0, 1, falling_losses(400), step_s=0.01, lr=0.0)
    problem = run_problems(run)["learning-rate-zero"]
    assert problem.message == "The learning rate is 0: steps do not change the parameters."
    assert problem.evidence[0].text == "in every step from 901 to 1000 whose learning rate is known"
    assert run_problems(decays) == run_problems(groups) == {}


def test_batch_norms_over_few_samples_are_found(configured: Any, script: Any) -> None:
    run, enough = configured(), configured()
    for case_run, num in ((run, 2), (enough, 16)):
        case_run.start(2, device_infos(2), strategy="ddp")
        message = phrase("Batch norms normalise over {num} samples at a time.", num=num)
        note = Problem(
            "batch-norm-differs", message, path="strategy.sync_batchnorm", advice="Set it.", severity="info"
        )
        case_run.writer("rank-0").write(events.ProblemRaised(problem=note))
    problem = run_problems(run)["batch-norm-tiny"]
    assert "over 2 samples" in problem.message and problem.cure == {"strategy.sync_batchnorm": True}
    script_run, split, large, without = (script() for _ in range(4))
    options = {"device_ids": [0, 1, 2, 3]}
    script_run.observe_rank(batch_norms=4, batch=2, model="nets:Net")
    split.observe_rank(batch_norms=4, batch=16, wrapper="DataParallel", wrapper_options=options)
    large.observe_rank(batch_norms=4, batch=16)
    without.observe_rank(batch_norms=0, batch=2)
    for case_run in (script_run, split, large, without):
        case_run.start_script()
    assert (
        "4 batch norms in nets:Net, each over 2 samples"
        in run_problems(script_run)["batch-norm-tiny"].evidence[0].text
    )
    assert "over 4 samples" in run_problems(split)["batch-norm-tiny"].message
    assert run_problems(enough) == run_problems(large) == run_problems(without) == {}


def test_same_samples_and_missing_set_epoch_are_found(script: Any) -> None:
    wrapper = "DistributedDataParallel"
    cases: dict[str, tuple[list[str | None], dict[str, Any]]] = {
        "the same": (["ab", "ab"], {"wrapper": wrapper}),
        "their own": (["ab", "cd"], {"wrapper": wrapper}),
        "not told": (["ab", None], {"wrapper": wrapper}),
        "told by none": ([None, None], {"wrapper": wrapper}),
        "in groups": (["ab", "ab"], {"wrapper": wrapper, "wrapper_options": {"process_group": "g"}}),
        "tensor parallel": (["ab", "ab"], {"wrapper": "fully_shard"}),
        "one by one": (["ab"], {"wrapper": wrapper}),
        "same order": (["ab", "cd"], {"wrapper": wrapper, "same_epochs": 2}),
    }
    problems_by_case = {}
    for name, (digests, facts) in cases.items():
        run = script()
        run.start_script(len(digests))
        for rank, digest in enumerate(digests):
            run.observe_rank(rank, world_size=len(digests), first_batches=digest, **facts)
        problems_by_case[name] = run_problems(run)
    same, order = problems_by_case.pop("the same"), problems_by_case.pop("same order")
    assert set(same) == {"same-data-on-all-ranks"} and set(order) == {"set-epoch-forgotten"}
    assert [evidence.path for evidence in same["same-data-on-all-ranks"].evidence] == [
        "events/rank-0.0.jsonl",
        "events/rank-1.0.jsonl",
    ]
    assert "set_epoch(epoch)" in (order["set-epoch-forgotten"].advice or "")
    assert all(not problems for problems in problems_by_case.values()), problems_by_case


def test_slow_saves_are_found(configured: Any) -> None:
    run, fine = (configured(train={"checkpoint_every": 20}) for _ in range(2))
    for case_run, seconds in ((run, 6.0), (fine, 1.0)):
        case_run.start(1, strategy="single")
        case_run.write_steps(0, 1, falling_losses(100), step_s=0.5)
        for step in (20, 40, 60, 80):
            saved = events.CheckpointSaved(step=step, num_bytes=9, seconds=seconds, reason="schedule")
            case_run.writer("rank-0").write(saved)
    problem = run_problems(run)["saves-slow"]
    assert problem.message == "Saving checkpoints takes 48 % of the time."
    assert problem.cure == {"train.checkpoint_every": 200} and "4 checkpoints, 6.0 s each" in (
        problem.evidence[0].text
    )
    assert run_problems(fine) == {}


@pytest.mark.parametrize(
    "seconds, utilisation, speaks", [(90, 0.2, True), (90, 0.6, False), (30, 0.2, False)]
)
def test_idle_gpus_are_found(configured: Any, seconds: int, utilisation: float, speaks: bool) -> None:
    run, starved = configured(), configured()
    for case_run in (run, starved):
        case_run.start(2, gpus(), strategy="ddp", cores=8)
        start_ranks(case_run, 2)
        for rank in range(2):
            case_run.write_steps(rank, 1, falling_losses(9), step_s=0.5)
        lines: list[tuple[float, events.Event]] = [
            (
                case_run.started + second,
                events.Sample(
                    devices=[events.DeviceSample(device=at, utilisation=utilisation) for at in (0, 1)],
                    interval_s=1.0,
                ),
            )
            for second in range(seconds)
        ]
        write_backdated(case_run.path / "events" / "sampler.0.jsonl", lines)
    for step in range(1, 8):
        for rank in range(2):
            write_spans(starved, rank, step, 0.1, data=0.08, forward=0.02)
    problems = run_problems(run)
    assert set(problems) == ({"gpu-idle"} if speaks else set())
    if speaks:
        assert "GPU 0 20 %, GPU 1 20 %" in problems["gpu-idle"].evidence[0].text
    assert set(run_problems(starved)) == {"input-bound"}


def test_changes_that_the_configuration_rejects_are_dropped(configured: Any) -> None:
    first, second = (
        configured(
            {"use": "single"},
            devices={"use": "cpu:1"},
            rehearsal={"capacity": "1GiB"},
            train={"global_batch": batch},
        )
        for batch in (1, 2)
    )
    for run in (first, second):
        run.start(1, device_infos(1), strategy="single")
        run.write_memory(0, 1, {0: {"activations": 1000 * MIB}})
    assert [run_problems(run)["memory-tight"].cure for run in (first, second)] == [
        {},
        {"train.accumulate": 2},
    ]


def test_a_finding_keeps_its_text_while_it_holds(configured: Any) -> None:
    run = configured({"use": "dp"})
    run.start(1, device_infos(2), strategy="dp")
    now = [0.0]
    followed = FindingTracker(clock=lambda: now[0])
    config = run.dir.config()

    def messages(*, is_over: bool = False) -> list[str]:
        return [problem.message for problem in followed.check(RuleContext(run_state(run), config, is_over))]

    assert messages() == []
    run.write_memory(0, 1, {0: {"activations": 100 * MIB}, 1: {"activations": 10 * MIB}})
    first = messages()
    run.write_memory(0, 2, {0: {"activations": 200 * MIB}, 1: {"activations": 10 * MIB}})
    assert messages() == first, "it stands as it was read"
    now[0] = 61.0
    second = messages()
    assert second != first
    run.write_memory(0, 3, {0: {"activations": 300 * MIB}, 1: {"activations": 10 * MIB}})
    assert messages() == second
    assert messages(is_over=True) != second


def check_duration_s(run: Any, num: int) -> float:
    """The quickest of several looks at a fold of so many steps."""
    run.start_script(2, cores=8)
    for rank in range(2):
        run.observe_rank(rank, world_size=2, dataset="a:B", first_batches=str(rank), batch=16, batch_norms=1)
    state = run_state(run)
    steps = np.arange(1, num + 1, dtype=float)
    for first in range(0, num, 100_000):
        chunk = steps[first : first + 100_000]
        unit_column = np.ones_like(chunk)
        losses = 2.0 + 2.0 / np.sqrt(chunk)
        values = np.stack(
            [
                losses,
                unit_column,
                0.1 * unit_column,
                16 * unit_column,
                0.01 * unit_column,
                run.started + 0.01 * chunk,
                0 * unit_column,
                unit_column,
            ]
        )
        blocks = [(0, StepBlock(rank, first + 1, values, True)) for rank in range(2)]
        state.apply(Batch(steps=blocks))
    assert state.step == num
    followed, took_s = FindingTracker(), []
    for _ in range(20):
        start_s = time.perf_counter()
        assert followed.check(RuleContext(state)) == []
        took_s.append(time.perf_counter() - start_s)
    return min(took_s)


def test_check_time_does_not_grow_with_steps(script: Any) -> None:
    few_s, many_s = check_duration_s(script(), 10_000), check_duration_s(script(), 1_000_000)
    assert many_s < 4 * few_s


def test_why_prints_cause_evidence_and_command(configured: Any) -> None:
    run = configured(data={"use": "digits", "workers": 16})
    run.start(2, device_infos(2), strategy="ddp", cores=8)
    start_ranks(run, 2)
    cause = Problem("rank-exception", "ValueError: no", rank=1, last_lines=("Traceback",), advice="Mend it.")
    run.writer("supervisor").write(events.ProblemRaised(problem=cause))
    run.end("failed", 1)
    output = rankdeck_in_process("why", run.path, exit_code=0).out
    lines = output.splitlines()
    assert lines[:3] == ["rank 1: ValueError: no", "  | Traceback", "  Mend it."]
    assert "32 worker processes read data on 8 cores" in lines[3]
    assert lines[4] == "  data.workers = 16, for each of 2 ranks  (config.toml)"
    assert lines[6].strip().endswith("--set data.workers=4") and "rankdeck train" in lines[6]
    problems = rankdeck_in_process("why", run.path, "--json", exit_code=0).json["problems"]
    assert [problem["code"] for problem in problems] == ["rank-exception", "workers-too-many"]
    assert problems[1]["cure"] == {"data.workers": 4}
    assert problems[1]["evidence"][0]["path"] == "config.toml"


def test_why_finds_nothing_in_a_healthy_run(configured: Any) -> None:
    run = configured({"use": "single"})
    write_training(run, falling_losses(500))
    run.end()
    assert (
        rankdeck_in_process("why", run.path, exit_code=0).out
        == f"No problems were found in the records of {run.dir.name}.\n"
    )
    assert rankdeck_in_process("why", run.path, "--json", exit_code=0).json == {"problems": []}
    assert problems_and_findings(run.dir, run_state(run)) == []


def test_the_docs_pages_list_every_rule() -> None:
    pages = ("docs/why-is-it-slow.md", "docs/findings.md")
    page = "".join((CHECKOUT / name).read_text(encoding="utf-8") for name in pages)
    tables = re.findall(r"^\| *code *\|.*\n.*\n((?:\|.*\n)+)", page, re.M | re.I)
    codes = [line.split("|")[1].strip(" `") for table in tables for line in table.splitlines()]
    assert sorted(codes) == sorted(rule.code for rule in FINDING_RULES)
