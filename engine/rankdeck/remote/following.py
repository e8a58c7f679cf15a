"""A run of another host, copied here while somebody watches it, in a thread of its own.

The watcher reads the copy as any run; this says how old it is. What was cut off goes on where it was.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue

from rankdeck.base.errors import RankdeckError
from rankdeck.base.phrases import phrase
from rankdeck.remote import wire
from rankdeck.remote.link import Link
from rankdeck.remote.mirror import Mirror, folder_of
from rankdeck.rundir import HostedRun, RunDir

_TURN_S = 0.05
_NUMBER = 0
"""Of what is followed; the commands about it are counted from 1 on."""


class RemoteRun:
    """The run that `name` names on a host. A context manager. `is_known`: it was begun there just now.
    `is_kept`: the copy is to stay, and it is an error where somebody else makes it.
    """

    def __init__(self, host: str, name: str, *, is_known: bool = False, is_kept: bool = False) -> None:
        self._host, self._name, self._is_kept = host, name, is_kept
        self._mirror: Mirror | None = None
        self._path: str | None = None
        self._for_itself: tempfile.TemporaryDirectory[str] | None = None
        self._error: RankdeckError | None = None
        self._asked: SimpleQueue[list[str]] = SimpleQueue()
        self._unanswered: dict[int, list[str]] = {}
        self._num_asked = 0
        self._is_told = False
        self._is_found, self._is_over = threading.Event(), threading.Event()
        self.link = Link(host, self._take, self._ask, is_known=is_known)
        self._thread = threading.Thread(target=self._work, name=f"link to {host}", daemon=True)

    def __enter__(self) -> RemoteRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.link.close()
        if self._mirror is not None:
            self._mirror.close()
        if self._for_itself is not None:
            self._for_itself.cleanup()

    def copy(self) -> RunDir:
        """Wait until the copy can be read: of a run that is over all of it is here then.

        Raises:
            RankdeckError: there is no such run, no such host, or no room for a copy.
        """
        run = self.copy_within(None)
        assert run is not None
        return run

    def copy_within(self, seconds: float | None) -> RunDir | None:
        """The same; None where it cannot be read by then."""
        if not self._is_found.wait(seconds):
            return None
        if self._error is not None:
            raise self._error
        assert self._mirror is not None
        return self._mirror.run

    def ask(self, argv: list[str]) -> None:
        """Run `rankdeck ARGV` there, about this run, and again where the connection breaks before it has
        ended; what it says is lost.
        """
        self._asked.put(argv)

    @property
    def error(self) -> RankdeckError | None:
        """Why nothing more will come."""
        return self._error

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                self.link.poll(_TURN_S)
                self._tell_clock()
                while not self._asked.empty():
                    self._num_asked += 1
                    self._unanswered[self._num_asked] = self._asked.get()
                    if self.link.is_up:
                        self._send(self._num_asked)
        except RankdeckError as error:
            self._error = error
        except OSError as error:
            message = phrase(
                "The copy of {run} cannot be written: {why}.", run=self._name, why=error.strerror
            )
            self._error = RankdeckError(message, code="no-copy")
        finally:
            self._is_found.set()

    def _tell_clock(self) -> None:
        """Nobody reads the copy before its times can be put right."""
        if self._mirror is not None and self.link.clock.offset_s is not None:
            self._mirror.tell_clock(self.link.clock)
            if self._is_told:
                self._is_found.set()

    def _send(self, number: int) -> None:
        self.link.send(wire.Command(number=number, argv=self._unanswered[number]))

    def _ask(self) -> None:
        for number in self._unanswered:
            self._send(number)
        self._follow()

    def _follow(self) -> None:
        if self._mirror is None or self._path is None:
            self.link.send(wire.Find(number=_NUMBER, run=self._name))
            return
        for have in self._mirror.have(_NUMBER):
            self.link.send(have)
        self.link.send(wire.Follow(number=_NUMBER, path=self._path))

    def _take(self, message: wire.ToNear, body: bytes) -> None:
        match message:
            case wire.Found():
                self._mirror = self._copy_of(message.run)
                before = self._mirror.run.copied_from
                ahead_s = 0.0 if before is None else before.ahead_s
                self._mirror.tell_origin(HostedRun(self._host, message.path, ahead_s=ahead_s))
                self._path = message.path
                self._follow()
            case wire.Refused() if message.number == _NUMBER:
                raise RankdeckError(message.message, code=message.code, advice=message.advice or None)
            case wire.Piece() | wire.Whole() | wire.Told() if self._mirror is not None:
                self._mirror.take(message, body)
                self._is_told = self._is_told or isinstance(message, wire.Told)
            case wire.Ended() | wire.Refused():
                self._unanswered.pop(message.number, None)
            case wire.Output():
                pass
            case _:
                raise wire.WireError("nobody asked for it")

    def _copy_of(self, name: str) -> Mirror:
        try:
            return Mirror(folder_of(self._host), name)
        except BlockingIOError:
            if self._is_kept:
                words = phrase("Somebody else here copies {run} just now.", run=self._name)
                raise RankdeckError(words, code="copied-already") from None
            # Somebody else here copies it just now, and may end at any time.
            self._for_itself = tempfile.TemporaryDirectory(prefix="rankdeck-copy-")
            return Mirror(Path(self._for_itself.name), name)
