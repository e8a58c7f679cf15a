"""What goes wrong inside a rank: copied beside a trial's code, which calls `point` at every place where it
may happen. fault.json says what, where, in which step and in which ranks.
"""

import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
PLAN = json.loads((HERE / "fault.json").read_text())
RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("RANKDECK_ATTEMPT", "0"))
STRANGE = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")

steps = 0
"""Steps that this process has done."""
stays = False
"""Whether the backward pass in mine.py does not return."""
samples = 0
"""Samples that this process has read: one that only loads data takes no steps."""
_has_happened = False


def point(where, *values):
    """The values, as whatever happens here leaves them."""
    global _has_happened
    if (
        _has_happened
        or PLAN["where"] != where
        or RANK not in PLAN["ranks"]
        or ATTEMPT not in PLAN["attempts"]
    ):
        return values
    if (samples // 4 if _in_worker() else steps) < PLAN["step"]:
        return values
    _has_happened = where != "factory"  # one that fails fails each time that it is asked
    sign = HERE / f"hit-{RANK}"
    temporary = sign.with_suffix(f".{os.getpid()}")
    temporary.write_text(f"{time.time()} {os.getpid()} {steps}")
    temporary.rename(sign)
    result = ACTS[PLAN["act"]](*values)
    return values if result is None else result


def _in_worker():
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


def step_done():
    global steps
    steps += 1
    time.sleep(PLAN["pace_s"])


# Signals and crashes


def null_pointer(*_):
    ctypes.string_at(0)


def bus_error(*_):
    with (HERE / "short").open("w+b") as file:
        file.truncate(4096)
        page = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        page[0] = 1


def send(number):
    def act(*_):
        os.kill(os.getpid(), number)
        time.sleep(0.2)

    return act


def cpu_limit(*_):
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 60))
    while True:
        pass


def native_thread(*_):
    """A thread of the C library, whose first instruction is at no address."""
    thread = ctypes.c_ulong()
    ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(8), None)
    time.sleep(10)


def native_abort(*_):
    ctypes.CDLL(None).abort()


def broken_pipe(*_):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")


# Exits


def leave(code):
    def act(*_):
        os._exit(code)

    return act


def sys_exit(*_):
    sys.exit(3)


# Exceptions


def throw(make):
    def act(*_):
        raise make()

    return act


class OwnError(Exception):
    """As people write them: it asks for more than a message."""

    def __init__(self, batch, why):
        super().__init__(batch, why)


class OwnBaseError(BaseException):
    pass


class Unspeakable(Exception):  # noqa: N818
    def __str__(self):
        raise TypeError("even its words fail")


def recursion(*_):
    def deeper(depth):
        return deeper(depth + 1) + 1

    return deeper(0)


def chained(*_):
    try:
        {}["learning_rate"]
    except KeyError as error:
        raise ValueError("the settings are incomplete") from error


def grouped():
    return ExceptionGroup("two at once", [ValueError("bad batch 17"), OSError("nothing there")])


def forbidden_memory(*_):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    import torch

    torch.zeros(1 << 30)


def too_many_files(*_):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files = []
    while True:
        files.append(open(os.devnull))  # noqa: SIM115


def no_more_files(*_):
    """What this process sends goes through a new one, from another thread."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def flooded(*_):
    for _number in range(40_000):
        sys.stderr.write(
            "a warning that somebody prints in every step, a hundred times over and over again\n"
        )
    raise ValueError("bad batch 17")


def thread_raises(*_):
    thread = threading.Thread(target=throw(lambda: ValueError("in a thread")))
    thread.start()
    thread.join()


# Numbers and shapes


def not_a_number(outputs, *more):
    return outputs * float("nan"), *more


def infinite(gradient):
    return (gradient * float("inf"),)


def fewer_targets(outputs, targets):
    return outputs, targets[:-1]


def float_targets(outputs, targets):
    return outputs, targets.double()


def large_labels(outputs, targets):
    return outputs, targets + 1000


def odd_sample(picture, label):
    return picture[..., :5], label


def narrow(hidden):
    return (hidden[..., :-3],)


def other_dtype(hidden):
    return (hidden.double(),)


# Standing still


def spin(*_):
    while True:
        pass


def sleep(*_):
    while True:
        time.sleep(1000)


def barrier(*_):
    """Names of torch's collectives are not theirs alone."""
    while True:
        time.sleep(1000)


