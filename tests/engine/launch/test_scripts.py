"""A person's own script runs as under torchrun or python: environment, streams, signals, status."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.files import read_text
from rankdeck.compare.page import render_report
from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.launch.control import NotRunningError, request_stop, send_signal
from rankdeck.launch.processes import kill_leftovers
from rankdeck.launch.start import rerun
from rankdeck.launch.streams import AttachedStreams
from rankdeck.launch.torchrun import INJECT_FOLDER
from rankdeck.observer import process_title
from rankdeck.run_dir import RunDir
from tests.helpers import launching
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.processes import processes_of_run
from tests.helpers.script_python import PYTHON
from tests.helpers.scripts import launch_script, log, read_all, script_config, wait_for_script_end
from tests.helpers.waiting import wait_until

_DUMP = """
import json, os, sys
facts = {"environment": dict(os.environ), "argv": sys.argv, "flags": sys.orig_argv[1:], "path": sys.path[0],
         "folder": os.getcwd(), "leads": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read()}
with open(f"facts-{sys.argv[1]}-{os.environ.get('RANK', 0)}.json", "w") as file:
    json.dump(facts, file)
"""


def _read_facts(folder: Path, name: str, rank: int) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / f"facts-{name}-{rank}.json").read_text(encoding="utf-8"))
    return facts


def test_secrets_reach_the_script_and_are_shown_nowhere(tmp_path: Path) -> None:
    secret = "S3cretOfMine"
    run = launch_script(
        tmp_path, _DUMP, args=["ours", "--hf-token", secret, f"--password={secret}"], plain=True,
        environment={"HUB_TOKEN": secret},
    )  # fmt: skip
    wait_for_script_end(run)
    facts = _read_facts(tmp_path, "ours", 0)
    assert facts["argv"][2:] == ["--hf-token", secret, f"--password={secret}"]
    assert facts["environment"]["HUB_TOKEN"] == secret
    assert run.path.stat().st_mode & 0o777 == 0o700
    holding = [file for file in run.path.rglob("*") if file.is_file() and secret in read_text(file)]
    assert [file.name for file in holding] == ["private.config.toml"]
    assert holding[0].stat().st_mode & 0o777 == 0o600
    for command in (
        ("show", run.path),
        ("show", run.path, "--json"),
        ("export", run.path, "-", "--to", "json"),
    ):
        assert secret not in rankdeck_in_process(*command, exit_code=0).out
    again = rerun(run, detach=True, command_line=["rankdeck", f"--password={secret}"], started=0.0)
    wait_for_script_end(again)
    assert again.script() == run.script()
    assert secret not in (again.path / "environment.json").read_text()
    assert secret not in render_report(load_run(RunRef(again.path)), "step")


@pytest.mark.parametrize(
    ("ranks", "plain"), [(1, True), pytest.param(1, False, marks=pytest.mark.slow), (2, False)]
)
def test_a_script_has_the_environment_of_python_or_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, plain: bool
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MINE", "stays\udcff")
    run = launch_script(tmp_path, _DUMP, args=["ours", "--x"], ranks=ranks, plain=plain, observe="light")
    end, status = wait_for_script_end(run)
    assert (end.outcome, end.exit_code, status) == ("completed", 0, 0)
    command = [PYTHON, "-u"]
    if not plain:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-port", str(_free_port()), "--log-dir", str(tmp_path / "logs of torchrun")]
    command += ["train.py", "theirs", "--x"]
    # The C library of this process may know more (readline does) than it says.
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        ours, theirs = _read_facts(tmp_path, "ours", rank), _read_facts(tmp_path, "theirs", rank)
        assert ours["argv"].pop(1) == "ours" and theirs["argv"].pop(1) == "theirs"
        assert ours["flags"].pop(2) == "ours" and theirs["flags"].pop(2) == "theirs"
        mine, alone = ours.pop("environment"), theirs.pop("environment")
        assert ours == theirs
        path = mine.pop("PYTHONPATH").partition(":")
        assert path[0] == str(INJECT_FOLDER) and path[2] == alone.pop("PYTHONPATH")
        for name in () if plain else ("MASTER_PORT", "TORCHELASTIC_ERROR_FILE"):
            assert mine.pop(name) and alone.pop(name)
        variables = {name: mine.pop(name) for name in list(mine) if name.startswith("RANKDECK_")}
        others = {name: alone.pop(name) for name in list(alone) if name.startswith("RANKDECK_")}
        assert mine == alone
        assert set(variables) - set(others) == {
            "RANKDECK_RUN",
            "RANKDECK_ATTEMPT",
            "RANKDECK_MASTER_PORT",
            "RANKDECK_OBSERVE",
            "RANKDECK_HEARTBEAT",
        }


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_an_unobserved_script_has_no_observer_on_its_path(tmp_path: Path) -> None:
    wait_for_script_end(
        launch_script(tmp_path, _DUMP, args=["ours"], environment={"PYTHONPATH": "/mine", "A": "b"})
    )
    environment = _read_facts(tmp_path, "ours", 0)["environment"]
    assert environment["PYTHONPATH"] == "/mine" and environment["A"] == "b"
    assert "RANKDECK_OBSERVE" not in environment


def test_a_script_sees_only_the_named_devices(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _DUMP, args=["ours"], devices="cpu:2", ranks=2)
    wait_for_script_end(run)
    for rank in (0, 1):
        assert _read_facts(tmp_path, "ours", rank)["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    started = next(event for _, event in launching.all_events(run) if isinstance(event, events.RunStarted))
    assert (started.source, started.world_size, started.strategy) == ("script", 2, None)
    assert [device.name for device in started.devices] == ["CPU 0", "CPU 1"]


_BYTES = r"""
import os, sys
if os.environ["RANK"] == "0":
    os.write(1, bytes(range(256)) * 300 + b"\r\n\rhalf")
    os.write(2, b"\xff\x00 bar 10%\rbar 20%")
    os.write(1, sys.stdin.buffer.read())
