"""Small scripts that signal, fork, fail, take descriptors, or wait for ever: each is seen, none is held up.

Each is a forked child of one Python that has imported torch, and is otherwise by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.heartbeat import HeartbeatPage
from rankdeck.diagnose.stacks import parse_calls
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_TRAINS = """
import os, signal, sys, threading, time, torch
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
run = os.environ["RANKDECK_RUN"]
def train(steps=2):
    for _ in range(steps): weight.sum().backward(); optimizer.step()
"""
_IN_GROUP = (
    _TRAINS
    + """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.zeros(5))
train()
"""
)
_QUICK = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], 0.01)
for _ in range(300):
    optimizer.zero_grad()
    loss = weight.square().sum()
    loss.backward()
    optimizer.step()
print(loss.item(), flush=True)
"""
_SCRIPTS = {
    "asks for stacks": """
signal.signal(signal.SIGRTMAX - 1, lambda *_: print("mine"))
def stands_still():
    os.kill(os.getpid(), signal.SIGRTMAX - 2)
train()
stands_still()
os.kill(os.getpid(), signal.SIGRTMAX - 1)
""",
    "asks before it trains": """
def early_file():
    paths = ("/proc/self/fd/" + name for name in os.listdir("/proc/self/fd"))
    links = (path for path in paths if os.path.islink(path) and "rankdeck-stacks" in os.readlink(path))
    return next(links, None)
def loads():
    file = early_file()
    os.kill(os.getpid(), signal.SIGRTMAX - 1)
    with open(file, "rb") as opened: return opened.read().decode()
def check(what):
    first, rest = what.split("\\n", 1)
    words = "rankdeck stacks %d %d %s" % (os.getpid(), signal.SIGRTMAX - 1, run)
    assert first == words and rest.count("Current thread") == 1 and "in loads" in rest, what
def in_child():
    child = os.fork()
    if child == 0:
        check(loads())
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
check(loads())
in_child()
train()
assert early_file() is None
in_child()
for _ in range(50):
    if os.fork() == 0: os._exit(0)
    os.wait()
print(sorted(os.listdir(run + "/logs")), sorted(os.listdir(run)))
""",
    "asks in a group": """
os.kill(os.getpid(), signal.SIGRTMAX - 1)
dist.barrier()
while not os.path.exists(run + "/logs/rank-0.0.calls"): time.sleep(0.01)
""",
    "fails in a group": "raise RuntimeError('Connection closed by peer')\n",
    "ends well in a group": "",
    "blocks a signal": """
train()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.1)
print("saved", flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
""",
    "takes descriptors": """
train(5)
own = os.open("own", os.O_RDWR | os.O_CREAT)
for number in range(3, 600): number == own or os.dup2(own, number)
train(5)
if os.fork() == 0: sys.exit(sum(os.write(number, b"x") for number in range(3, 600)) % 256)
print(os.waitstatus_to_exitcode(os.wait()[1]) == 597 % 256)
""",
    "two in turn": """
other = torch.ones(2, requires_grad=True)
optimizers = [(weight, optimizer), (other, torch.optim.SGD([other], 1e-9))]
ticks, steps = [], 0
while len(ticks) < 8:
    for one, its_optimizer in optimizers: one.sum().backward(); its_optimizer.step()
    steps += 1
    if steps == 2:
        sys.modules["_rankdeck_observer.session"].current().on_tick.add("test", lambda: ticks.append(1))
    time.sleep(0.005)
print(steps)
""",
    "waits while writing": """
train()
waits = threading.Event()
def for_ever():
    waits.set()
    threading.Event().wait()
sys.modules["_rankdeck_observer.session"].current().on_tick.add("test", for_ever)
waits.wait()
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
train()
print("done")
""",
    "writes nothing": """
with open(run + "/events", "w") as file: file.write("in the way")
train(1)
print(weight.item())
""",
    "logs first": """
import rankdeck
file = run + "/events/rank-0.0.jsonl"
rankdeck.log(width=8)
while not os.path.exists(file) or "width" not in open(file).read(): time.sleep(0.01)
train(3)
rankdeck.log(loss=0.5)
child = os.fork()
if child == 0: os._exit(0)
os.waitpid(child, 0)
rankdeck.log(loss=0.25)
""",
    "steps quickly and ends": _QUICK,
    "steps quickly and is killed": _QUICK + "time.sleep(2); os.kill(os.getpid(), 9)\n",
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ObservedProcess]]:
    scripts = {
        name: (_IN_GROUP if name.endswith("in a group") else _TRAINS) + text
        for name, text in _SCRIPTS.items()
    }
    page = HeartbeatPage(1)
    yield observe_scripts(scripts, tmp_path_factory.mktemp("small"), RANKDECK_HEARTBEAT=page.path)
    page.close()


def _run_folder(done: ObservedProcess) -> Path:
    assert done.run is not None
    return done.run