def all_reduce(*_):
    while True:
        time.sleep(1000)


def synchronize(*_):
    while True:
        time.sleep(1000)


def stay_in_backward(*_):
    """Not below it: mine.py looks at this."""
    global stays
    stays = True


def deadlock(*_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_pipe(*_):
    reader, _writer = os.pipe()
    os.read(reader, 1)


def one_barrier_more(*_):
    import torch.distributed as dist

    dist.barrier()


def other_order(*_):
    """What the others do next is no broadcast."""
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.zeros(3), src=RANK)
    dist.all_reduce(torch.zeros(5))


def other_shape(*_):
    """Every rank calls it; one has more to say."""
    import torch
    import torch.distributed as dist

    odd = dist.get_world_size() - 1
    dist.all_reduce(torch.zeros(7 if dist.get_rank() == odd else 3))


def receive(*_):
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(3), src=(RANK + 1) % dist.get_world_size())


def stay(*_):
    """A thread that no interpreter's exit waits for in vain, but which does not end."""
    threading.Thread(target=sleep).start()


def stay_at_exit(*_):
    import atexit

    atexit.register(sleep)


# What belongs to the machine


def close_all(*_):
    """Every file and connection that this process has, its log apart."""
    os.closerange(3, 4096)


def reset_connections(*_):
    for path in list(Path("/proc/self/fd").iterdir()):
        handle = path.name
        try:
            if stat.S_ISSOCK(os.fstat(int(handle)).st_mode):
                with socket.socket(fileno=os.dup(int(handle))) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    time.sleep(0.5)


def close_stdout(*_):
    os.close(1)


def print_to_nobody(*_):
    sys.stdout.close()
    print("into nothing")


def grandchild(*_):
    """It holds whatever this process has open, in a session of its own, and outlives it."""
    command = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(1000)"
    subprocess.run([sys.executable, "-c", command], close_fds=False, check=True)


def grandchild_and_raise(*_):
    grandchild()
    raise ValueError("bad batch 17")


def slow(*_):
    time.sleep(3.0)


def _newest_checkpoint():
    commits = Path(os.environ["RANKDECK_RUN"], "checkpoints").glob("*/COMMIT")
    newest = max((path.parent for path in commits), key=lambda folder: int(folder.name))
    return [file for file in newest.iterdir() if file.name != "COMMIT" and file.is_file()]


def damage_and_die(*_):
    """The newest whole checkpoint is not what it was, and the rank ends."""
    for file in _newest_checkpoint():
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            opened.write(b"\0" * 16)
    os.kill(os.getpid(), signal.SIGKILL)


def cut_and_die(*_):
    """As above; half of it is missing."""
    for file in _newest_checkpoint():
        os.truncate(file, file.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def small_files(*_):
    """As under ulimit -f: no file grows any more, on a disk that has room."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))


def far_and_die(*_):
    """Its newest whole checkpoint stands under another step's name as well, and the rank ends."""
    newest = _newest_checkpoint()[0].parent
    shutil.copytree(newest, newest.with_name("99999999"))
    os.kill(os.getpid(), signal.SIGKILL)


def weights_in_the_way(*_):
    """A folder stands where the weights belong."""
    Path(os.environ["RANKDECK_RUN"], "weights.safetensors", "mine").mkdir(parents=True)


def own_end(*_):
    """It says itself, in the run's own file, that all is well."""
    end = {"outcome": "completed", "exit_code": 0, "ended": time.time()}
    Path(os.environ["RANKDECK_RUN"], "end.json").write_text(json.dumps(end))
    time.sleep(1.0)
    raise ValueError("bad batch 17")


def disk_full(*_):
    (HERE / "disk-is-full").touch()


def disk_full_for_a_while(*_):
    (HERE / "disk-is-full").touch()
    threading.Timer(0.4, (HERE / "disk-is-full").unlink).start()


def breakpoint_for_a_while(*_):
    """As breakpoint(), where somebody types `c` after a while."""
    import pdb  # noqa: T100

    reader, writer = os.pipe()
    threading.Timer(PLAN["debugged_s"], lambda: os.write(writer, b"c\n")).start()
    pdb.Pdb(stdin=os.fdopen(reader), stdout=open(os.devnull, "w")).set_trace()  # noqa: SIM115


def let_trace(*_):
    """Whoever wants to may attach: some machines allow it to parents alone."""
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)