"""


def test_streams_are_piped_unchanged_and_logged(tmp_path: Path) -> None:
    """Output, errors and input: each stream whole and in order, without a line feed at its end."""
    ends = [os.pipe() for _ in range(3)]
    os.write(ends[0][1], b"typed\x00\xff")
    os.close(ends[0][1])
    attached = AttachedStreams(ends[0][0], ends[1][1], ends[2][1])
    run = launch_script(tmp_path, _BYTES, attached=attached, detach=False)
    for end in attached.fds():
        os.close(end)
    out = read_all(ends[1][0])
    err = read_all(ends[2][0])
    assert out == bytes(range(256)) * 300 + b"\r\n\rhalf" + b"typed\x00\xff"
    assert err == b"\xff\x00 bar 10%\rbar 20%"
    assert wait_for_script_end(run)[1] == 0
    assert (log(run), log(run, kind="err")) == (out, err)
    for end in (ends[1][0], ends[2][0]):
        os.close(end)


_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: print("now", os.get_terminal_size(1).columns, flush=True))
print([os.isatty(handle) for handle in (0, 1, 2)], os.get_terminal_size(1).columns, flush=True)
print(repr(input("name? ")), flush=True)
try:
    while True:
        signal.pause()
except KeyboardInterrupt:
    os.write(2, b"interrupted\\n")
    sys.exit(7)
"""


