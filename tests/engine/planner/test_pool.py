"""A crash, a time-out, a refusal, a model that cannot be followed: each is one line, and the others stand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankdeck.config import RunConfig, from_text, load, presets
from rankdeck.config.gpu_models import GpuModel, parse_planned
from rankdeck.planner.candidates import Candidate, Target, TargetDevice, candidates_for, effort
from rankdeck.planner.figures import RankNeeds, plan_rank
from rankdeck.planner.pool import plan_lines_of
from rankdeck.planner.samples import Samples
from rankdeck.planner.values import ANSWERED
from rankdeck.run.plan_lines import PlanLine, alike, words_of
from tests.helpers import eager_gpt
from tests.helpers.waiting import with_load

OWN = Path(eager_gpt.__file__)
MLP = """
model = { use = "mlp" }
data = { use = "synthetic" }
train = { global_batch = 16 }
"""
REHEARSAL = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)


def config(text: str = MLP) -> RunConfig:
    return from_text(text, folder=Path.cwd())


def own(model: str) -> RunConfig:
    return config(
        f"""
model = {{ use = "{OWN}:{model}" }}
data = {{ use = "synthetic" }}
train = {{ global_batch = 16 }}
""".replace('data = { use = "synthetic" }', 'data = { use = "digits" }')
    )


def test_a_crash_and_a_time_out_are_lines_and_the_others_stand() -> None:
    def planner(config: RunConfig, rank: int, target: Target, samples: Samples) -> RankNeeds:
        if config.strategy.use == "dp":
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        if config.strategy.use == "model":
            time.sleep(60)
        return plan_rank(config, rank, target, samples)

    rows = [Candidate("dp"), Candidate("model"), Candidate("single")]
    timeout_s = with_load(3.0)
    found = {
        line.strategy: line
        for line in plan_lines_of(config(), rows, REHEARSAL, timeout_s=timeout_s, planner=planner)
    }
    assert found["dp"].verdict == "cannot" and "SIGKILL" in (found["dp"].reason or "")
    reason = found["model"].reason or ""
    assert found["model"].verdict == "cannot" and f"no answer after {timeout_s:.0f} s" in reason
    assert "--timeout" in reason and "plan.timeout_s" in reason
    assert found["single"].verdict == "fits" and found["single"].devices[0].active_bytes > 0


def test_a_factory_that_kills_its_process_is_one_line() -> None:
    (line,) = plan_lines_of(own("dying"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and "SIGKILL" in (line.reason or "")


def test_a_factory_that_leaves_without_a_word_is_one_line() -> None:
    (line,) = plan_lines_of(own("leaving"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and "without an answer (exit code 0)" in (line.reason or "")


def test_what_is_left_out_makes_a_line_a_bound() -> None:
    (line,) = plan_lines_of(own("reading"), [Candidate("single")], REHEARSAL)
    assert line.is_bound and line.devices[0].active_bytes > 0 and "LSTM" in (line.reason or "")
    compressed = Candidate("ddp", {"compress": "powersgd"})
    (line,) = plan_lines_of(config(), [compressed], REHEARSAL)
    assert line.is_bound and line.devices and "compresses" in (line.reason or "")
    (line,) = plan_lines_of(config(), [Candidate("ddp", {"compress": "powersgd", "sync": "ring"})], REHEARSAL)
    assert line.verdict == "fits" and not line.is_bound


def test_compile_is_refused_where_a_run_refuses_it_and_left_out_elsewhere() -> None:
    base = config(MLP.replace("global_batch = 16", "global_batch = 16, compile = true"))
    found = {
        line.strategy: line for line in plan_lines_of(base, [Candidate("fsdp"), Candidate("ddp")], REHEARSAL)
    }
    assert found["fsdp"].verdict == "cannot" and "train.compile" in (found["fsdp"].reason or "")
    assert found["ddp"].verdict == "fits" and "train.compile is left out" in found["ddp"].notes[-1]


def test_slices_of_unequal_length_are_each_planned() -> None:
    """9 rows over 8 ranks are 2, 2, 2, 2, 1, and then nothing."""
    base = config(MLP.replace('"mlp" }', '"mlp", args = { hidden = [9] } }'))
    target = Target("rehearsal", (TargetDevice(None, None),) * 8, like_cuda=False)
    (line,) = plan_lines_of(base, [Candidate("fsdp")], target)
    held = [device.by_kind["optimizer"] for device in line.devices]
    assert held[0] == held[3] > held[4] > held[5] == held[7]


def test_a_thousand_devices_are_planned_by_ranks_that_differ() -> None:
    gpus = parse_planned("1024 x A100-80GB")
    assert gpus is not None
    devices = tuple(TargetDevice(gpu.name, gpu.total_bytes, 0, gpu) for gpu in gpus)
    target = Target("1024 x A100-80GB", devices, like_cuda=True)
    base = config(MLP.replace("global_batch = 16", "global_batch = 1024"))
    base = base.model_copy(update={"data": base.data.model_copy(update={"args": {"samples": 2048}})})
    found = {
        line.strategy: line for line in plan_lines_of(base, [Candidate("fsdp"), Candidate("dp")], target)
    }
    assert found["fsdp"].verdict == "fits" and len(found["fsdp"].devices) == 1024
    assert len(alike(found["fsdp"].devices)) < 8
    assert found["dp"].verdict == "cannot" and "one machine" in (found["dp"].reason or "")


def test_tf32_is_faster_where_it_is_allowed_and_a_gpu_has_it() -> None:
    base = config(
        MLP.replace("global_batch = 16", "global_batch = 2048")
        .replace('"mlp" }', '"mlp", args = { hidden = [8192, 8192] } }')
        .replace('"synthetic" }', '"synthetic", args = { samples = 2048 } }')
    )
    allowed = base.model_copy(update={"train": base.train.model_copy(update={"allow_tf32": True})})

    def slowest_s(base: RunConfig, name: str) -> float:
        (gpu,) = parse_planned(f"1 x {name}") or ()
        target = Target(name, (TargetDevice(name, gpu.total_bytes, 0, gpu),), like_cuda=True)
        (line,) = plan_lines_of(base, [Candidate("single")], target)
        assert line.step is not None, line.reason
        return line.step.high_s

    assert slowest_s(base, "A100-80GB") > 3 * slowest_s(allowed, "A100-80GB")
    assert slowest_s(base, "T4") == slowest_s(allowed, "T4")


def test_a_refused_combination_is_a_line_with_the_reason() -> None:
    base = from_text(MLP.replace("16", "15"), folder=Path.cwd())
    found = {
        line.strategy: line
        for line in plan_lines_of(base, [Candidate("ddp"), Candidate("single")], REHEARSAL)
    }
    assert found["ddp"].verdict == "cannot" and "does not divide" in (found["ddp"].reason or "")
    refusal = found["ddp"].refusal
    assert refusal is not None and (refusal.path, refusal.advice) == ("train.global_batch", "Use 14 or 16.")
    assert found["single"].verdict == "fits" and found["single"].refusal is None


def test_a_batch_that_the_chosen_strategy_cannot_divide_stops_no_other_row() -> None:
    text = MLP.replace("16", "15") + 'strategy = "ddp"'
    base = from_text(text, folder=Path.cwd(), to_plan=True)
    rows = candidates_for(base, "single,ddp", 2)
    found = {line.label: line for line in plan_lines_of(base, rows, REHEARSAL)}
    assert found["single"].verdict == "fits"
    assert found["ddp"].configured and "does not divide" in (found["ddp"].reason or "")


def test_what_a_run_would_refuse_is_told_with_its_fix_and_a_planner_that_gives_up_refuses_nothing() -> None:
    base = from_text(MLP.replace("mlp", "gpt").replace("synthetic", "digits"), folder=Path.cwd())
    (line,) = plan_lines_of(base, [Candidate("pipeline")], REHEARSAL)
    assert line.refusal is not None and line.refusal.cure == {"data.use": "text"}
    assert line.refusal.message.startswith("Model gpt cannot read data digits") and not line.devices
    for model in ("endless", "raising"):
        (line,) = plan_lines_of(own(model), [Candidate("single")], REHEARSAL)
        assert line.verdict == "cannot" and line.refusal is None, model


def test_a_model_that_looks_at_values_gets_a_lower_bound_that_may_fit() -> None:
    (line,) = plan_lines_of(own("asking"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "fits" and line.is_bound and line.bound == "least"
    assert words_of(line) == "may fit" and "At least this much in a step" in line.notes[0]
    numel = 64 * 10 + 10
    assert line.devices[0].active_bytes > 16 * numel


def test_what_is_too_much_for_certain_does_not_fit() -> None:
    gpu = GpuModel("tiny", 2**20)
    target = Target("1 x tiny", (TargetDevice("tiny", 2**20, 0, gpu),), like_cuda=True)
    (line,) = plan_lines_of(own("asking"), [Candidate("single")], target)
    assert line.verdict == "does-not-fit"


def test_a_model_that_asks_without_end_gives_what_is_certain_and_says_where() -> None:
    """Too large to be computed, and the same answer each time never ends its loop."""
    (line,) = plan_lines_of(own("endless"), [Candidate("single")], REHEARSAL)
    assert line.verdict == "cannot" and line.is_bound
    assert "reads the value of a tensor" in (line.reason or "") and "eager_gpt.py" in (line.reason or "")


def test_what_the_allocator_would_give_back_is_room() -> None:
    """Without a limit this model's segments add up to more than it can do with."""
    base = load(presets.folder() / "gpt-ddp.toml")
    gpu = GpuModel("small", 2**34)

    def planned(strategy: str, batch: int, *capacities_bytes: int) -> PlanLine:
        devices = tuple(TargetDevice("small", capacity, 0, gpu) for capacity in capacities_bytes)
        rows = [Candidate(strategy, changes={"train.global_batch": batch})]
        (line,) = plan_lines_of(base, rows, Target("small", devices, like_cuda=True))
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


