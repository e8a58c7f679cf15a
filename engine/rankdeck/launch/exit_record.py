"""Write the guard's own reports: end.json, and problems that no other process is left to report.

Standard library only, like the whole guard: `Sentence` and `phrase` replace those of base/phrases.py.
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
"""How long to retry on a full disk before the run is left without an exit record."""


class Sentence(str):
    """An English sentence with its templates and arguments, for translation.

    In both mappings, the key "" is for the sentence itself and ".cause" for the sentence that fills in
    {cause}.
    """

    __slots__ = ("arguments", "templates")
    templates: dict[str, str]
    arguments: dict[str, dict[str, str | int]]


def phrase(template: str, /, **arguments: str | int) -> Sentence:
    """Return the template with each `{name}` replaced by its argument; without arguments, the unchanged
    template."""
    sentence = Sentence(template.format(**arguments) if arguments else template)
    sentence.templates, sentence.arguments = {"": template}, {"": arguments}
    for hole, value in arguments.items():
        if isinstance(value, Sentence):
            sentence.templates |= {f".{hole}{key}": text for key, text in value.templates.items()}
            sentence.arguments |= {f".{hole}{key}": values for key, values in value.arguments.items()}
    return sentence


def killed_message(number: int) -> Sentence:
    """Return the message that signal `number` killed the supervisor."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = phrase("signal {number}", number=number)
    return phrase(
        "The run's supervisor was killed by {signal}, which Rankdeck did not send; its ranks ended with it.",
        signal=name,
    )


class ExitRecorder:
    """Recorder of the end of a run; `first_attempt` is the first attempt that the run's guard started."""

    def __init__(self, first_attempt: int) -> None:
        self._first_attempt = first_attempt
        self._num_events = 0
        self._folder = self._reserved = -1

    def reserve(self, folder: int) -> None:
        """Reserve disk space for end.json now, since the disk may be full when the run ends.

        `folder`, a descriptor of the run's directory, stays valid if the directory is moved.

        Raises:
            OSError: the file cannot be written.
        """
        self._folder, flags = folder, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._reserved = os.open(_PARTIAL_FILE, flags, 0o644, dir_fd=folder)
        os.pwrite(self._reserved, b" " * _RESERVED_BYTES, 0)
        os.fsync(self._reserved)

    def latest_attempt(self) -> int:
        """Return the latest attempt, found from the event files: a supervisor that restarts its ranks starts
        a new attempt without informing the guard."""
        names = [path.name.split(".")[1] for path in self._events_folder().glob("supervisor.*.jsonl")]
        return max((int(name) for name in names if name.isdecimal()), default=self._first_attempt)

    def _events_folder(self) -> Path:
        # By descriptor, which stays valid when the directory is moved.
        return Path(f"/proc/self/fd/{self._folder}/events")

    def report_problem(
        self, code: str, message: Sentence, advice: Sentence | None = None, *, severity: str = "error"
    ) -> None:
        """Write a problem (base/errors.py) to the guard's event file."""
        sentences = {"message": message} if advice is None else {"message": message, "advice": advice}
        problem = {"code": code, "message": message, "advice": advice, "severity": severity} | {
            kind: {
                f"{name}{key}": value
                for name, sentence in sentences.items()
                for key, value in getattr(sentence, kind).items()
            }
            for kind in ("templates", "arguments")
        }
        self._write_event({"kind": "problem", "problem": problem})

    def report_suspended(self, supervisor: int) -> None:
        self.report_problem(
            "supervisor-suspended",
            phrase(
                "The run's supervisor is suspended by a signal (SIGSTOP), so its ranks are not monitored."
            ),
            phrase("Resume it with: kill -CONT {pid}", pid=supervisor),
            severity="warning",
        )

    def report_end(self, outcome: str, exit_code: int) -> None:
        """Write the attempt's end event, because the supervisor was killed before it could write one."""
        end = {"outcome": outcome, "exit_code": exit_code, "attempt": self.latest_attempt()}
        self._write_event({"kind": "run_ended", **end})

    def _write_event(self, event: Mapping[str, object]) -> None:
        record = {**event, "v": 1, "seq": self._num_events, "t": time.time()}
        self._num_events += 1
        try:
            with open(
                self._events_folder() / f"guard.{self.latest_attempt()}.jsonl", "a", encoding="utf-8"
            ) as file:
                file.write(json.dumps(record) + "\n")
        except OSError:
            pass

    def write(self, outcome: str, exit_code: int, reason: str | None) -> None:
        """Write end.json atomically. The caller must still hold the lock, or the run would look lost."""
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
