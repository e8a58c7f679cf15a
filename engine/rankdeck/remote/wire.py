"""What goes through the pipe to a host: a JSON header on a line, then as many raw bytes as it says.

The near end asks, the far end answers and tells. Neither takes the other's word: headers, bodies and what
waits to be written are bounded, and whatever is no message ends the connection. Bytes of files travel as they
are, in pieces; what is short and urgent (an answer to a ping) goes before the next piece.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from rankdeck.base.parsing import decode_document

PROTOCOL = 2
"""Both ends speak the same one, or do not speak."""
MAX_HEADER_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 18
_MAX_GREETING_BYTES = 1 << 16
"""Bytes that a login may print (a banner, an echo in .bashrc) before the far end says who it is."""
_READ_BYTES = 1 << 18


class WireError(Exception):
    """What came through the pipe is no message, or larger than any may be."""


class Message(msgspec.Struct, tag_field="kind", tag=str.lower, omit_defaults=True, frozen=True):
    """A header. `num_bytes` raw bytes follow its line."""

    num_bytes: int = 0


class Ping(Message, frozen=True):
    """Each second; who hears none for long knows that nobody is there. `sent`: the asker's own clock."""

    sent: float = 0.0


class Command(Message, frozen=True, kw_only=True):
    """Run `rankdeck ARGV` in `folder` (the home folder where it is empty), with `environment` besides."""

    number: int
    argv: list[str]
    folder: str = ""
    environment: dict[str, str] = {}


class Signal(Message, frozen=True, kw_only=True):
    """For the command of this number."""

    number: int
    signal: int


class Put(Message, frozen=True, kw_only=True):
    """Bytes of an archive of files, which is unpacked when the `last` of them are there."""

    number: int
    last: bool


class Find(Message, frozen=True, kw_only=True):
    """Which run is called so? `run` as a person would name it there."""

    number: int
    run: str


class Have(Message, frozen=True, kw_only=True):
    """Before `Follow`: so much of this file is here, and the checksum of its end."""

    number: int
    name: str
    size: int
    checksum: int


class Follow(Message, frozen=True, kw_only=True):
    """Tell of the run in this folder from now on."""

    number: int
    path: str


class Welcome(Message, frozen=True, kw_only=True):
    """The first thing that the far end says."""

    protocol: int
    version: str
    host: str
    address: str = ""
    """Where it was reached, as it sees that; empty where that was not over a network."""
    caller: str = ""
    """Whence."""


class Pong(Message, frozen=True, kw_only=True):
    """`sent` as it came, `now` by the far end's clock (Unix seconds)."""

    sent: float
    now: float


class Output(Message, frozen=True, kw_only=True):
    """What a command wrote; `stream` 1 or 2."""

    number: int
    stream: int


class Ended(Message, frozen=True, kw_only=True):
    """A command has; `code` as a shell tells it."""

    number: int
    code: int


class Found(Message, frozen=True, kw_only=True):
    """The run that `Find` named: what its folder is called, and where that is on its host."""

    number: int
    run: str
    path: str


class Unpacked(Message, frozen=True, kw_only=True):
    """An archive's files are in this folder."""

    number: int
    path: str


class Refused(Message, frozen=True, kw_only=True):
    """What was asked for cannot be, in words."""

    number: int
    code: str
    message: str
    advice: str = ""


class Piece(Message, frozen=True, kw_only=True):
    """Bytes of a file that only grows, from `offset` on; from 0 on what is here of it counts no more."""

    number: int
    name: str
    offset: int


class Whole(Message, frozen=True, kw_only=True):
    """Bytes of a file that is replaced at once, when the `last` of them are here."""

    number: int
    name: str
    last: bool


class Told(Message, frozen=True, kw_only=True):
    """Whether the run goes on. Its configuration has been sent before; where it is over, everything has."""

    number: int
    is_alive: bool


ToServer = Ping | Command | Signal | Put | Find | Have | Follow
ToClient = Welcome | Pong | Output | Ended | Found | Unpacked | Refused | Piece | Whole | Told
M = TypeVar("M", bound=Message)
TO_SERVER: msgspec.json.Decoder[ToServer] = msgspec.json.Decoder(ToServer)
TO_CLIENT: msgspec.json.Decoder[ToClient] = msgspec.json.Decoder(ToClient)


class MessageReader(Generic[M]):
    """Messages out of what is read. `skips_greeting`: lines before the first message are passed over."""

    def __init__(self, decoder: msgspec.json.Decoder[M], *, skips_greeting: bool = False) -> None:
        self._decoder = decoder
        self._greeting_bytes = _MAX_GREETING_BYTES if skips_greeting else 0
        self._buffer = bytearray()
        self._current_header: M | None = None

    def read(self, handle: int) -> bool:
        """Take what is there to be read; False at the end of the pipe."""
        try:
            data = os.read(handle, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    def messages(self) -> Iterator[tuple[M, bytes]]:
        """Raises: WireError."""
        while True:
            if self._current_header is None:
                end = self._buffer.find(b"\n", 0, MAX_HEADER_BYTES + 1)
                if end < 0:
                    if len(self._buffer) > MAX_HEADER_BYTES:
                        raise WireError("a header is too long")
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._current_header = self._parse_header(line)
                continue
            if len(self._buffer) < self._current_header.num_bytes:
                return
            head, self._current_header = self._current_header, None
            body = bytes(self._buffer[: head.num_bytes])
            del self._buffer[: head.num_bytes]
            yield head, body

    def _parse_header(self, line: bytes) -> M | None:
        try:
            head = decode_document(self._decoder.decode, line)
        except msgspec.DecodeError as error:
            self._greeting_bytes -= len(line) + 1
            if self._greeting_bytes >= 0:
                return None
            raise WireError(f"no message: {error}") from None
        self._greeting_bytes = 0
        if not 0 <= head.num_bytes <= MAX_BODY_BYTES:
            raise WireError("a body is too large")
        return head


class MessageWriter:
    """Messages that wait to be written. Who has more looks at `pending_bytes` first."""

    def __init__(self) -> None:
        self._urgent: deque[bytes] = deque()
        self._bulk: deque[bytes] = deque()
        self._current = memoryview(b"")
        self.pending_bytes = 0

    def put(self, message: Message, body: bytes = b"") -> None:
        """Raises: ValueError where the header or the body is larger than any may be, or it is no UTF-8."""
        head = msgspec.json.encode(msgspec.structs.replace(message, num_bytes=len(body)))
        if len(head) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
            raise ValueError("the message is too large")
        data = head + b"\n" + body
        if isinstance(message, (Ping, Pong)):
            self._urgent.append(data)
        else:
            self._bulk.append(data)  # all the rest in its order
            self.pending_bytes += len(data)

    def __bool__(self) -> bool:
        return bool(self._current or self._urgent or self._bulk)

    def write(self, handle: int) -> None:
        """As much as the pipe takes now. Raises: OSError, nobody reads it."""
        while self:
            if not self._current:
                data = self._urgent.popleft() if self._urgent else self._next_bulk()
                self._current = memoryview(data)
            try:
                self._current = self._current[os.write(handle, self._current) :]
            except BlockingIOError:
                return

    def _next_bulk(self) -> bytes:
        data = self._bulk.popleft()
        self.pending_bytes -= len(data)
        return data


def refusal_from_error(error: Any, number: int) -> Refused:
    """What a RankdeckError says, cut to what a header holds."""
    problem = error.problem
    return Refused(
        number=number,
        code=problem.code,
        message=problem.message[:4000],
        advice=(problem.advice or "")[:4000],
    )