def test_a_script_has_a_terminal_where_the_command_has_one(tmp_path: Path) -> None:
    """Size and its changes, typed lines, Ctrl-C; line feeds are turned by the command's terminal alone."""
    master, slave = os.openpty()
    _set_columns(slave, 91)
    keys_end, keys = os.pipe()
    attached = AttachedStreams(stdin=slave, stdout=slave, stderr=slave, keyboard=keys_end)
    run = launch_script(tmp_path, _TERMINAL, attached=attached, detach=False)
    os.close(keys_end)
    output = bytearray()
    reader = threading.Thread(target=lambda: output.extend(read_all(master)), daemon=True)
    reader.start()
    wait_for_output = lambda text: wait_until(lambda: text in log(run), what=repr(text))  # noqa: E731
    wait_for_output(b"[True, True, True] 91\n")
    os.write(keys, b"Ada\n")
    wait_for_output(b"Ada\n'Ada'\n")
    _set_columns(slave, 120)
    send_signal(run, signal.SIGWINCH)
    wait_for_output(b"now 120\n")
    os.write(keys, b"\x03")
    end, status = wait_for_script_end(run)
    assert (end.outcome, status) == ("failed", 7)
    os.close(slave)
    reader.join(5)
    assert b"Ada\r\n'Ada'\r\n" in output and b"interrupted\r\n" in output
    # Python asks on stderr; where both streams are one terminal, so is the log, in order.
    assert b"91\nname? Ada\n'Ada'\n" in log(run) and log(run, kind="err") == b""
    for handle in (master, keys):
        os.close(handle)


def _set_columns(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


def test_a_slow_or_missing_reader_does_not_end_a_rank(tmp_path: Path) -> None:
    """What is written beyond what a pipe holds waits for the reader; without one the log goes on."""
    source = (
        "import os, sys\nfor n in range(200): os.write(1, b'x' * 4999 + b'\\n')\nos.write(2, b'through')\n"
    )
    read_end, write_end = os.pipe()
    run = launch_script(tmp_path, source, attached=AttachedStreams(None, write_end, None), detach=False)
    os.close(write_end)
    # A pipe has 16 pages, of which a write of 5,000 bytes may take two.
    wait_until(lambda: len(log(run)) >= 40_000)
    assert not run.exit_record() and b"through" not in log(run, kind="err")
    assert len(os.read(read_end, 100)) == 100
    os.close(read_end)
    assert wait_for_script_end(run)[1] == 0
    assert len(log(run)) == 1_000_000


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("import sys; sys.exit(3)", 3, "train.py exited with status 3."),
        pytest.param("import os; os._exit(9)", 9, "train.py exited with status 9.", marks=pytest.mark.slow),
        (
            "import sys; sys.exit('no data')",
            1,
            "train.py exited with status 1. Its last line of output: no data",
        ),
        ("import os; os.kill(os.getpid(), 9)", 137, "The process was killed by SIGKILL."),
        ("raise KeyboardInterrupt", 130, "The process was killed by SIGINT."),
        pytest.param(
            "import os; os.kill(os.getpid(), 11)",
            139,
            "The process was killed by SIGSEGV",
            marks=pytest.mark.slow,
        ),
        ("def f():\n    return {}['k']\nf()", 1, "The script raised KeyError: 'k' ("),
        ("x = = 1", 1, "The script raised SyntaxError: invalid syntax ("),
    ],
)
def test_the_exit_status_is_the_scripts(tmp_path: Path, source: str, status: int, message: str) -> None:
    end, script_status = wait_for_script_end(run := launch_script(tmp_path, source))
    assert (end.outcome, end.exit_code, script_status) == ("failed", 1, status)
    (problem,) = launching.read_problems(run)
    assert problem.message.startswith(message) and problem.rank is None
    assert end.reason == problem.headline()
    if problem.code == "rank-exception":
        assert problem.path == str(tmp_path / "train.py")
        assert problem.message.endswith(f"{tmp_path / 'train.py'}, line {problem.line})")


_ONE_RAISES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("bad batch")
time.sleep(600)
"""


def test_the_failing_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    end, status = wait_for_script_end(run := launch_script(tmp_path, _ONE_RAISES, ranks=3))
    assert (end.outcome, status) == ("failed", 1)
    (problem,) = launching.read_problems(run)
    assert (problem.rank, problem.line) == (1, 4)
    assert problem.headline() == f"rank 1 raised ValueError: bad batch ({tmp_path / 'train.py'}, line 4)"


_ONE_IS_SPARE = """
import torch
# Alone at a store of its own, so that nobody hosts one.
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
layers = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("used", "spare")})
layers.forward = lambda inputs: layers["used"](inputs)
model = torch.nn.parallel.DistributedDataParallel(layers)
assert torch.distributed.get_debug_level() == torch.distributed.DebugLevel.OFF
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


