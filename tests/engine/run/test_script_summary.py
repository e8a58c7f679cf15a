"""A run of a person's own script summed up: what was seen of it, and nothing that was not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.planner.accuracy import compare_with_measured, predict_run
from rankdeck.run.row import read_info, row_json
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import find_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    run = WrittenScript(tmp_path / "runs", config={"args": ["--lr", "0.1"], "ranks": 2})
    run.start_script(2)
    yield run
    run.lose()


def write_memory(run: WrittenScript, rank: int, source: str, **by_device: dict[str, int]) -> None:
    run.writer(f"rank-{rank}").write(
        events.Memory(
            rank=rank,
            step=3,
            source=source,
            devices=[
                events.DeviceMemory(
                    device=int(name[1:]),
                    live_bytes=sum(kinds.values()),
                    peak_bytes=sum(kinds.values()),
                    live_by_kind=kinds,
                    peak_by_kind=None if source == events.OWNERS_SEEN else kinds,
                )
                for name, kinds in by_device.items()
            ],
        )
    )


def test_the_summary_has_the_observed_facts(run: WrittenScript) -> None:
    for rank in (0, 1):
        run.observe_rank(rank, world_size=2, wrapper="DistributedDataParallel", optimizer="torch.optim:AdamW")
        run.write_step_line(rank, 1, [4.0, None, 2.0, None], samples=8, wait_s=0.1)
        calls = events.Collectives(rank=rank, step=4, calls={"all_reduce": 2}, num_bytes={}, seconds={})
        run.writer(f"rank-{rank}").write(calls)
        run.writer(f"rank-{rank}").write(calls)
    run.write_logged(0, steps=[1, 2], accuracy=[0.5, 0.75])
    run.end_script()
    facts = summarize(run.dir).facts()
    assert (facts["run_source"], facts["outcome"], facts["script_status"]) == ("script", "completed", 0)
    assert facts["script"] == {
        "run": "train.py",
        "kind": "file",
        "args": ["--lr", "0.1"],
        "folder": str(run.path.parent.parent),
        "python": "/usr/bin/python3",
        "ranks": 2,
        "observe": "light",
    }
    assert (facts["strategy"], facts["options"], facts["steps_planned"]) == (None, {}, None)
    assert (facts["steps"], facts["loss"], facts["loss_step"]) == (4, {"first": 4.0, "last": 2.0}, 3)
    assert facts["steps_per_s"] == pytest.approx(2.0) and facts["samples_per_s"] == pytest.approx(32.0)
    assert facts["wait_share"] == pytest.approx(0.2)
    assert facts["first_step_s"] == pytest.approx(0.5)
    assert facts["observed"]["wrapper"] == "DistributedDataParallel"
    assert [rank["steps"] for rank in facts["observed"]["ranks"]] == [4, 4]
    assert facts["metrics"] == {"accuracy": {"last": 0.75, "step": 2, "count": 2, "through": "rankdeck"}}
    assert [rank["calls"] for rank in facts["collectives"]] == [{"all_reduce": 4}] * 2
    assert facts["notes"] == [] and facts["problems"] == []
    json.dumps(facts, allow_nan=False)


def test_unobserved_facts_are_absent(run: WrittenScript) -> None:
    run.end_script()
    facts = summarize(run.dir).facts()
    unknown = ("strategy", "samples_per_s", "steps_per_s", "wait_share", "observed", "collectives", "comm")
    assert all(facts[key] is None for key in (*unknown, "loss_step", "first_step_s", "source", "evaluation"))
    assert facts["loss"] == {"first": None, "last": None} and facts["metrics"] == {}
    assert facts["notes"] == ["no optimizer step was observed"]


def test_a_rank_with_lost_steps_is_counted(run: WrittenScript) -> None:
    """A process is a rank once it has stepped; `os._exit` may follow before anything is written."""
    run.observe_rank(0)
    assert list(summarize(run.dir).facts()["notes"]) == ["no optimizer step has been observed yet"]
    run.end_script()
    assert summarize(run.dir).facts()["notes"] == ["it ended before its first steps were recorded"]


def test_a_configured_run_has_the_same_keys(run: WrittenScript, tmp_path: Path) -> None:
    run.end_script()
    configured = WrittenRun(tmp_path / "runs")
    configured.start(1, steps=2)
    configured.write_steps(0, 1, [2.0, 1.0])
    configured.end()
    facts = summarize(configured.dir).facts()
    assert set(facts) == set(summarize(run.dir).facts())
    assert (facts["run_source"], facts["script"], facts["script_status"]) == ("configuration", None, None)
    assert (facts["observed"], facts["metrics"], facts["notes"]) == (None, {}, [])


def test_notes_list_disabled_parts_and_differences(run: WrittenScript) -> None:
    off = {"loss": "Tensor.backward is not ours"}
    run.observe_rank(0, parts=off, skipped=1, other_optimizers={"torch.optim.sgd:SGD": 40})
    run.observe_rank(1, parts=off | {"memory": "no owners"}, not_finite=7)
    run.write_step_line(0, 1, [1.0] * 10)
    run.write_step_line(1, 1, [1.0] * 3)
    running = summarize(run.dir).facts()
    assert (running["not_finite"], running["notes"][-1][:16]) == (7, "SGD also stepped")
    run.end_script()
    assert summarize(run.dir).facts()["notes"] == [
        "the observer's part loss is off: Tensor.backward is not ours",
        "the observer's part memory is off on rank 1: no owners",
        "the loss of rank 1 was not finite in step 7",
        "a gradient scaler skipped 1 step",
        "SGD also stepped 40 times, in addition to the main optimizer",
        "ranks took different numbers of steps: rank 0 10, rank 1 3",
    ]


def test_ranks_of_a_failed_run_may_end_in_different_steps(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0] * 10)
    run.write_step_line(1, 1, [1.0] * 3)
    run.end_script(1)
    assert summarize(run.dir).facts()["notes"] == []


def test_the_time_to_the_first_step_is_of_the_first_attempt(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0, 1.0])
    run.start_script(2, attempt=1)
    run.write_step_line(0, 1, [1.0, 1.0], attempt=1, late_s=60.0)
    assert summarize(run.dir).facts()["first_step_s"] == pytest.approx(0.5)


def test_the_wait_share_without_a_loader_is_unknown(run: WrittenScript) -> None:
    run.write_step_line(0, 1, [1.0] * 4, wait_s=0.0)
    assert summarize(run.dir).facts()["wait_share"] is None
    run.observe_rank(1, dataset="torch.utils.data:TensorDataset")
    run.write_step_line(1, 1, [1.0] * 4, wait_s=0.0)
    assert summarize(run.dir).facts()["wait_share"] == 0.0


def test_bytes_of_owners_are_no_peak(run: WrittenScript) -> None:
    run.observe_rank(0)
    write_memory(run, 0, events.OWNERS_SEEN, d0={"parameters": MIB, "optimizer": 2 * MIB})
    write_memory(run, 1, events.OWNERS_SEEN, d1={"parameters": MIB})
    facts = summarize(run.dir).facts()
    lead = facts["devices"][0]
    assert (lead["peak_bytes"], lead["peak_by_kind"], lead["live_bytes"]) == (None, None, 3 * MIB)
    assert lead["live_by_kind"] == {"parameters": MIB, "optimizer": 2 * MIB}
    assert facts["source"] == lead["memory_source"] == events.OWNERS_SEEN and facts["imbalance"] is None
    device = read_run_state(run.dir).devices[0]
    assert device.is_owners_only and len(device.memory_history) == 1 and not len(device.peak_history)


def test_a_measured_peak_and_bytes_of_owners_are_both_kept(run: WrittenScript) -> None:
    write_memory(run, 0, events.FOLLOWED, d0={"parameters": MIB, "activations": MIB})
    write_memory(run, 0, events.OWNERS_SEEN, d0={"parameters": 9 * MIB})
    facts = summarize(run.dir).facts()["devices"][0]
    assert (facts["peak_bytes"], facts["live_bytes"], facts["sampled_steps"]) == (2 * MIB, 9 * MIB, 1)


def test_a_rank_started_by_the_script_has_a_device(run: WrittenScript) -> None:
    write_memory(run, 3, events.OWNERS_SEEN, d3={"parameters": MIB})
    assert [device["name"] for device in summarize(run.dir).facts()["devices"]] == ["CPU 0", "CPU 1", "CPU 3"]


def test_data_parallel_in_a_script_shows_the_imbalance(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs")
    run.start_script(1, device_infos(3, "gpu"))
    run.observe_rank(0, wrapper="DataParallel")
    run.write_step_line(0, 1, [1.0])
    low = {"parameters": 10 * MIB, events.UNATTRIBUTED: 5 * MIB}
    lead = {"parameters": 10 * MIB, "optimizer": 20 * MIB}
    write_memory(run, 0, events.MEASURED_ON_GPU, d0=lead, d1=low, d2=low)
    facts = summarize(run.dir).facts()
    run.end_script()
    assert facts["imbalance"] == {"device": 0, "excess_bytes": 15 * MIB, "ratio": 2.0}
    assert "DistributedDataParallel" in facts["notes"][-1]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (3, "train.py exited with status 3."),
        (137, "train.py exited with status 137 (SIGKILL)."),
        (255, "train.py exited with status 255."),
    ],
)
def test_a_failed_script_has_its_exit_status(run: WrittenScript, status: int, message: str) -> None:
    run.end_script(status)
    (problem,) = summarize(run.dir).facts()["problems"]
    assert message in problem["message"]


def test_a_folder_run_as_a_script_has_its_own_name(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs", config={"run": ".", "folder": "/home/me/project"})
    run.start_script()
    run.end_script(1)
    assert summarize(run.dir).facts()["problems"][0]["message"] == "project exited with status 1."


def test_a_script_is_listed_by_name_and_wrapper_and_not_resumable(run: WrittenScript) -> None:
    run.observe_rank(0, wrapper="FullyShardedDataParallel")
    run.write_step_line(0, 1, [1.0] * 7)
    run.write_step_line(1, 1, [1.0] * 9)
    run.end_script(1)
    info = read_info(run.dir)
    assert (info.title, info.strategy, info.is_script) == ("train.py", "FullyShardedDataParallel", True)
    assert (info.outcome, info.is_resumable, info.steps, info.num_devices) == ("failed", False, None, 2)
    row = row_json(read_info(run.dir))
    assert (row["strategy"], row["wrapper"], row["run_source"], row["steps"]) == (
        None,
        "FullyShardedDataParallel",
        "script",
        read_run_state(run.dir).step,
    )


def test_a_pending_script_is_listed_and_found(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs", "Fine-tuning, with a name that is longer than a folder's may be")
    assert (read_info(run.dir).is_script, read_info(run.dir).strategy) == (True, "")
    assert summarize(run.dir).facts()["run_source"] == "script" and row_json(read_info(run.dir))["steps"] == 0
    title = read_info(run.dir).title
    assert find_run(title, run.path.parent).name == run.dir.name
    run.lose()


@pytest.mark.parametrize("damage", ["[script]\nrun = 3", "script = 1", "not toml", ""])
def test_a_damaged_script_file_is_reported_and_breaks_no_list(run: WrittenScript, damage: str) -> None:
    run.dir.config_file.write_text(damage)
    assert (
        row_json(read_info(run.dir))["outcome"] == "running" and summarize(run.dir).facts()["script"] is None
    )


def test_commands_for_configurations_are_refused_with_a_message(run: WrittenScript) -> None:
    for command in (run.dir.config, lambda: predict_run(run.dir)):
        with pytest.raises(ConfigError, match=r"a run of your own script, train\.py"):
            command()
    assert compare_with_measured(run.dir) == []


def test_invalid_values_of_a_script_are_unknown(run: WrittenScript) -> None:
    run.observe_rank(0, wrapper_options={"bucket": [10**400, {"a": "b"}]}, num_parameters=10**400, skipped=-1)
    collectives = events.Collectives(
        rank=0,
        step=-5,
        calls={"absurd": 10**400, **{f"c{index}": 1 for index in range(300)}},
        num_bytes={},
        seconds={"x": 1e308},
    )
    for _ in range(2):
        run.writer("rank-0").write(collectives)
    run.writer("rank-0").write(events.Observed(rank=2**40, script="x"))
    facts = summarize(run.dir).facts()
    entry = facts["collectives"][0]
    assert len(entry["calls"]) == 100 and set(entry["calls"].values()) == {2} and entry["seconds"] == {}
    assert facts["unreadable"] == 1
    json.dumps(facts, allow_nan=False)


def test_a_standalone_process_is_noted(run: WrittenScript) -> None:
    for rank in (0, 1, 2):
        run.observe_rank(rank)
        run.write_step_line(rank, 1, [1.0, 1.0])
    notes = summarize(run.dir).facts()["notes"]
    assert [note for note in notes if "on its own" in note] == [
        "rank 2 is a process that trained on its own (pid 1002)"
    ]
