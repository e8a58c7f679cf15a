"""A crash, a time-out, a refusal, a model that cannot be followed: each is one line, and the others stand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankdeck.config import RunConfig, from_text, load, presets
from rankdeck.config.gpu_models import GpuModel, parse_planned_gpus
from rankdeck.planner.candidates import Candidate, Target, TargetDevice, candidates_for, planning_cost
from rankdeck.planner.fake_values import KNOWN_RESULTS
from rankdeck.planner.pool import plan_candidates
from rankdeck.planner.rank_plan import RankPlan, plan_rank
from rankdeck.planner.samples import Samples
from rankdeck.run.plan_lines import PlanLine, group_equal_devices, plan_verdict_text
from tests.helpers import eager_gpt
from tests.helpers.waiting import scale_timeout

OWN = Path(eager_gpt.__file__)
MLP = """
model = { use = "mlp" }
data = { use = "synthetic" }
train = { global_batch = 16 }
"""
REHEARSAL = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)


def config(text: str = MLP) -> RunConfig:
    return from_text(text, folder=Path.cwd())


def own_model(model: str) -> RunConfig:
    return config(
        f"""
model = {{ use = "{OWN}:{model}" }}
data = {{ use = "synthetic" }}
train = {{ global_batch = 16 }}
""".replace('data = { use = "synthetic" }', 'data = { use = "digits" }')
    )


def test_a_crash_or_timeout_fails_one_line_only() -> None:
    def planner(config: RunConfig, rank: int, target: Target, samples: Samples) -> RankPlan:
        if config.strategy.use == "dp":
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        if config.strategy.use == "model":
            time.sleep(60)
        return plan_rank(config, rank, target, samples)

    rows = [Candidate("dp"), Candidate("model"), Candidate("single")]
    timeout_s = scale_timeout(3.0)
    lines = {
        line.strategy: line
        for line in plan_candidates(config(), rows, REHEARSAL, timeout_s=timeout_s, planner=planner)
    }
    assert lines["dp"].verdict == "cannot" and "SIGKILL" in (lines["dp"].reason or "")
    reason = lines["model"].reason or ""
    assert lines["model"].verdict == "cannot" and f"no result within {timeout_s:.0f} s" in reason
    assert "--timeout" in reason and "plan.timeout_s" in reason
    assert lines["single"].verdict == "fits" and lines["single"].devices[0].active_bytes > 0


def test_a_killed_process_fails_one_line() -> None:
    (line,) = plan_candidates(own_model("dying"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and "SIGKILL" in (line.reason or "")


def test_a_silent_exit_fails_one_line() -> None:
    (line,) = plan_candidates(own_model("leaving"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and "without a result (exit code 0)" in (line.reason or "")


def test_omissions_make_a_line_a_bound() -> None:
    (line,) = plan_candidates(own_model("reading"), [Candidate("single")], REHEARSAL)
    assert line.is_bound and line.devices[0].active_bytes > 0 and "LSTM" in (line.reason or "")
    compressed = Candidate("ddp", {"compress": "powersgd"})
    (line,) = plan_candidates(config(), [compressed], REHEARSAL)
    assert line.is_bound and line.devices and "gradient compression" in (line.reason or "")
    (line,) = plan_candidates(
        config(), [Candidate("ddp", {"compress": "powersgd", "sync": "ring"})], REHEARSAL
    )
    assert line.verdict == "fits" and not line.is_bound


def test_compile_is_rejected_or_ignored_as_in_a_run() -> None:
    base = config(MLP.replace("global_batch = 16", "global_batch = 16, compile = true"))
    lines = {
        line.strategy: line
        for line in plan_candidates(base, [Candidate("fsdp"), Candidate("ddp")], REHEARSAL)
    }
    assert lines["fsdp"].verdict == "cannot" and "train.compile" in (lines["fsdp"].reason or "")
    assert lines["ddp"].verdict == "fits" and "train.compile is ignored" in lines["ddp"].notes[-1]


def test_slices_of_unequal_length_are_planned_separately() -> None:
    """9 rows over 8 ranks are 2, 2, 2, 2, 1, and then nothing."""
    base = config(MLP.replace('"mlp" }', '"mlp", args = { hidden = [9] } }'))
    target = Target("rehearsal", (TargetDevice(None, None),) * 8, like_cuda=False)
    (line,) = plan_candidates(base, [Candidate("fsdp")], target)
    state_bytes = [device.by_kind["optimizer"] for device in line.devices]
    assert state_bytes[0] == state_bytes[3] > state_bytes[4] > state_bytes[5] == state_bytes[7]


def test_a_thousand_devices_need_few_planned_ranks() -> None:
    gpus = parse_planned_gpus("1024 x A100-80GB")
    assert gpus is not None
    devices = tuple(TargetDevice(gpu.name, gpu.total_bytes, 0, gpu) for gpu in gpus)
    target = Target("1024 x A100-80GB", devices, like_cuda=True)
    base = config(MLP.replace("global_batch = 16", "global_batch = 1024"))
    base = base.model_copy(update={"data": base.data.model_copy(update={"args": {"samples": 2048}})})
    lines = {
        line.strategy: line for line in plan_candidates(base, [Candidate("fsdp"), Candidate("dp")], target)
    }
    assert lines["fsdp"].verdict == "fits" and len(lines["fsdp"].devices) == 1024
    assert len(group_equal_devices(lines["fsdp"].devices)) < 8
    assert lines["dp"].verdict == "cannot" and "one machine" in (lines["dp"].reason or "")


def test_tf32_is_faster_on_gpus_that_support_it() -> None:
    base = config(
        MLP.replace("global_batch = 16", "global_batch = 2048")
        .replace('"mlp" }', '"mlp", args = { hidden = [8192, 8192] } }')
        .replace('"synthetic" }', '"synthetic", args = { samples = 2048 } }')
    )
    allowed = base.model_copy(update={"train": base.train.model_copy(update={"allow_tf32": True})})

    def slowest_s(base: RunConfig, name: str) -> float:
        (gpu,) = parse_planned_gpus(f"1 x {name}") or ()
        target = Target(name, (TargetDevice(name, gpu.total_bytes, 0, gpu),), like_cuda=True)
        (line,) = plan_candidates(base, [Candidate("single")], target)
        assert line.step is not None, line.reason
        return line.step.high_s

    assert slowest_s(base, "A100-80GB") > 3 * slowest_s(allowed, "A100-80GB")
    assert slowest_s(base, "T4") == slowest_s(allowed, "T4")


def test_a_rejected_combination_is_a_line_with_its_reason() -> None:
    base = from_text(MLP.replace("16", "15"), folder=Path.cwd())
    lines = {
        line.strategy: line
        for line in plan_candidates(base, [Candidate("ddp"), Candidate("single")], REHEARSAL)
    }
    assert lines["ddp"].verdict == "cannot" and "does not divide" in (lines["ddp"].reason or "")
    refusal = lines["ddp"].refusal
    assert refusal is not None and (refusal.path, refusal.advice) == ("train.global_batch", "Use 14 or 16.")
    assert lines["single"].verdict == "fits" and lines["single"].refusal is None


def test_an_indivisible_batch_fails_only_its_strategy() -> None:
    text = MLP.replace("16", "15") + 'strategy = "ddp"'
    base = from_text(text, folder=Path.cwd(), to_plan=True)
    rows = candidates_for(base, "single,ddp", 2)
    lines = {line.label: line for line in plan_candidates(base, rows, REHEARSAL)}
    assert lines["single"].verdict == "fits"
    assert lines["ddp"].configured and "does not divide" in (lines["ddp"].reason or "")


def test_a_refusal_includes_its_fix() -> None:
    base = from_text(MLP.replace("mlp", "gpt").replace("synthetic", "digits"), folder=Path.cwd())
    (line,) = plan_candidates(base, [Candidate("pipeline")], REHEARSAL)
    assert line.refusal is not None and line.refusal.cure == {"data.use": "text"}
    assert line.refusal.message.startswith("Model gpt cannot be trained on data digits") and not line.devices
    for model in ("endless", "raising"):
        (line,) = plan_candidates(own_model(model), [Candidate("single")], REHEARSAL)
        assert line.verdict == "cannot" and line.refusal is None, model


def test_a_data_dependent_model_gets_a_lower_bound() -> None:
    (line,) = plan_candidates(own_model("asking"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "fits" and line.is_bound and line.bound == "least"
    assert (
        plan_verdict_text(line) == "may fit" and "the branches that the first samples take" in line.notes[0]
    )
    numel = 64 * 10 + 10
    assert line.devices[0].active_bytes > 16 * numel


def test_a_lower_bound_over_capacity_does_not_fit() -> None:
    gpu = GpuModel("tiny", 2**20)
    target = Target("1 x tiny", (TargetDevice("tiny", 2**20, 0, gpu),), like_cuda=True)
    (line,) = plan_candidates(own_model("asking"), [Candidate("single")], target)
    assert line.verdict == "does-not-fit"


def test_an_endless_model_gets_its_persistent_memory() -> None:
    """Too large to be computed, and the same answer each time never ends its loop."""
    (line,) = plan_candidates(own_model("endless"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and line.is_bound
    assert "reads a tensor's value" in (line.reason or "") and "eager_gpt.py" in (line.reason or "")


def test_memory_that_the_allocator_can_release_counts_as_free() -> None:
    """Without a limit this model's segments add up to more than it can do with."""
    base = load(presets.presets_folder() / "gpt-ddp.toml")
    gpu = GpuModel("small", 2**34)

    def planned(strategy: str, batch: int, *capacities_bytes: int) -> PlanLine:
        devices = tuple(TargetDevice("small", capacity, 0, gpu) for capacity in capacities_bytes)
        rows = [Candidate(strategy, changes={"train.global_batch": batch})]
        (line,) = plan_candidates(base, rows, Target("small", devices, like_cuda=True))
        return line

    free = planned("single", 23, 2**34).devices[0]
    assert free.needed_bytes is None
    less = planned("single", 23, free.total_bytes - 2**21)
    assert less.verdict == "tight" and less.devices[0].total_bytes <= free.total_bytes - 2**21
    far_less = planned("single", 23, free.active_bytes + free.constants_bytes)
    assert far_less.verdict == "does-not-fit", "pieces that cannot be put together are not given back"

    roomy, full = planned("ddp", 46, 2**34, free.total_bytes).devices
    assert roomy.needed_bytes is None and full.needed_bytes is not None, (
        "equal ranks, and devices that are not"
    )
    assert full.active_bytes < full.needed_bytes - full.constants_bytes < 1.2 * full.active_bytes