def test_parameters_without_a_gradient_are_named(tmp_path: Path) -> None:
    _, status = wait_for_script_end(run := launch_script(tmp_path, _ONE_IS_SPARE, ranks=1, observe="light"))
    assert status == 1
    (problem,) = launching.read_problems(run)
    assert problem.code == "unused-parameters" and problem.advice is not None
    assert problem.advice.startswith(
        "These parameters did not contribute to the loss: spare.bias, spare.weight. Pass find_unused"
    )
    (evidence,) = problem.evidence
    assert evidence.path is not None and evidence.line and (run.path / evidence.path).is_file()


def test_a_script_without_local_rank_gets_advice_on_the_environment(tmp_path: Path) -> None:
    source = "import argparse; argparse.ArgumentParser().parse_args(['--local-rank=0'])"
    wait_for_script_end(run := launch_script(tmp_path, source))
    (problem,) = launching.read_problems(run)
    assert problem.code == "unknown-rank-option" and "LOCAL_RANK" in (problem.advice or "")


_ONE_SURVIVES = """
import os, sys, time, traceback
if os.environ["RANK"] == "1":
    time.sleep(0.5)
    sys.exit(4)
try:
    {}["k"]
except KeyError:
    traceback.print_exc()
time.sleep(600)
"""


def test_a_handled_traceback_is_not_the_cause(tmp_path: Path) -> None:
    end, status = wait_for_script_end(launch_script(tmp_path, _ONE_SURVIVES, ranks=2))
    assert (end.outcome, status, end.reason) == (
        "failed",
        4,
        "train.py exited with status 4 (rank 1).",
    )


_ONE_LEAVES = """
import os, time
if os.environ["RANK"] == "1":
    os._exit(0)
time.sleep(0.5)
raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7587")
"""


def test_a_rank_that_exits_with_0_is_the_cause_of_lost_connections(tmp_path: Path) -> None:
    end, status = wait_for_script_end(run := launch_script(tmp_path, _ONE_LEAVES, ranks=2))
    assert (end.outcome, status) == ("failed", 1)
    (problem,) = launching.read_problems(run)
    assert (problem.code, problem.rank) == ("rank-left", 1)
    assert problem.headline().startswith(
        "Rank 1 exited with status 0 while rank 0 was still waiting for it ("
    )
    assert problem.headline().endswith("train.py, line 6).")


_FAILS_TWICE = """
import os, sys
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(count, os.environ.get("OMP_NUM_THREADS"), os.environ["TORCHELASTIC_MAX_RESTARTS"])
sys.exit(0 if count == "2" else 5)
"""


def test_a_failing_script_restarts_up_to_max_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    end, status = wait_for_script_end(run := launch_script(tmp_path, _FAILS_TWICE, max_restarts=3))
    assert (end.outcome, status) == ("completed", 0)
    written = [log(run, attempt=attempt).split()[:2] for attempt in (0, 1, 2)]
    assert written == [[b"0", b"None"], [b"1", b"None"], [b"2", b"None"]], (
        "each attempt has the same variables"
    )
    warnings = launching.read_problems(run, "warning")
    assert [problem.code for problem in warnings] == ["restarted", "restarted"]
    assert warnings[0].message == "train.py exited with status 5. The script starts again (restart 1 of 3)."


_FAILS_FIRST = """
import os, sys
sys.exit(5 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else int(sys.argv[1]))
"""