def test_rows_come_once_with_the_configurations_own_first() -> None:
    base = from_text(MLP + 'strategy = { use = "pipeline", schedule = "gpipe" }', folder=Path.cwd())
    rows = candidates_for(base, None, 4)
    assert rows[0].configured and rows[0].label == "pipeline, schedule = gpipe"
    labels = [row.label for row in rows]
    assert len(set(labels)) == len(labels) and "single" in labels
    assert {row.strategy for row in candidates_for(base, "ddp,dp", 4)} == {"ddp", "dp"}
    (own,) = candidates_for(base, "own", 4)
    assert own == rows[0] and own.configured, "the configuration's alone"


def test_what_torch_answered_to_one_row_need_not_be_asked_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows in children of their own; the second one asks only what the first one had no need of."""
    asked = []

    def planner(config: RunConfig, rank: int, target: Target, samples: Samples) -> RankNeeds:
        before = len(ANSWERED)
        needs = plan_rank(config, rank, target, samples)
        needs.notes.append(f"{before} known, {len(ANSWERED) - before} asked")
        return needs

    monkeypatch.setattr("rankdeck.planner.pool.MOST_AT_ONCE", 1)
    ANSWERED.clear()
    for line in plan_lines_of(
        config(), [Candidate("single"), Candidate("single")], REHEARSAL, planner=planner
    ):
        known, new = (int(word) for word in line.notes[-1].split() if word.isdigit())
        asked.append((known, new))
    (no_known, first), (known, second) = asked
    assert no_known == second == 0 and known == first > 20


def test_the_quickest_to_plan_come_first() -> None:
    base = from_text(MLP + 'strategy = { use = "pipeline", schedule = "gpipe" }', folder=Path.cwd())
    four = Target("rehearsal", (TargetDevice(None, None),) * 4, like_cuda=False)
    rows = [row.config(base, four) for row in candidates_for(base, "pipeline,fsdp,dp,ddp,single,model", 4)]
    rows.sort(key=lambda row: effort(row, 4))
    used = [row.strategy.use for row in rows]
    assert used[:2] == ["single", "model"] and set(used[2:6]) == {"ddp", "fsdp"}
    assert used[6:8] == ["dp", "dp"] and set(used[8:]) == {"pipeline"}


@pytest.mark.parametrize("name", ["dpp", "all,dp"])
def test_an_unknown_strategy_is_refused(name: str) -> None:
    from rankdeck.base.errors import ConfigError

    with pytest.raises(ConfigError, match="is not a strategy"):
        candidates_for(config(), name, 4)