def test_the_configured_candidate_comes_first() -> None:
    base = from_text(MLP + 'strategy = { use = "pipeline", schedule = "gpipe" }', folder=Path.cwd())
    rows = candidates_for(base, None, 4)
    assert rows[0].configured and rows[0].label == "pipeline, schedule = gpipe"
    labels = [row.label for row in rows]
    assert len(set(labels)) == len(labels) and "single" in labels
    assert {row.strategy for row in candidates_for(base, "ddp,dp", 4)} == {"ddp", "dp"}
    (candidate,) = candidates_for(base, "own", 4)
    assert candidate == rows[0] and candidate.configured, "the configuration's alone"


def test_known_results_are_shared_between_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows in children of their own; the second one asks only what the first one had no need of."""
    counts = []

    def planner(config: RunConfig, rank: int, target: Target, samples: Samples) -> RankPlan:
        before = len(KNOWN_RESULTS)
        needs = plan_rank(config, rank, target, samples)
        needs.notes.append(f"{before} known, {len(KNOWN_RESULTS) - before} asked")
        return needs

    monkeypatch.setattr("rankdeck.planner.pool.MAX_CHILDREN", 1)
    KNOWN_RESULTS.clear()
    for line in plan_candidates(
        config(), [Candidate("single"), Candidate("single")], REHEARSAL, planner=planner
    ):
        num_known, new = (int(word) for word in line.notes[-1].split() if word.isdigit())
        counts.append((num_known, new))
    (no_known, first), (num_known, second) = counts
    assert no_known == second == 0 and num_known == first > 20


def test_candidates_are_sorted_by_planning_cost() -> None:
    base = from_text(MLP + 'strategy = { use = "pipeline", schedule = "gpipe" }', folder=Path.cwd())
    four = Target("rehearsal", (TargetDevice(None, None),) * 4, like_cuda=False)
    rows = [
        row.make_config(base, four) for row in candidates_for(base, "pipeline,fsdp,dp,ddp,single,model", 4)
    ]
    rows.sort(key=lambda row: planning_cost(row, 4))
    used = [row.strategy.use for row in rows]
    assert used[:2] == ["single", "model"] and set(used[2:6]) == {"ddp", "fsdp"}
    assert used[6:8] == ["dp", "dp"] and set(used[8:]) == {"pipeline"}


@pytest.mark.parametrize("name", ["dpp", "all,dp"])
def test_an_unknown_strategy_is_rejected(name: str) -> None:
    from rankdeck.base.errors import ConfigError

    with pytest.raises(ConfigError, match="is not a strategy"):
        candidates_for(config(), name, 4)
