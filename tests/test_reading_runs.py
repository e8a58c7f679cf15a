"""Every file of a run is opened for reading by one module, base/files.py: a run's folder may come from
anywhere, and a pipe, a folder or a device in place of a file must not hang or break whoever looks at it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.run.row import read_info, row_json
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import list_runs
from tests.helpers.checkout import CHECKOUT
from tests.helpers.written_run import WrittenRun

READS = ("read_text", "read_bytes")

NO_FILE_OF_A_RUN = {
    "engine/rankdeck/base/files.py": "locks of GPUs",
    "engine/rankdeck/checkpoint/weights.py": "writes",
    "engine/rankdeck/checkpoint_files.py": "writes, and reads through files.open_regular",
    "engine/rankdeck/__main__.py": "/dev/null",
    "engine/rankdeck/cli/app.py": "/dev/null",
    "engine/rankdeck/cli/foreground.py": "/dev/null",
    "engine/rankdeck/cli/race.py": "pipes, and writes a log",
    "engine/rankdeck/cli/wait.py": "/proc",
    "engine/rankdeck/remote/installer.py": "the files of the package itself",
    "engine/rankdeck/remote/remote_run.py": "writes the copy of a run of another host; reads through files",
    "engine/rankdeck/config/consent.py": "appends to the person's own state",
    "engine/rankdeck/config/loading.py": "a person's configuration, bounded; RunDir.config looks first",
    "engine/rankdeck/config/presets.py": "presets",
    "engine/rankdeck/data/bpe.py": "training data",
    "engine/rankdeck/data/corpus.py": "training data",
    "engine/rankdeck/launch/control.py": "the run's folder, for its socket",
    "engine/rankdeck/launch/guard.py": "the standard library only: writes",
    "engine/rankdeck/launch/guard_start.py": "/dev/null",
    "engine/rankdeck/launch/exit_record.py": "the standard library only: writes",
    "engine/rankdeck/launch/descendants.py": "/proc",
    "engine/rankdeck/launch/process_stacks.py": "/proc",
    "engine/rankdeck/observer/early_stacks.py": "opens a file without a name, in memory",
    "engine/rankdeck/launch/rank_start.py": "writes logs",
    "engine/rankdeck/launch/coordinator_guard.py": "the standard library only: writes",
    "engine/rankdeck/launch/event_relay.py": "the standard library only: what its own ranks write",
    "engine/rankdeck/launch/forked_ranks.py": "pipes, and writes logs",
    "engine/rankdeck/launch/control_server.py": "a folder, for its socket",
    "engine/rankdeck/launch/store.py": "writes a log",
    "engine/rankdeck/launch/streams.py": "writes logs",
    "engine/rankdeck/launch/supervisor.py": "/proc",
    "engine/rankdeck/launch/torchrun.py": "a file of torch",
    "engine/rankdeck/models/hugging_face.py": "a model's configuration",
    "engine/rankdeck/observer/heartbeats.py": "memory that it shares with the supervisor",
    "engine/rankdeck/observer/stacks.py": "writes a log",
    "engine/rankdeck/observer/process_title.py": "/proc",
    "engine/rankdeck/observer/retained_graphs.py": "/proc",
    "engine/rankdeck/observer/source_lines.py": "the person's script, bounded",
    "engine/rankdeck/training/verify/budget.py": "/proc",
    "engine/rankdeck/observer/writer.py": "the end of what it appends to",
    "engine/rankdeck/launch/queued_start.py": "the queue's own copy of a configuration",
    "engine/rankdeck/queue/dispatcher.py": "the lock of the queue's dispatcher",
    "engine/rankdeck/queue/spool.py": "entries of the queue, which it writes",
    "engine/rankdeck/queue/starts.py": "locks and logs of the queue's starts",
    "engine/rankdeck/launch/locks.py": "the holder of a lock that it could not take",
    "engine/rankdeck/run_dir/creation.py": "writes",
    "engine/rankdeck/run_dir/listing.py": "writes",
    "engine/rankdeck/run_dir/event_files.py": "writes, and the end of what it appends to",
    "engine/rankdeck/cli/console.py": "what it has just written itself",
    "engine/rankdeck/run/export.py": "writes, and the weights by safetensors",
    "engine/rankdeck/base/heartbeat.py": "pipes",
    "engine/rankdeck/training/rank_consensus.py": "what the ranks of an attempt write to each other",
    "app/rankdeck_app/commands/keymap.py": "a setting",
    "app/rankdeck_app/controllers/session.py": "presets",
    "app/rankdeck_app/settings.py": "settings",
    "app/rankdeck_app/shell/window_state.py": "a setting",
    "app/rankdeck_app/state/draft.py": "the draft",
    "app/rankdeck_app/state/state_file.py": "a setting",
    "app/rankdeck_app/state/script_folder.py": "a setting",
    "app/rankdeck_app/state/trust.py": "a setting",
    "app/rankdeck_app/state/workspace.py": "a setting",
    "app/rankdeck_app/theme/vscode.py": "a theme",
    "app/rankdeck_app/widgets/card_export.py": "writes",
}


def opens(source: str) -> bool:
    """Whether a module opens files without base/files.py."""
    if not any(word in source for word in ("open", *READS)):
        return False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in ("open", "safe_open"):
            return True
        if not isinstance(called, ast.Attribute):
            continue
        owner = called.value.id if isinstance(called.value, ast.Name) else ""
        if called.attr in READS and owner != "files":
            return True
        if called.attr == "open" and (owner in ("os", "io") or _is_mode(node.args[:1])):
            return True
    return False


def _is_mode(args: list[ast.expr]) -> bool:
    return bool(args) and isinstance(args[0], ast.Constant) and set(str(args[0].value)) <= set("rwabx+t")


def test_no_other_module_opens_a_file_of_a_run() -> None:
    modules = {
        str(file.relative_to(CHECKOUT))
        for root in ("engine/rankdeck", "app/rankdeck_app")
        for file in (CHECKOUT / root).rglob("*.py")
        if opens(file.read_text(encoding="utf-8"))
    } - {"engine/rankdeck/base/files.py"}
    assert modules <= set(NO_FILE_OF_A_RUN), "read it through rankdeck.base.files, or say here what it opens"
    assert all((CHECKOUT / file).is_file() for file in NO_FILE_OF_A_RUN)


@pytest.mark.parametrize(
    "source", ["open('x')", "path.read_text()", "p.read_bytes()", "os.open('x', 0)", "path.open('rb')"]
)
def test_an_open_is_seen(source: str) -> None:
    assert opens(source)
    assert not opens("files.read_text(path)\nself._tabs.open(path)\nfiles.open_regular(path)")


def put_in_place(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_is_passed_over_and_told(tmp_path: Path, kind: str) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [1.0])
    run.writer("rank-1").write(events.RankStarted(rank=1, pid=1, devices=[0]))
    (run.dir.checkpoints_folder / "5").mkdir(parents=True)
    run.lose()
    for name in (
        "end.json",
        "environment.json",
        "plan.json",
        "events/rank-1.0.jsonl",
        "checkpoints/5/COMMIT",
    ):
        put_in_place(run.path / name, kind)
    assert read_run_state(run.dir).counts.unreadable == 1
    facts = summarize(run.dir).facts()
    assert (facts["outcome"], facts["steps"]) == ("lost", 1)
    assert "unreadable-events" in [problem["code"] for problem in facts["problems"]]
    assert row_json(read_info(run.dir))["steps"] == 1 and list_checkpoints(run.dir.checkpoints_folder) == []
    put_in_place(run.path / "config.toml", kind)
    assert list_runs(tmp_path / "runs") == []


def test_a_pipe_in_place_of_the_index_or_a_log_hangs_nothing(tmp_path: Path) -> None:
    """The negative control beside it: a plain read of the same pipe waits for ever."""
    from rankdeck.base.home import state_dir
    from rankdeck.diagnose.exceptions import read_last_lines

    state_dir().mkdir(parents=True, exist_ok=True)
    os.mkfifo(state_dir() / "runs.index")
    os.mkfifo(tmp_path / "rank-0.0.err")
    assert list_runs(tmp_path) == [] and read_last_lines(tmp_path / "rank-0.0.err") == ()
    with pytest.raises(subprocess.TimeoutExpired):
        script = f"open({str(tmp_path / 'rank-0.0.err')!r}).read()"
        subprocess.run([sys.executable, "-c", script], timeout=0.5, check=False)
