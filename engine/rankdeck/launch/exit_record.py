"""What nobody but a run's guard is left to say: end.json, and that something ended which should not have.

Standard library only, as all of the guard: its sentences are made here as base/phrases.py makes others.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

_PARTIAL_FILE = "end.json.part"
_RESERVED_BYTES = 4096
_WRITE_TIMEOUT_S = 10.0
"""How long a full disk is retried before the run is left without a last word."""


class Sentence(str):
    """One as it reads in English, with what it was made of: by "" its own template and arguments, by ".cause"
    those of the sentence that is filled in for {cause}.
    """

    __slots__ = ("arguments", "templates")
    templates: dict[str, str]
    arguments: dict[str, dict[str, str | int]]


def phrase(template: str, /, **arguments: str | int) -> Sentence:
    """The template with `{name}` filled in; without arguments it is taken as it stands."""
    said = Sentence(template.format(**arguments) if arguments else template)
    said.templates, said.arguments = {"": template}, {"": arguments}
    for hole, value in arguments.items():
        if isinstance(value, Sentence):
            said.templates |= {f".{hole}{place}": text for place, text in value.templates.items()}
            said.arguments |= {f".{hole}{place}": values for place, values in value.arguments.items()}
    return said


def killed_message(number: int) -> Sentence:
    """Of a supervisor that a signal has ended."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = phrase("signal {number}", number=number)
    return phrase(
        "The run's supervisor was ended by {signal}, which nobody here had sent; its ranks ended with it.",
        signal=name,
    )


class ExitRecorder:
    """Of one run; the attempt that it tells of is `first_attempt`, or a later one that has begun since."""

    def __init__(self, first_attempt: int) -> None:
        self._first_attempt = first_attempt
        self._num_events = 0
        self._folder = self._reserved = -1

    def reserve(self, folder: int) -> None:
        """Take the room for end.json now: at the end the disk may be full. `folder`: the run's directory,
        open, by which it is found wherever it is moved. Raises: OSError."""
        self._folder, flags = folder, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._reserved = os.open(_PARTIAL_FILE, flags, 0o644, dir_fd=folder)
        os.pwrite(self._reserved, b" " * _RESERVED_BYTES, 0)
        os.fsync(self._reserved)

    def latest_attempt(self) -> int:
        """A supervisor that restarts its ranks begins attempts of its own."""
        names = [path.name.split(".")[1] for path in self._events_folder().glob("supervisor.*.jsonl")]
        return max((int(name) for name in names if name.isdecimal()), default=self._first_attempt)

    def _events_folder(self) -> Path:
        return Path(f"/proc/self/fd/{self._folder}/events")

    def report_problem(
        self, code: str, message: Sentence, advice: Sentence | None = None, *, severity: str = "error"
    ) -> None:
        """A problem (base/errors.py), in the file of events that is the guard's."""
        said = {"message": message} if advice is None else {"message": message, "advice": advice}
        problem = {"code": code, "message": message, "advice": advice, "severity": severity} | {
            kind: {
                f"{name}{place}": made
                for name, one in said.items()
                for place, made in getattr(one, kind).items()
            }
            for kind in ("templates", "arguments")
        }
        self._write_event({"kind": "problem", "problem": problem})

    def report_suspended(self, supervisor: int) -> None:
        self.report_problem(
            "supervisor-suspended",
            phrase("The run's supervisor is suspended by a signal (SIGSTOP): nobody watches its ranks."),
            phrase("Let it go on with: kill -CONT {pid}", pid=supervisor),
            severity="warning",
        )

    def report_end(self, outcome: str, exit_code: int) -> None:
        """That the attempt is over: its supervisor was killed before it could."""
        end = {"outcome": outcome, "exit_code": exit_code, "attempt": self.latest_attempt()}
        self._write_event({"kind": "run_ended", **end})

    def _write_event(self, event: Mapping[str, object]) -> None:
        whole = {**event, "v": 1, "seq": self._num_events, "t": time.time()}
        self._num_events += 1
        try:
            with open(
                self._events_folder() / f"guard.{self.latest_attempt()}.jsonl", "a", encoding="utf-8"
            ) as file:
                file.write(json.dumps(whole) + "\n")
        except OSError:
            pass

    def write(self, outcome: str, exit_code: int, reason: str | None) -> None:
        """end.json, whole or not at all. The lock is held meanwhile, so that the run does not look lost."""
        word = {"outcome": outcome, "exit_code": exit_code, "ended": time.time(), "reason": reason}
        data = json.dumps(word).encode() + b"\n"
        give_up_at = time.monotonic() + _WRITE_TIMEOUT_S
        while True:
            try:
                os.pwrite(self._reserved, data, 0)
                os.ftruncate(self._reserved, len(data))
                os.fsync(self._reserved)
                os.rename(_PARTIAL_FILE, "end.json", src_dir_fd=self._folder, dst_dir_fd=self._folder)
                return
            except OSError:
                if time.monotonic() > give_up_at:
                    return
                time.sleep(0.1)
