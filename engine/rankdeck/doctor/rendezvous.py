"""Check that two ranks can connect on this machine and that an all_reduce sums correctly; measure its speed.

The ranks have the environment that a script's ranks would have. If they fail, they are started once more with
the one setting that most often helps, so that the cause can be named. Each rank runs probe_rendezvous.py.
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
from rankdeck.base.phrases import AND_TEMPLATE, join_phrases, phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.doctor.lines import CheckLine, Verdict, make_row, skipped_rows
from rankdeck.doctor.python import parse_last_line
from rankdeck.telemetry.listing import list_gpus

IMPORT_TIMEOUT_S, RENDEZVOUS_TIMEOUT_S = 60.0, 15.0
# Twice, because ranks that fail are tried again with one of _FIX_VARIABLES.
LIMIT_S = 2 * (IMPORT_TIMEOUT_S + RENDEZVOUS_TIMEOUT_S) + 10
_PROBE = Path(__file__).with_name("probe_rendezvous.py")
_FIX_VARIABLES = {"gloo": ("GLOO_SOCKET_IFNAME", "lo"), "nccl": ("NCCL_P2P_DISABLE", "1")}
"""Backend -> the environment variable that most often fixes a failed rendezvous, and its value."""
_ADVICE = {
    "gloo": tr_noop(
        "gloo uses the interface of the hostname's address; loopback is sufficient on a single host."
    ),
    "nccl": tr_noop(
        "Peer-to-peer access between these GPUs does not work; IOMMU and ACS are the usual causes."
    ),
}
_STAGE_TEXTS = {
    "": tr_noop("importing torch"),
    "torch": tr_noop("opening a store on loopback"),
    "store": tr_noop("connecting to each other"),
    "met": tr_noop("summing tensors"),
    "summed": tr_noop("measuring the speed"),
}
"""Last finished stage -> text for the stage after it."""
_LAST_STAGE = "measured"
_CHUNK_BYTES = 1 << 16
_CPP_FRAMES = ("frame #", "Exception raised from")


@dataclass
class RendezvousResult:
    """Result of a rendezvous. `steps` lists, for each rank, the steps that it reported as finished."""

    steps: tuple[list[JsonObject], list[JsonObject]] = field(default_factory=lambda: ([], []))
    exit_codes: tuple[int | None, int | None] = (None, None)
    """The ranks' exit codes; None for a rank that was killed at the time limit."""
    last_lines: tuple[str, str] = ("", "")
    seconds: float = 0.0

    def fact(self, name: str) -> Any:
        """Return the latest value that rank 0 reported under this name; None if it reported none."""
        return next((step[name] for step in reversed(self.steps[0]) if name in step), None)

    @property
    def last_stage(self) -> str:
        """The last stage that both ranks have finished; if a rank has failed, the last stage that the failed
        rank has finished."""
        failed = [steps for steps, code in zip(self.steps, self.exit_codes, strict=True) if code]
        shortest = min(failed or self.steps, key=len)
        return str(shortest[-1]["stage"]) if shortest else ""

    @property
    def num_wrong(self) -> int:
        return sum(step.get("num_wrong", 0) for steps in self.steps for step in steps)

    @property
    def is_ok(self) -> bool:
        return self.last_stage == _LAST_STAGE and self.exit_codes == (0, 0) and not self.num_wrong


