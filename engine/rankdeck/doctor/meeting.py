"""Two ranks that meet on this machine: a store on loopback, an all_reduce whose sum is checked, its speed.

They see what ranks of a script would see. Where they fail, they are tried once more with the one setting that
most often helps, so that the cause is named. Read probe_meeting.py before, which is what a rank runs.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from rankdeck.base.errors import MachineError
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import ALL_OF, listed, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.doctor.lines import CheckLine, Verdict, not_tried, row
from rankdeck.doctor.python import last_object
from rankdeck.telemetry.listing import list_gpus

IMPORTS_WITHIN_S, MEETS_WITHIN_S = 60.0, 15.0
LIMIT_S = 2 * (IMPORTS_WITHIN_S + MEETS_WITHIN_S) + 10
_PROBE = Path(__file__).with_name("probe_meeting.py")
_FIXES = {"gloo": ("GLOO_SOCKET_IFNAME", "lo"), "nccl": ("NCCL_P2P_DISABLE", "1")}
"""By backend: the variable, and the value of it, that helps most often."""
_ADVICE = {
    "gloo": marked("gloo takes the interface that the hostname resolves to; loopback does for one host."),
    "nccl": marked("Peer to peer between these GPUs does not work; IOMMU and ACS are the usual cause."),
}
_DOING = {
    "": marked("they imported torch"),
    "torch": marked("they opened a store on loopback"),
    "store": marked("they connected to each other"),
    "met": marked("they added up a tensor"),
    "summed": marked("the speed was measured"),
}
"""By the last step that was done: what came next."""
_LAST = "measured"
_CHUNK_BYTES = 1 << 16
_FRAMES = ("frame #", "Exception raised from")


@dataclass
class Meeting:
    """How it went: `stages` are the steps that a rank had done, with their facts, one list for each rank."""

    stages: tuple[list[JsonObject], list[JsonObject]] = field(default_factory=lambda: ([], []))
    codes: tuple[int | None, int | None] = (None, None)
    """None of a rank that was ended because it had its time."""
    last_lines: tuple[str, str] = ("", "")
    seconds: float = 0.0

    def fact(self, name: str) -> Any:
        """The newest of rank 0 that is called so."""
        return next((step[name] for step in reversed(self.stages[0]) if name in step), None)

    @property
    def reached(self) -> str:
        """The last step that both had done, or that the one had done which failed."""
        failed = [steps for steps, code in zip(self.stages, self.codes, strict=True) if code]
        shortest = min(failed or self.stages, key=len)
        return str(shortest[-1]["stage"]) if shortest else ""

    @property
    def num_wrong(self) -> int:
        return sum(step.get("num_wrong", 0) for steps in self.stages for step in steps)

    @property
    def is_good(self) -> bool:
        return self.reached == _LAST and self.codes == (0, 0) and not self.num_wrong


def meet(python: Path, backend: str, environment: Mapping[str, str]) -> Meeting:
    """Two ranks in that interpreter, ended where they take too long.

    Raises: OSError where it cannot be started.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        ranks: list[subprocess.Popen[bytes]] = []
        meeting = Meeting()
        try:
            for rank, errors in enumerate((first, second)):
                ranks.append(_rank(rank, python, backend, environment, errors))
            _follow(ranks, meeting)
            codes = [rank.poll() for rank in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        meeting.codes = codes[0], codes[1]
        meeting.last_lines = _last_line(first), _last_line(second)
    meeting.seconds = time.monotonic() - began_s
    return meeting


def _rank(
    rank: int, python: Path, backend: str, environment: Mapping[str, str], errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, _PROBE, str(rank), backend, str(MEETS_WITHIN_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={"OMP_NUM_THREADS": "1", **environment},
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def _follow(ranks: Sequence[subprocess.Popen[bytes]], meeting: Meeting) -> None:
    """Take their lines until both have ended, one has failed, or they have had their time."""
    end_s = time.monotonic() + IMPORTS_WITHIN_S
    unfinished = [b"", b""]
    with selectors.DefaultSelector() as selector:
        for number, process in enumerate(ranks):
            selector.register(process.stdout or 0, selectors.EVENT_READ, number)
        while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                rank: int = key.data
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                    if ranks[rank].wait() != 0:
                        return
                    continue
                *lines, unfinished[rank] = (unfinished[rank] + chunk).split(b"\n")
                had_torch = meeting.reached
                for step in filter(None, map(last_object, lines)):
                    meeting.stages[rank].append(step)
                    if "port" in step:
                        _pass_on(step["port"], ranks[1])
                if not had_torch and meeting.reached:
                    end_s = time.monotonic() + MEETS_WITHIN_S


def _pass_on(port: int, process: subprocess.Popen[bytes]) -> None:
    try:
        assert process.stdin is not None
        process.stdin.write(b"%d\n" % port)
        process.stdin.flush()
    except OSError:
        pass  # it has ended, which its exit code tells


def _last_line(errors: IO[bytes]) -> str:
    """Of what a rank said, without the frames of C++ that torch adds."""
    errors.seek(0)
    said = errors.read(1 << 20).decode(errors="replace").splitlines()
    lines = [line.strip() for line in said if line.strip() and not line.startswith(_FRAMES)]
    return lines[-1][:300] if lines else ""


def look_at_gloo(python: Path) -> Iterator[CheckLine]:
    yield _looked("gloo", python, os.environ)


def look_at_nccl(python: Path) -> Iterator[CheckLine]:
    """On two GPUs that nobody uses: what a run holds is not touched."""
    try:
        gpus = list_gpus()
    except MachineError as error:
        yield from not_tried(["nccl"], phrase("There is no driver that answers: not tried."), error.message)
        return
    free = [gpu for gpu in gpus if gpu.is_for_auto]
    if len(free) < 2:
        why = phrase("It takes two GPUs that nobody uses: not tried.")
        evidence = phrase("GPUs that are free: {free} of {count} (NVML)", free=len(free), count=len(gpus))
        yield from not_tried(["nccl"], why, evidence)
        return
    visible = ",".join(gpu.uuid for gpu in free[:2])
    names = listed((f"GPU {gpu.index}" for gpu in free[:2]), ALL_OF)
    yield _looked("nccl", python, {**os.environ, "CUDA_VISIBLE_DEVICES": visible}, names)


def _looked(backend: str, python: Path, environment: Mapping[str, str], where: str = "") -> CheckLine:
    evidence = [phrase("{python} on {where}", python=python, where=where) if where else str(python)]
    try:
        first = meet(python, backend, environment)
        evidence += _evidence(first)
        if first.is_good:
            return row(backend, Verdict.GOOD, _speed(first), *evidence)
        if first.reached == "":
            finding, fix = (
                phrase("No two ranks can start: torch is not imported."),
                phrase("See Python and torch."),
            )
            return row(backend, Verdict.NOT_TRIED, finding, *evidence, fix=fix)
        variable, value = _FIXES[backend]
        again = meet(python, backend, {**environment, variable: value})
    except OSError as error:
        return not_tried([backend], phrase("{python} cannot be started.", python=python), str(error))[0]
    if again.is_good:
        evidence.append(phrase("with {variable}={value} it works", variable=variable, value=value))
        command = f"export {variable}={value}"
        return row(
            backend, Verdict.BROKEN, _fault(first), *evidence, fix=phrase(_ADVICE[backend]), command=command
        )
    evidence.append(phrase("with {variable}={value} it fails, too", variable=variable, value=value))
    fix = phrase("See hostname, interface and loopback; a firewall may be in the way.")
    if backend == "nccl":
        fix = phrase("Set NCCL_DEBUG=INFO and look again: NCCL then says what it tries.")
    return row(backend, Verdict.BROKEN, _fault(first), *evidence, fix=fix)


def _speed(meeting: Meeting) -> str:
    num_bytes, seconds = meeting.fact("num_bytes"), meeting.fact("seconds")
    return phrase(
        "They meet, their sums are right, and an all_reduce of {size} runs at {speed}/s.",
        size=format_bytes(num_bytes, 0),
        speed=format_bytes(num_bytes / seconds),
    )


def _fault(meeting: Meeting) -> str:
    if meeting.num_wrong:
        return phrase("They meet, and {count} of their sums are wrong.", count=meeting.num_wrong)
    doing = phrase(_DOING.get(meeting.reached, _DOING["summed"]))
    if any(meeting.codes):
        return phrase("They failed when {doing}.", doing=doing)
    return phrase("They hung when {doing}.", doing=doing)


def _evidence(meeting: Meeting) -> list[str]:
    told: list[str] = []
    for rank, (code, line) in enumerate(zip(meeting.codes, meeting.last_lines, strict=True)):
        if line:
            told.append(phrase("rank {rank}: {line}", rank=rank, line=line))
        if code:
            told.append(phrase("rank {rank} ended with {code}", rank=rank, code=code))
        elif code is None and not any(meeting.codes):
            told.append(phrase("rank {rank} was ended, it took too long", rank=rank))
    told.append(phrase("{seconds:.1f} s from the start of two processes", seconds=meeting.seconds))
    return told