def test_the_run_ends_with_the_reason_of_its_last_attempt(tmp_path: Path) -> None:
    end, _ = wait_for_script_end(launch_script(tmp_path, _FAILS_FIRST, args=["0"], max_restarts=1))
    assert (end.outcome, end.reason) == ("completed", None)
    end, status = wait_for_script_end(
        run := launch_script(tmp_path, _FAILS_FIRST, args=["7"], max_restarts=1)
    )
    assert (end.outcome, end.reason, status) == ("failed", "train.py exited with status 7.", 7)
    assert [problem.headline() for problem in launching.read_problems(run)] == [end.reason]


_FAILS_BESIDE = """
import os, signal, sys, time
from pathlib import Path

def last_words(*_):
    print("asked", flush=True)
    while not Path("may-end").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    sys.exit(0)

if os.environ["RANK"] == "1":
    while not Path("listens").exists():
        time.sleep(0.05)
    print(os.getpid(), flush=True)
    os.abort() if sys.argv[1] == "abort" else sys.exit(5)
signal.signal(signal.SIGTERM, last_words)
Path("listens").touch()
while True:
    time.sleep(9)
"""


def test_a_stop_after_a_failure_keeps_the_cause(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _FAILS_BESIDE, args=["abort"], ranks=2)
    (tmp_path / "may-end").touch()
    wait_until(lambda: log(run, 1).endswith(b"\n") and not Path(f"/proc/{int(log(run, 1))}").exists())
    request_stop(run)
    end, status = wait_for_script_end(run)
    assert (end.outcome, status) == ("failed", 128 + signal.SIGABRT)
    assert "SIGABRT" in str(end.reason)


def test_stopping_a_failed_script_prevents_its_restart(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _FAILS_BESIDE, args=["exit"], ranks=2, max_restarts=3)
    wait_until(lambda: log(run, 0) == b"asked\n")
    request_stop(run)
    (tmp_path / "may-end").touch()
    end, status = wait_for_script_end(run)
    assert (end.outcome, status) == ("failed", 5) and "exited with status 5" in str(end.reason)
    assert run.next_attempt() == 1 and launching.read_problems(run, "warning") == []


_SAVES = """
import os, signal, subprocess, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
deaf = "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf])
print("ready", flush=True)
time.sleep(600)
"""


_TELLS_ITS_NAMES = """
import sys
import rankdeck
rankdeck.log(begun=1)  # which the observer hears of, as of an import of torch
with open("/proc/self/comm") as comm, open("/proc/self/cmdline", "rb") as cmdline:
    print(comm.read().strip(), "|", cmdline.read().rstrip(b"\\0").split(b"\\0")[-2:], "|", sys.argv)
"""


@pytest.mark.parametrize(("observe", "ranks"), [("light", 2), ("none", 1)])
def test_rank_processes_of_a_script_are_named_and_keep_their_arguments(
    tmp_path: Path, observe: str, ranks: int
) -> None:
    run = launch_script(tmp_path, _TELLS_ITS_NAMES, args=["a"], ranks=ranks, observe=observe)
    assert wait_for_script_end(run)[1] == 0
    name = process_title.short_run_name(str(run.path))
    for rank in range(ranks):
        output = log(run, rank).decode()
        assert "| [b'train.py', b'a'] | ['train.py', 'a']" in output
        assert output.startswith(f"rank {rank}/{ranks} {name}"[:15].rstrip()) == (observe == "light"), output


def test_a_stopped_script_may_save_and_leaves_no_process(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _SAVES, ranks=2)
    wait_until(lambda: log(run, 0) == log(run, 1) == b"ready\n")
    request_stop(run)
    end, status = wait_for_script_end(run)
    assert (end.outcome, end.exit_code, status) == ("stopped", 130, 0)
    assert log(run, 1) == b"ready\nsaved\n" and not processes_of_run(run.path)
    with pytest.raises(NotRunningError):
        send_signal(run, signal.SIGUSR1)


_IGNORES_SIGNALS = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
print("ready", flush=True)
while True:
    time.sleep(9)