def _collective_texts(done: ObservedProcess) -> list[str] | None:
    """The collectives that it has told of, in words."""
    file = _run_folder(done) / "logs/rank-0.0.calls"
    assert [path.suffix for path in file.parent.glob("*.calls*")] in ([], [".calls"])
    return [str(call.text()) for call in parse_calls(file.read_bytes())] if file.exists() else None


def test_stacks_are_written_on_an_unused_signal(processes: dict[str, ObservedProcess]) -> None:
    """The script itself asks for them, as its supervisor would."""
    done = processes["asks for stacks"]
    assert (done.status, done.stdout, done.stderr) == (0, "mine\n", "")
    started = done.events(0)[0]
    assert isinstance(started, events.RankStarted)
    assert started.stack_signal == signal.SIGRTMAX - 2, "the highest that the script did not take"
    assert "in stands_still" in (_run_folder(done) / "logs/rank-0.0.stacks").read_text()


def test_every_process_has_a_file_in_memory_until_it_is_a_rank(
    processes: dict[str, ObservedProcess],
) -> None:
    """Before its first step, in a child of it, and in a child that it forks later; none is on disk."""
    done = processes["asks before it trains"]
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout == "['rank-0.0.stacks'] ['events', 'logs']\n"
    assert (_run_folder(done) / "logs/rank-0.0.stacks").read_bytes() == b""


def test_a_stack_request_also_writes_the_collectives(processes: dict[str, ObservedProcess]) -> None:
    """While it goes on: it waits for that."""
    done = processes["asks in a group"]
    texts = _collective_texts(done)
    assert done.status == 0 and texts is not None and texts[0] == "all_reduce number 1 (5 Float)"


def test_only_a_failing_script_writes_its_collectives(processes: dict[str, ObservedProcess]) -> None:
    fails, ends_well = processes["fails in a group"], processes["ends well in a group"]
    assert (ends_well.status, _collective_texts(ends_well)) == (0, None)
    assert (fails.status, _collective_texts(fails)) == (1, ["all_reduce number 1 (5 Float)"])


def test_a_signal_blocked_by_the_script_stays_pending(processes: dict[str, ObservedProcess]) -> None:
    """As while it saves: no thread of ours may take it meanwhile."""
    done = processes["blocks a signal"]
    assert (done.status, done.stdout, done.stderr) == (-signal.SIGTERM, "saved\n", "")


def test_a_script_may_take_every_file_descriptor(processes: dict[str, ObservedProcess]) -> None:
    """As a daemon that closes what it does not know: our numbers are those of its own files then."""
    done = processes["takes descriptors"]
    assert (done.status, done.stdout, done.stderr) == (0, "True\n", "")
    assert (_run_folder(done).parent / "own").read_bytes() == b"x" * 597
    assert len(done.steps(0, "ended")) == 10


def test_changed_counters_alone_are_not_reported_at_each_tick(processes: dict[str, ObservedProcess]) -> None:
    """Two optimizers in turn, for eight ticks: the counts are whole at the end."""
    done = processes["two in turn"]
    assert (done.status, done.stderr) == (0, "")
    observations = done.events_of_type(events.Observed)
    assert observations[-1].other_optimizers == {"SGD": int(done.stdout)}
    assert len(observations) <= 4


def test_a_blocked_writer_thread_delays_neither_fork_nor_exit(
    processes: dict[str, ObservedProcess],
) -> None:
    done = processes["waits while writing"]
    assert (done.stdout, done.stderr, done.status) == ("done\n", "", 0)
    assert done.events_of_type(events.Steps)


def test_an_unwritable_run_folder_does_not_break_the_script(processes: dict[str, ObservedProcess]) -> None:
    done = processes["writes nothing"]
    assert (done.status, done.stdout.strip()[:4], done.stderr) == (0, "0.89", "")


def test_a_process_that_logs_before_its_first_step_is_one_rank(processes: dict[str, ObservedProcess]) -> None:
    done = processes["logs first"]
    assert (done.stdout, done.stderr, done.status) == ("", "", 0)
    assert done.ranks() == [0]
    logged: dict[str, list[float | None]] = {}
    for event in done.events_of_type(events.Metrics):
        for name, values in event.values.items():
            logged.setdefault(name, []).extend(values)
    assert logged == {"width": [8.0], "loss": [0.5, 0.25]}
    assert sum(len(event.ended) for event in done.events_of_type(events.Steps)) == 3
    assert len(done.events_of_type(events.RankStarted)) == 1


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_the_last_loss_is_recorded_though_few_steps_are_sampled(
    processes: dict[str, ObservedProcess], end: str
) -> None:
    done = processes[f"steps quickly and {end}"]
    losses = done.steps(0, "loss_sum")
    assert len(losses) == 300 and losses.count(None) > 100
    assert losses[-1] == pytest.approx(float(done.stdout))