def run_rendezvous(python: Path, backend: str, environment: Mapping[str, str]) -> RendezvousResult:
    """Run two ranks with the interpreter, killing them at the time limit.

    Raises:
        OSError: the interpreter cannot be started.
    """
    began_s = time.monotonic()
    # Files, not pipes, for stderr: a rank that writes much (NCCL_DEBUG=INFO) would block on a full pipe.
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        ranks: list[subprocess.Popen[bytes]] = []
        meeting = RendezvousResult()
        try:
            for rank, errors in enumerate((first, second)):
                ranks.append(_start_rank(rank, python, backend, environment, errors))
            _read_steps(ranks, meeting)
            # Before the ranks are killed: afterwards a hung rank has an exit code too.
            codes = [rank.poll() for rank in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        meeting.exit_codes = codes[0], codes[1]
        meeting.last_lines = _last_line(first), _last_line(second)
    meeting.seconds = time.monotonic() - began_s
    return meeting


def _start_rank(
    rank: int, python: Path, backend: str, environment: Mapping[str, str], errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    # OMP_NUM_THREADS as launch/torchrun.py sets it for a script with several ranks; the user's own value
    # wins.
    return subprocess.Popen(
        [python, _PROBE, str(rank), backend, str(RENDEZVOUS_TIMEOUT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={"OMP_NUM_THREADS": "1", **environment},
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


def _read_steps(ranks: Sequence[subprocess.Popen[bytes]], meeting: RendezvousResult) -> None:
    """Add the ranks' reports to `meeting` until both ranks end, one fails, or the time limit is reached."""
    end_s = time.monotonic() + IMPORT_TIMEOUT_S
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
                    # The other rank would now wait for a dead peer until its timeout, and then fail only
                    # because of that.
                    if ranks[rank].wait() != 0:
                        return
                    continue
                *lines, unfinished[rank] = (unfinished[rank] + chunk).split(b"\n")
                had_torch = meeting.last_stage
                for step in filter(None, map(parse_last_line, lines)):
                    meeting.steps[rank].append(step)
                    if "port" in step:
                        _send_port(step["port"], ranks[1])
                if not had_torch and meeting.last_stage:
                    # Importing torch has a limit of its own.
                    end_s = time.monotonic() + RENDEZVOUS_TIMEOUT_S


def _send_port(port: int, process: subprocess.Popen[bytes]) -> None:
    try:
        assert process.stdin is not None
        process.stdin.write(b"%d\n" % port)
        process.stdin.flush()
    except OSError:
        pass  # the rank has ended, as its exit code shows


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line of a rank's stderr, without the C++ frames that torch adds."""
    errors.seek(0)
    output = errors.read(1 << 20).decode(errors="replace").splitlines()
    lines = [line.strip() for line in output if line.strip() and not line.startswith(_CPP_FRAMES)]
    return lines[-1][:300] if lines else ""


def check_gloo(python: Path) -> Iterator[CheckLine]:
    yield _rendezvous_row("gloo", python, os.environ)


def check_nccl(python: Path) -> Iterator[CheckLine]:
    """Check NCCL with two ranks on unused GPUs; GPUs that a run has leased are not touched."""
    try:
        gpus = list_gpus()
    except MachineError as error:
        yield from skipped_rows(["nccl"], phrase("Skipped: no GPU driver responds."), error.message)
        return
    free = [gpu for gpu in gpus if gpu.is_available]
    if len(free) < 2:
        why = phrase("Skipped: this check needs two unused GPUs.")
        evidence = phrase("Unused GPUs: {free} of {count} (NVML)", free=len(free), count=len(gpus))
        yield from skipped_rows(["nccl"], why, evidence)
        return
    # By UUID, because CUDA may number GPUs differently from nvidia-smi (the row "order").
    visible = ",".join(gpu.uuid for gpu in free[:2])
    names = join_phrases((f"GPU {gpu.index}" for gpu in free[:2]), AND_TEMPLATE)
    yield _rendezvous_row("nccl", python, {**os.environ, "CUDA_VISIBLE_DEVICES": visible}, names)


def _rendezvous_row(backend: str, python: Path, environment: Mapping[str, str], where: str = "") -> CheckLine:
    evidence = [phrase("{python} on {where}", python=python, where=where) if where else str(python)]
    try:
        first = run_rendezvous(python, backend, environment)
        evidence += _rank_evidence(first)
        if first.is_ok:
            return make_row(backend, Verdict.OK, _speed_text(first), *evidence)
        if first.last_stage == "":
            finding, fix = (
                phrase("Ranks cannot start: torch cannot be imported."),
                phrase("See the result for Python and torch."),
            )
            return make_row(backend, Verdict.SKIPPED, finding, *evidence, fix=fix)
        variable, value = _FIX_VARIABLES[backend]
        again = run_rendezvous(python, backend, {**environment, variable: value})
    except OSError as error:
        return skipped_rows([backend], phrase("{python} cannot be started.", python=python), str(error))[0]
    if again.is_ok:
        evidence.append(phrase("with {variable}={value} it works", variable=variable, value=value))
        command = f"export {variable}={value}"
        return make_row(
            backend,
            Verdict.FAILED,
            _failure_text(first),
            *evidence,
            fix=phrase(_ADVICE[backend]),
            command=command,
        )
    evidence.append(phrase("with {variable}={value} it also fails", variable=variable, value=value))
    fix = phrase(
        "Check the results for hostname, interface and loopback; a firewall may be blocking the connection."
    )
    if backend == "nccl":
        fix = phrase("Set NCCL_DEBUG=INFO and run the check again: NCCL then logs what it tries.")
    return make_row(backend, Verdict.FAILED, _failure_text(first), *evidence, fix=fix)


def _speed_text(meeting: RendezvousResult) -> str:
    num_bytes, seconds = meeting.fact("num_bytes"), meeting.fact("seconds")
    return phrase(
        "The ranks connect, their sums are correct, and an all_reduce of {size} runs at {speed}/s.",
        size=format_bytes(num_bytes, 0),
        speed=format_bytes(num_bytes / seconds),
    )


def _failure_text(meeting: RendezvousResult) -> str:
    if meeting.num_wrong:
        return phrase("The ranks connect, but {count} of their sums are wrong.", count=meeting.num_wrong)
    doing = phrase(_STAGE_TEXTS.get(meeting.last_stage, _STAGE_TEXTS["summed"]))
    if any(meeting.exit_codes):
        return phrase("The ranks failed while {doing}.", doing=doing)
    return phrase("The ranks hung while {doing}.", doing=doing)


def _rank_evidence(meeting: RendezvousResult) -> list[str]:
    evidence: list[str] = []
    for rank, (code, line) in enumerate(zip(meeting.exit_codes, meeting.last_lines, strict=True)):
        if line:
            evidence.append(phrase("rank {rank}: {line}", rank=rank, line=line))
        if code:
            evidence.append(phrase("rank {rank} exited with status {code}", rank=rank, code=code))
        elif code is None and not any(meeting.exit_codes):
            evidence.append(phrase("rank {rank} was killed because it took too long", rank=rank))
    evidence.append(phrase("{seconds:.1f} s from the start of both processes", seconds=meeting.seconds))
    return evidence