"""


def test_a_second_stop_does_not_wait(tmp_path: Path) -> None:
    run = launch_script(tmp_path, _IGNORES_SIGNALS)
    wait_until(lambda: log(run) == b"ready\n")
    request_stop(run)
    wait_until(lambda: log(run) == b"ready\nno\n")
    assert run.exit_record() is None
    request_stop(run)
    assert launching.wait_for_exit_record(run, 5).outcome == "stopped"


_SIGNALLED = """
import os, signal, sys, time
def heard(number, _):
    print(signal.Signals(number).name, flush=True)
for number in (signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, heard)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_signals_are_forwarded_to_the_script(tmp_path: Path) -> None:
    """One that it handles is text by every rank; one that it does not ends it as asked for."""
    run = launch_script(tmp_path, _SIGNALLED, ranks=2)
    wait_until(lambda: log(run, 0) == log(run, 1) == b"ready\n")
    for number in (signal.SIGUSR1, signal.SIGHUP):
        send_signal(run, number)
        expected = number.name.encode() + b"\n"
        wait_until(lambda text=expected: all(log(run, rank).endswith(text) for rank in (0, 1)))
    send_signal(run, signal.SIGINT)
    end, status = wait_for_script_end(run)
    assert (end.outcome, end.exit_code, status) == ("stopped", 130, 130)
    assert not launching.read_problems(run)


def test_a_script_that_cannot_start_is_refused_first(tmp_path: Path) -> None:
    def refused(error: type[Exception], **table: Any) -> str:
        with pytest.raises(error) as caught:
            launch_script(tmp_path, "", **table)
        assert not (tmp_path / "runs").exists()
        return str(caught.value)

    assert "nowhere.py does not exist" in refused(ConfigError, run="nowhere.py")
    assert "does not exist" in refused(ConfigError, kind="module", run="m", folder=str(tmp_path / "gone"))
    (tmp_path / "taken").touch()
    assert "Logs cannot be written to" in refused(ConfigError, log_folder=str(tmp_path / "taken" / "logs"))
    assert "Logs cannot be written to" in refused(ConfigError, log_folder="/proc/rankdeck")
    assert "The program nothing-of-the-kind does not exist" in refused(
        ConfigError, kind="program", run="nothing-of-the-kind"
    )
    assert "The interpreter /no/python does not exist" in refused(MachineError, python="/no/python")


def test_a_module_or_a_program_runs_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.py").write_text("import sys; print(__name__, sys.argv[1:])")
    run = launch_script(tmp_path, "", kind="module", run="package.main", args=["1"])
    wait_for_script_end(run)
    assert log(run) == b"__main__ ['1']\n"
    program = launch_script(tmp_path, "", kind="program", run="sh", args=["-c", "echo $RANK of $WORLD_SIZE"])
    wait_for_script_end(program)
    assert log(program) == b"0 of 1\n"
    again = rerun(program, detach=True, command_line=["rankdeck", "resume"], started=0.0)
    wait_for_script_end(again)
    assert again.path != program.path and log(again) == b"0 of 1\n"


def test_a_daemonized_script_ends_with_the_run(tmp_path: Path) -> None:
    """A process that leaves its session lives as long as the run."""
    source = """
    import os, subprocess, sys
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    subprocess.run(["sleep", "0.1"])
    print(left.pid)
    """
    run = launch_script(tmp_path, source)
    assert wait_for_script_end(run)[1] == 0
    assert not processes_of_run(run.path)
    (problem,) = launching.read_problems(run, "warning")
    assert problem.message.startswith(
        "The script left 1 process behind, which will be killed when the run ends: python"
    )
    assert problem.message.endswith(f" ({int(log(run))}).") and problem.code == "left-behind"


def test_processes_about_to_exit_are_not_reported_as_orphans(tmp_path: Path) -> None:
    source = """
    import subprocess
    subprocess.Popen(["sleep", "0.3"], start_new_session=True)
    """
    run = launch_script(tmp_path, source)
    assert wait_for_script_end(run)[1] == 0 and not launching.read_problems(run, "warning")