def nothing(*_):
    """It is done from outside, which has read the sign by now or soon will."""
    while not (HERE / "go-on").exists() and PLAN["waits"]:
        time.sleep(0.005)


ACTS = {
    "SIGKILL": send(signal.SIGKILL),
    "SIGSEGV": null_pointer,
    "SIGABRT": lambda *_: os.abort(),
    "abort in C": native_abort,
    "SIGBUS": bus_error,
    "SIGFPE": send(signal.SIGFPE),
    "SIGILL": send(signal.SIGILL),
    "SIGHUP": send(signal.SIGHUP),
    "SIGXCPU": cpu_limit,
    "SIGPIPE": broken_pipe,
    "native thread": native_thread,
    "os._exit(0)": leave(0),
    "os._exit(7)": leave(7),
    "sys.exit(3)": sys_exit,
    "ValueError": throw(lambda: ValueError("bad batch 17")),
    "no message": throw(ValueError),
    "not UTF-8": throw(lambda: ValueError(f"bad batch {STRANGE}")),
    "huge message": throw(lambda: ValueError("bad batch 17 " + "9" * 2_000_000)),
    "own exception": throw(lambda: OwnError(17, "it is bad")),
    "own BaseException": throw(lambda: OwnBaseError("bad batch 17")),
    "unspeakable": throw(Unspeakable),
    "group": throw(grouped),
    "chained": chained,
    "KeyboardInterrupt": throw(KeyboardInterrupt),
    "AssertionError": throw(lambda: AssertionError("the loss went up")),
    "MemoryError": throw(MemoryError),
    "RecursionError": recursion,
    "ImportError": throw(lambda: ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn")),
    "FileNotFoundError": lambda *_: Path("/nowhere/at/all/tokens.bin").read_bytes(),
    "no memory": forbidden_memory,
    "too many files": too_many_files,
    "no more files": no_more_files,
    "flood": flooded,
    "thread raises": thread_raises,
    "NaN": not_a_number,
    "infinite": infinite,
    "fewer targets": fewer_targets,
    "float targets": float_targets,
    "large labels": large_labels,
    "odd sample": odd_sample,
    "narrow": narrow,
    "other dtype": other_dtype,
    "spin": spin,
    "sleep": sleep,
    "barrier": barrier,
    "all_reduce": all_reduce,
    "synchronize": synchronize,
    "stays in backward": stay_in_backward,
    "deadlock": deadlock,
    "read a pipe": read_pipe,
    "one barrier more": one_barrier_more,
    "other order": other_order,
    "other shape": other_shape,
    "receive": receive,
    "thread stays": stay,
    "stays at exit": stay_at_exit,
    "close all": close_all,
    "reset": reset_connections,
    "close stdout": close_stdout,
    "print to nobody": print_to_nobody,
    "grandchild": grandchild,
    "grandchild, raise": grandchild_and_raise,
    "slow": slow,
    "damaged checkpoint": damage_and_die,
    "truncated checkpoint": cut_and_die,
    "small files": small_files,
    "checkpoint under a wrong step number": far_and_die,
    "weights in the way": weights_in_the_way,
    "own end": own_end,
    "disk full": disk_full,
    "disk read-only": disk_full,
    "disk broken": disk_full,
    "disk full for events": disk_full,
    "disk full for a while": disk_full_for_a_while,
    "breakpoint": breakpoint_for_a_while,
    "let trace": let_trace,
    "nothing": nothing,
}
