"""Every kind of fault as data: what is done, where, in which classes of jobs, and what must be told of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.jobs import CLASSES

ALL = tuple(CLASSES)
OURS = tuple(name for name, job_class in CLASSES.items() if not job_class.is_script)
SCRIPTS = tuple(name for name, job_class in CLASSES.items() if job_class.is_script)
SEVERAL = tuple(name for name, job_class in CLASSES.items() if job_class.processes > 1)
ALONE = tuple(name for name, job_class in CLASSES.items() if job_class.processes == 1)
OUR_SEVERAL = tuple(name for name in SEVERAL if name in OURS)
STEP = ("optimizer",)
IN_RANK = ("optimizer", "loss", "forward", "backward", "data", "evaluation", "save")
COMPUTES = ("optimizer", "loss", "forward", "backward")
RAISES = (*COMPUTES, "data", "evaluation")
"""Of what is raised in a save the run may go on."""


@dataclass(frozen=True)
class Expected:
    """What a reader must be told of the fault. `codes`: any of these, or any at all where none is named;
    `fragments`: all of them, whatever their case, in its text. `rank`: "its" (none is as good where there is
    one process), "none", or "any". `severity` error: it is the one cause of the end; warning: it is told
    while the run goes on; nothing: nobody is told; reason: in the run's last word, where no event could be
    written; any: an error or a warning, or the run went on as if nothing had been.
    """

    codes: tuple[str, ...] = ()
    fragments: tuple[str, ...] = ()
    rank: str = "its"
    severity: str = "error"
    outcome: tuple[str, ...] = ("failed",)
    exit_codes: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Kind:
    """`outside`: what is done from outside once the job has come to the place (outside.py). `hangs`: it is
    told only once nothing has moved for a while; then the run ends by itself, or a script has to be stopped.
    `of_scripts`: what is told of a person's own script, where that is something else. `more`: further entries
    of the configuration's tables. `shows_s`: how long it takes until torch itself looks.
    """

    name: str
    act: str
    expected: Expected
    where: tuple[str, ...] = STEP
    classes: tuple[str, ...] = ALL
    outside: str = ""
    hangs: bool = False
    of_scripts: Expected | None = None
    workers: int = 0
    phases: tuple[str, ...] = ("first", "middle", "last")
    everywhere: bool = False
    shows_s: float = 0.0
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    loses_events: bool = False

    def expected_for(self, name: str) -> Expected:
        """What must be told of a job of this class."""
        return self.of_scripts if self.of_scripts is not None and CLASSES[name].is_script else self.expected


HANG = Expected(("hang",), ("while the other ranks waited", "step"), outcome=("failed",))
STILL = Expected(
    ("hang-suspected",), ("no progress for",), severity="warning", outcome=("stopped",), exit_codes=(130,)
)
ALONE_STILL = Expected(("hang",), ("made no progress",))
COMPUTING = Expected(
    ("hang-suspected",), ("no progress for",), severity="warning", outcome=("stopped",), exit_codes=(130,)
)
GOES_ON = Expected(severity="nothing", outcome=("completed",), exit_codes=(0,))


def _signal(name: str, code: str = "rank-crashed", act: str = "", where: tuple[str, ...] = IN_RANK) -> Kind:
    return Kind(
        "C code in a rank calls abort()" if act else f"a rank is killed by {name}",
        act or name,
        Expected((code,), (name,)),
        where,
    )


def _raises(name: str, act: str, *fragments: str, where: tuple[str, ...] = RAISES, **more: Any) -> Kind:
    return Kind(name, act, Expected((), fragments), where, **more)


def _hang(name: str, act: str, expected: Expected = HANG, of_scripts: Expected = STILL, **more: Any) -> Kind:
    return Kind(
        name, act, expected, hangs=True, of_scripts=of_scripts, **{"phases": ("middle", "last"), **more}
    )


def _damaged(act: str) -> Kind:
    expected = Expected(
        ("checkpoint-damaged",),
        ("checkpoint",),
        rank="any",
        severity="warning",
        outcome=("completed",),
        exit_codes=(0,),
    )
    restarts = {"launch": {"max_restarts": 1}}
    return Kind(f"{act} at a restart", act, expected, classes=OURS, phases=("late",), more=restarts)


def _bad_disk(act: str, text: str) -> Kind:
    expected = Expected((), (text,), rank="any", severity="reason", exit_codes=(1, 3))
    return Kind(
        f"{act} from some step onwards", act, expected, classes=OURS, phases=("middle",), loses_events=True
    )


SIGNALS = (
    _signal("SIGKILL", "rank-killed"),
    _signal("SIGSEGV"),
    _signal("SIGABRT"),
    _signal("SIGABRT", act="abort in C"),
    _signal("SIGBUS", "rank-killed"),
    _signal("SIGFPE"),
    _signal("SIGILL"),
    _signal("SIGHUP", "rank-killed"),
    _signal("SIGXCPU", "rank-killed", where=STEP),
    _signal("SIGPIPE", "rank-killed"),
    Kind("native thread crashes", "native thread", Expected(("rank-crashed",), ("SIGSEGV",)), COMPUTES),
    Kind(
        "a rank is killed from outside",
        "nothing",
        Expected(("rank-killed",), ("SIGKILL",)),
        outside="kill rank",
    ),
    Kind(
        "SIGTERM to one rank",
        "nothing",
        Expected(("rank-exited",), ("SIGTERM",)),
        outside="term rank",
        of_scripts=Expected(("rank-killed",), ("SIGTERM",)),
    ),
    Kind(
        "SIGKILL of all ranks at once",
        "nothing",
        Expected(("rank-killed",), ("SIGKILL",), rank="any"),
        classes=SEVERAL,
        outside="kill ranks",
    ),
)
EXITS = (
    Kind(
        "os._exit(0)",
        "os._exit(0)",
        Expected(("rank-exited",), ("exited with status 0",)),
        IN_RANK,
        classes=OURS,
    ),
    Kind(
        "a script's rank exits early with status 0",
        "os._exit(0)",
        Expected(("rank-left", "rank-exited"), ("status 0",)),
        COMPUTES,
        classes=("script, ddp",),
        phases=("first", "middle"),
    ),
    Kind("os._exit(7)", "os._exit(7)", Expected(("rank-exited",), ("status 7",)), IN_RANK),
    Kind(
        "sys.exit(3)",
        "sys.exit(3)",
        Expected((), ("3",), exit_codes=(1, 3)),
        RAISES,
    ),
)
EXCEPTIONS = (
    *(
        _raises(f"exception in {where}", "ValueError", "ValueError", "bad batch 17", where=(where,))
        for where in ("forward", "backward", "loss", "optimizer", "data", "evaluation")
    ),
    Kind(
        "exception in save",
        "ValueError",
        # In a save that the run can do without it goes on.
        Expected(
            (),
            ("ValueError", "bad batch 17"),
            rank="any",
            severity="any",
            outcome=("failed", "completed"),
            exit_codes=(0, 1),
        ),
        ("save",),
        classes=OURS,
    ),
    _raises("exception without a message", "no message", "ValueError"),
    _raises("exception whose message is not UTF-8", "not UTF-8", "ValueError", "bad batch caf"),
    _raises("exception with a message of 2 MB", "huge message", "ValueError", "bad batch 17", classes=OURS),
    _raises("a user-defined exception class", "own exception", "OwnError", "it is bad"),
    _raises("a BaseException", "own BaseException", "OwnBaseError", "bad batch 17", where=COMPUTES),
    _raises("an exception whose __str__ raises", "unspeakable", "Unspeakable", where=COMPUTES),
    _raises("an exception group", "group", "ExceptionGroup", "two at once", where=COMPUTES),
    _raises("an exception with a cause", "chained", "ValueError", "the settings are incomplete"),
    Kind(
        "KeyboardInterrupt in one rank",
        "KeyboardInterrupt",
        Expected((), ("KeyboardInterrupt",)),
        COMPUTES,
        of_scripts=Expected((), (), exit_codes=(1,)),
    ),
    _raises("failed assertion", "AssertionError", "AssertionError", "the loss went up"),
    _raises("endless recursion", "RecursionError", "RecursionError", where=COMPUTES),
    _raises("a missing package, noticed during training", "ImportError", "flash_attn", where=COMPUTES),
    _raises("a missing file, noticed during training", "FileNotFoundError", "/nowhere/at/all/tokens.bin"),
    _raises("too many open files", "too many files", "Too many open files", where=COMPUTES),
    Kind("MemoryError", "MemoryError", Expected(("out-of-memory",), ("MemoryError",)), COMPUTES),
    Kind("more memory than ulimit -v", "no memory", Expected(("out-of-memory",), ("memory",)), STEP),
    _raises("3 MB on stderr, then an exception", "flood", "ValueError", "bad batch 17", where=COMPUTES),
    Kind("a thread raises", "thread raises", GOES_ON, COMPUTES),
    Kind(
        "exception in a DataLoader worker",
        "ValueError",
        Expected((), ("ValueError", "bad batch 17")),
        ("data",),
        workers=2,
        classes=("single", "ddp", "fsdp", "script", "script, ddp"),
    ),
    Kind(
        "DataLoader worker out of file descriptors",
        "no more files",
        Expected(("too-many-files",), ("Too many open files",)),
        ("data",),
        workers=2,
        classes=("single", "ddp", "fsdp", "script", "script, ddp"),
        phases=("middle",),
        shows_s=5.0,
    ),
    Kind(
        "DataLoader worker killed",
        "SIGKILL",
        Expected((), ("DataLoader worker",)),
        ("data",),
        workers=2,
        classes=("single", "ddp", "fsdp", "script", "script, ddp"),
        phases=("first",),
        shows_s=5.0,
    ),
)
START = (
    Kind(
        "import raises",
        "ImportError",
        Expected((), ("flash_attn",), exit_codes=(1, 2)),
        ("import",),
        phases=("first",),
        everywhere=True,
    ),
    Kind(
        "import raises in one rank",
        "ValueError",
        Expected((), ("bad batch 17",), exit_codes=(1, 2)),
        ("import",),
        classes=SEVERAL,
        phases=("first",),
    ),
    Kind(
        "model factory raises",
        "ValueError",
        Expected((), ("bad batch 17",), exit_codes=(1, 2)),
        ("factory",),
        phases=("first",),
        everywhere=True,
    ),
    Kind(
        "a rank is killed while it builds the model",
        "SIGKILL",
        Expected(("rank-killed",), ("SIGKILL",)),
        ("factory",),
        phases=("first",),
    ),
)
STARTED = (
    Kind(
        "no space at the start",
        "disk full",
        Expected((), ("o space",), severity="reason", outcome=("none", "failed"), exit_codes=(1, 2, 3)),
        ("start",),
        # What a script itself writes is elsewhere.
        of_scripts=Expected(
            (),
            ("o space",),
            severity="reason",
            outcome=("none", "failed", "completed"),
            exit_codes=(0, 1, 2, 3),
        ),
        outside="fill disk",
        phases=("first",),
    ),
    Kind(
        "terminal closed at the start",
        "nothing",
        # Nobody is left to read what is said; 141 where it was just about to be written.
        Expected((), (), severity="reason", outcome=("none", "stopped"), exit_codes=(129, 130, 141, -1)),
        ("start",),
        outside="close terminal",
        phases=("first",),
    ),
    Kind(
        "folder of runs removed at the start",
        "nothing",
        Expected((), ("folder",), severity="reason", outcome=("none",), exit_codes=(1, 2, 3)),
        ("start",),
        outside="remove runs",
        phases=("first",),
    ),
)
NUMBERS = (
    # Not in a step of the trial that comes before the first step: it would find a strategy that computes NaN.
    Kind(
        "NaN in the loss",
        "NaN",
        Expected(("loss-not-finite",), ("NaN",)),
        ("loss",),
        classes=OURS,
        phases=("middle", "last"),
    ),
    Kind(
        "infinite gradients",
        "infinite",
        Expected(("loss-not-finite",), (), rank="any"),
        ("backward",),
        classes=OURS,
        phases=("middle",),
    ),
    _raises("fewer targets than outputs", "fewer targets", "batch", where=("loss",)),
    _raises("targets of another dtype", "float targets", "", where=("loss",)),
    _raises("labels out of range", "large labels", "", where=("loss",)),
    Kind("one sample of another shape", "odd sample", Expected((), ("stack",), exit_codes=(1, 2)), ("data",)),
    _raises("activations of another shape", "narrow", "", where=("forward",)),
    # Nor here: it computes in fp64, which is that dtype.
    _raises("activations of another dtype", "other dtype", "", where=("forward",), phases=("middle", "last")),
)
HANGS = (
    _hang("endless loop", "spin", classes=(*OUR_SEVERAL, "script, ddp")),
    _hang("endless loop in a single-process run", "spin", COMPUTING, classes=("single", "dp", "model")),
    _hang("sleeps for ever", "sleep", where=COMPUTES, classes=SEVERAL),
    _hang("sleeps for ever, single process", "sleep", ALONE_STILL, where=COMPUTES, classes=ALONE),
    *(
        _hang(
            f"hang in a user function called {name}", name, where=("forward", "loss", "data"), classes=SEVERAL
        )
        for name in ("barrier", "all_reduce", "synchronize")
    ),
    _hang("hangs in a user-defined backward", "stays in backward", where=("backward",), classes=SEVERAL),
    _hang("deadlock on a lock", "deadlock", where=COMPUTES, classes=SEVERAL),
    _hang("deadlock on a lock, single process", "deadlock", ALONE_STILL, where=COMPUTES, classes=ALONE),
    _hang("waits for a pipe", "read a pipe", classes=SEVERAL),
    _hang(
        "import hangs",
        "sleep",
        Expected(("hang",), ("while the other ranks waited", "sleep")),
        where=("import",),
        classes=("ddp", "fsdp", "script, ddp"),
        phases=("first",),
    ),
    _hang(
        "waits for a message that nobody sends",
        "receive",
        Expected(("hang",), ("every rank is waiting", "recv"), rank="any"),
        Expected(
            ("hang-suspected",),
            ("no progress for", "recv"),
            rank="any",
            severity="warning",
            outcome=("stopped",),
            exit_codes=(130,),
        ),
        classes=("ddp", "fsdp", "script, ddp"),
    ),
    _hang(
        "one extra barrier on one rank",
        "one barrier more",
        Expected(("hang",), ("collective",), rank="any"),
        Expected(
            ("hang-suspected", "rank-left"),
            ("no progress for",),
            rank="any",
            severity="warning",
            outcome=("stopped", "failed"),
            exit_codes=(130, 1),
        ),
        classes=("ddp", "fsdp", "script, ddp"),
        phases=("middle",),
    ),
    _hang(
        "collectives in another order",
        "other order",
        Expected(("hang",), ("different collectives",), rank="none"),
        Expected(
            ("hang-suspected",),
            ("different collectives", "broadcast number", "all_reduce number"),
            rank="none",
            severity="warning",
            outcome=("stopped",),
            exit_codes=(130,),
        ),
        classes=("ddp", "fsdp", "script, ddp"),
        phases=("middle",),
    ),
    Kind(
        "a collective with different shapes",
        "other shape",
        Expected(("collectives-differ",), ("different shapes", "all_reduce number"), rank="none"),
        classes=("ddp", "fsdp", "script, ddp"),
        phases=("middle",),
        everywhere=True,
    ),
    _hang(
        "fewer batches on one rank",
        "fewer batches",
        of_scripts=Expected(
            ("rank-left", "communication"),
            (),
            rank="any",
            severity="any",
            outcome=("stopped", "failed"),
            exit_codes=(130, 1),
        ),
        classes=("script, ddp",),
        where=("none",),
    ),
    Kind(
        "SIGSTOP of a rank",
        "nothing",
        Expected(
            ("rank-suspended",),
            ("suspended", "SIGSTOP"),
            severity="warning",
            outcome=("completed",),
            exit_codes=(0,),
        ),
        outside="suspend rank",
        hangs=True,
        phases=("middle",),
    ),
)
MACHINE = (
    Kind(
        "supervisor suspended",
        "nothing",
        Expected(
            ("supervisor-suspended",),
            ("suspended", "SIGSTOP"),
            rank="none",
            severity="warning",
            outcome=("completed",),
            exit_codes=(0,),
        ),
        outside="suspend supervisor",
        hangs=True,
        phases=("middle",),
    ),
    Kind(
        "supervisor killed",
        "nothing",
        Expected(("supervisor-lost",), ("SIGKILL",), rank="any"),
        outside="kill supervisor",
    ),
    Kind(
        "guard killed",
        "nothing",
        Expected(rank="any", severity="nothing", outcome=("lost",), exit_codes=()),
        outside="kill guard",
    ),
    Kind(
        "guard and supervisor killed",
        "nothing",
        Expected(rank="any", severity="nothing", outcome=("lost",), exit_codes=()),
        outside="kill both",
    ),
    Kind("control socket removed", "nothing", GOES_ON, outside="remove socket"),
    Kind(
        "run directory removed",
        "nothing",
        Expected(rank="any", severity="nothing", outcome=("removed",), exit_codes=()),
        outside="remove run",
    ),
    Kind("run directory moved", "nothing", GOES_ON, outside="move run"),
    Kind(
        "run directory moved during a save",
        "nothing",
        GOES_ON,
        ("save",),
        classes=OURS,
        outside="move run",
        phases=("first", "middle"),
    ),
    Kind(
        "run directory moved, and another in its place",
        "nothing",
        Expected(("run-folder",), ("moved to",), rank="none"),
        outside="replace run",
    ),
    Kind("run frozen for 40 s", "nothing", GOES_ON, outside="freeze run", phases=("middle",)),
    Kind("requests folder removed", "nothing", GOES_ON, classes=OURS, outside="remove requests"),
    Kind(
        "store killed",
        "nothing",
        Expected((), (), rank="any", severity="any", outcome=("completed", "failed"), exit_codes=(0, 1)),
        classes=("script, ddp",),
        outside="kill store",
    ),
    Kind(
        "connections reset",
        "reset",
        Expected((), (), rank="any"),
        classes=(*OUR_SEVERAL, "script, ddp"),
        phases=("middle",),
    ),
    Kind(
        "closes all its files",
        "close all",
        Expected((), (), rank="any"),
        classes=("ddp", "fsdp", "script, ddp"),
        phases=("middle",),
    ),
    Kind("stdout closed", "close stdout", GOES_ON),
    Kind("prints to a closed stdout", "print to nobody", Expected((), ("closed file",)), COMPUTES),
    Kind(
        "a grandchild keeps the rank's pipes open",
        "grandchild",
        Expected(rank="any", severity="nothing", outcome=("completed",), exit_codes=(0,)),
        of_scripts=Expected(
            ("left-behind",),
            ("left",),
            rank="any",
            severity="warning",
            outcome=("completed",),
            exit_codes=(0,),
        ),
    ),
    Kind(
        "a grandchild keeps the rank's pipes open, then an exception",
        "grandchild, raise",
        Expected((), ("ValueError", "bad batch 17")),
    ),
    Kind("a thread that does not end", "thread stays", GOES_ON, classes=OURS),
    Kind("an exit handler that does not end", "stays at exit", GOES_ON, classes=OURS),
    Kind("slow save", "slow", GOES_ON, ("save",), classes=OURS, phases=("first", "middle")),
    Kind("slow evaluation", "slow", GOES_ON, ("evaluation",), phases=("first", "middle")),
    Kind(
        "state that cannot be serialized",
        "no file can hold it",
        Expected((), ("model",), rank="any"),
        ("none",),
        classes=OURS,
        phases=("first",),
    ),
    Kind(
        "parameters without a gradient",
        "unused",
        # 2 where the check before the first step finds it.
        Expected(("unused-parameters",), (), rank="any", exit_codes=(1, 2)),
        ("none",),
        classes=("ddp", "script, ddp"),
        phases=("first",),
        everywhere=True,
    ),
)
DISK = (
    Kind(
        "disk full from some step onwards",
        "disk full",
        Expected((), ("o space",), rank="any", severity="reason", exit_codes=(1, 3)),
        classes=OURS,
        phases=("middle",),
        loses_events=True,
    ),
    _bad_disk("disk read-only", "ead-only file system"),
    _bad_disk("disk broken", "nput/output error"),
    Kind(
        "disk full for a moment",
        "disk full for a while",
        Expected(
            ("disk-full", "checkpoint-not-saved", "checkpoint-would-fail"),
            (),
            rank="any",
            severity="warning",
            outcome=("completed",),
            exit_codes=(0,),
        ),
        classes=OURS,
        phases=("early",),
        loses_events=True,
    ),
    Kind(
        "one rank's events cannot be written",
        "disk full for events",
        Expected(
            ("disk-full",),
            ("lines of the run's events", "(rank "),
            rank="any",
            severity="warning",
            outcome=("completed",),
            exit_codes=(0,),
        ),
        phases=("early", "middle"),
        loses_events=True,
    ),
    _damaged("damaged checkpoint"),
    _damaged("truncated checkpoint"),
    _damaged("checkpoint under a wrong step number"),
    Kind(
        "file size limit reached",
        "small files",
        Expected(
            (),
            ("File too large",),
            rank="any",
            severity="any",
            outcome=("completed", "failed"),
            exit_codes=(0, 1, 3),
        ),
        classes=OURS,
        phases=("middle",),
        loses_events=True,
    ),
    Kind(
        "weights cannot be written",
        "weights in the way",
        Expected(("weights-not-saved",), ("final weights", "directory"), rank="any"),
        classes=OURS,
        phases=("early",),
    ),
    _raises(
        "user code writes end.json, then an exception", "own end", "ValueError", "bad batch 17", where=STEP
    ),
    Kind(
        "killed once, with a restart",
        "SIGKILL",
        Expected(("restarted",), ("SIGKILL",), severity="warning", outcome=("completed",), exit_codes=(0,)),
        IN_RANK,
        classes=OURS,
        more={"launch": {"max_restarts": 1}},
    ),
)
KINDS = {
    kind.name: kind
    for kind in (*SIGNALS, *EXITS, *EXCEPTIONS, *START, *STARTED, *NUMBERS, *HANGS, *MACHINE, *DISK)
}


@dataclass(frozen=True)
class Drawn:
    """One trial: a kind in a class of jobs, at a place in a step of a rank."""

    kind: str
    job: str
    where: str
    step: int
    rank: int
    steps: int = 120


def draw(kind: Kind, choose: random.Random) -> Drawn:
    """Class, place and moment."""
    job = choose.choice(kind.classes)
    where = choose.choice([location for location in kind.where if _exists(location, job)] or kind.where)
    phase = choose.choice(kind.phases)
    steps = 120
    step = {
        # The first few are steps of a trial, which comes before the first step.
        "first": choose.randrange(8),
        "early": 20,
        "middle": choose.randrange(15, 80),
        "late": choose.randrange(60, 95),
        "last": steps - 1,
    }[phase]
    if where in ("evaluation", "save", "data"):
        step = min(step, 80)
    elif where in ("import", "factory"):
        step = 0
    ranks = CLASSES[job].processes
    rank = choose.randrange(ranks)
    if CLASSES[job].strategy.get("use") in ("pipeline", "pipeline-async"):
        rank = {"loss": ranks - 1, "data": 0}.get(where, rank)
    if job == "hybrid":
        # Two replicas of two stages.
        rank = {"loss": rank | 1, "data": rank & 2}.get(where, rank)
    if job == "script, ddp" and where == "save":
        rank = 0
    return Drawn(kind.name, job, where, step, rank, steps)


def _exists(location: str, job: str) -> bool:
    """A script saves on its own; its last step saves nothing that others wait for."""
    return not (job in SCRIPTS and location == "save")