def test_the_supervisor_of_a_script_never_imports_torch(tmp_path: Path) -> None:
    imported = "import sys, rankdeck.launch.supervisor, rankdeck.launch.script_ranks"
    code = f"{imported}; print({{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_logs_are_copied_to_the_torchrun_log_dir(tmp_path: Path) -> None:
    run = launch_script(tmp_path, "print('hello')", log_folder="logs")
    wait_for_script_end(run)
    assert (tmp_path / "logs" / run.name / "attempt_0" / "0" / "stdout.log").read_bytes() == b"hello\n"


def test_a_used_port_is_reported(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        run = launch_script(tmp_path, "print('hello')", master_port=server.getsockname()[1])
        end, status = wait_for_script_end(run)
    assert (end.outcome, end.exit_code, status) == ("failed", 3, None)
    assert "cannot be used" in (end.reason or "")
    assert script_config(tmp_path, "").script.master_port is None


_IGNORES_SIGNALS_WITH_HELPERS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["supervisor", "guard", "command"])
def test_killing_any_process_leaves_nothing_of_a_script(tmp_path: Path, victim: str) -> None:
    """Its ranks, what they have started, and the process that hosts their store."""
    if victim == "command":
        code = (
            "import pathlib, signal, sys; from tests.helpers.scripts import launch_script\n"
            "run = launch_script(pathlib.Path(sys.argv[1]), sys.argv[2], detach=False, ranks=2)\n"
            "print(run.path, flush=True); signal.pause()"
        )
        # What ignores a stop is killed after its grace; here it ends at once.
        source = _IGNORES_SIGNALS_WITH_HELPERS.replace("signal.SIG_IGN", "signal.SIG_DFL")
        with subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(tmp_path), source],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS},
        ) as command:
            assert command.stdout is not None
            run = RunDir(Path(command.stdout.readline().strip()))
            wait_until(lambda: log(run, 0) == log(run, 1) == b"ready\n")
            command.kill()
    else:
        run = launch_script(tmp_path, _IGNORES_SIGNALS_WITH_HELPERS, ranks=2)
        wait_until(lambda: log(run, 0) == log(run, 1) == b"ready\n")
        pid = launching.guard_pid(run) if victim == "guard" else launching.supervisor_pid(run)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    if victim == "guard":
        wait_until(lambda: not run.is_alive())
        wait_until(lambda: kill_leftovers() or not processes_of_run(run.path))
        launching.wait_until_gone(run)
        assert run.outcome() == "lost"
        return
    end = launching.wait_for_exit_record(run)
    launching.wait_until_gone(run)
    assert end.outcome == {"supervisor": "failed", "command": "stopped"}[victim]


_USES_RENDEZVOUS = """
import os, sys
import torch.distributed as dist

dist.init_process_group("gloo")
# In one write: torchrun's ranks share a pipe, and python -u prints word by word.
os.write(1, f"met {dist.get_rank()} {dist.get_world_size()}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("plain", "options"),
    [(False, ("--master-port", "PORT")), pytest.param(True, ("--standalone",), marks=pytest.mark.slow)],
)
def test_torchrun_inside_a_script_hosts_its_rendezvous(
    tmp_path: Path, plain: bool, options: tuple[str, ...]
) -> None:
    arguments = " ".join(options).replace("PORT", str(_free_port()))
    (tmp_path / "train.sh").write_text(
        f"{PYTHON} -m torch.distributed.run --nproc-per-node 2 {arguments} train.py\n", encoding="utf-8"
    )
    run = launch_script(
        tmp_path,
        _USES_RENDEZVOUS,
        kind="program",
        run="bash",
        args=["train.sh"],
        plain=plain,
        observe="light",
    )
    end, _ = wait_for_script_end(run)
    assert end.outcome == "completed", log(run, kind="err").decode()
    assert sorted(log(run).decode().split("\n")) == ["", "met 0 2", "met 1 2"]
