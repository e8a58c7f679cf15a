"""Define the messages in the pipe to a host: a JSON header on a line, then as many raw bytes as the header
specifies.

The client (local end) sends requests, the server (remote end) answers and reports. Neither trusts the other:
the sizes of headers, bodies and queues are limited, and an invalid message ends the connection. File contents
are sent raw, in pieces. Short and urgent messages (the answer to a ping) are sent before the next piece.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from rankdeck.base.parsing import decode_document

PROTOCOL = 2
"""Version of the protocol, which must be the same at both ends."""
MAX_HEADER_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 18
_MAX_GREETING_BYTES = 1 << 16
"""Maximum number of bytes that a login may print (a banner, an echo in .bashrc) before the first message."""
_READ_BYTES = 1 << 18


class WireError(Exception):
    """Raised when received data is not a valid message, or is too large."""


class Message(msgspec.Struct, tag_field="kind", tag=str.lower, omit_defaults=True, frozen=True):
    """A message's header. Its line is followed by `num_bytes` raw bytes."""

    num_bytes: int = 0


class Ping(Message, frozen=True):
    """Message sent every second; a server that receives no pings exits. `sent` is the time of sending on the
    client's clock."""

    sent: float = 0.0


class Command(Message, frozen=True, kw_only=True):
    """Request to run `rankdeck ARGV` in `folder` (the home folder if empty), with `environment` added."""

    number: int
    argv: list[str]
    folder: str = ""
    environment: dict[str, str] = {}


class Signal(Message, frozen=True, kw_only=True):
    """Request to send a signal to the command with this number."""

    number: int
    signal: int


class Put(Message, frozen=True, kw_only=True):
    """Bytes of an archive, which is unpacked once the bytes marked `last` have arrived."""

    number: int
    last: bool


class Find(Message, frozen=True, kw_only=True):
    """Request to find a run; `run` is the name or path that a user would enter on the server."""

    number: int
    run: str


class Have(Message, frozen=True, kw_only=True):
    """Size and tail checksum of a file that the client already has; sent before `Follow`."""

    number: int
    name: str
    size: int
    checksum: int


class Follow(Message, frozen=True, kw_only=True):
    """Request to send updates of the run in this folder from now on."""

    number: int
    path: str


class Welcome(Message, frozen=True, kw_only=True):
    """The server's first message."""

    protocol: int
    version: str
    host: str
    address: str = ""
    """The server's address in this ssh connection; empty if there is no ssh connection."""
    caller: str = ""
    """The client's address, as the server sees it."""


class Pong(Message, frozen=True, kw_only=True):
    """Answer to a `Ping`, whose `sent` it repeats; `now` is the time on the server's clock (Unix seconds)."""

    sent: float
    now: float


class Output(Message, frozen=True, kw_only=True):
    """A piece of a command's output; `stream` is 1 (stdout) or 2 (stderr)."""

    number: int
    stream: int


class Ended(Message, frozen=True, kw_only=True):
    """Notice that a command has ended; `code` is its exit code as a shell reports it."""

    number: int
    code: int


class Found(Message, frozen=True, kw_only=True):
    """The run that `Find` requested: its folder's name and its path on the server."""

    number: int
    run: str
    path: str


class Unpacked(Message, frozen=True, kw_only=True):
    """The folder that contains the files of an unpacked archive."""

    number: int
    path: str


class Refused(Message, frozen=True, kw_only=True):
    """Notice that a request was refused, with the reason."""

    number: int
    code: str
    message: str
    advice: str = ""


class Piece(Message, frozen=True, kw_only=True):
    """Bytes of a file that grows, starting at `offset`; a piece with offset 0 replaces the client's file."""

    number: int
    name: str
    offset: int


class Whole(Message, frozen=True, kw_only=True):
    """Bytes of a file that is replaced as a whole, once the bytes marked `last` have arrived."""

    number: int
    name: str
    last: bool


class Told(Message, frozen=True, kw_only=True):
    """Report of whether the run is alive.

    For a live run it is sent after the run's configuration; for a run that has ended, as the last message.
    """

    number: int
    is_alive: bool


ToServer = Ping | Command | Signal | Put | Find | Have | Follow
ToClient = Welcome | Pong | Output | Ended | Found | Unpacked | Refused | Piece | Whole | Told
M = TypeVar("M", bound=Message)
TO_SERVER: msgspec.json.Decoder[ToServer] = msgspec.json.Decoder(ToServer)
TO_CLIENT: msgspec.json.Decoder[ToClient] = msgspec.json.Decoder(ToClient)


class MessageReader(Generic[M]):
    """Parser of messages from a pipe; `skips_greeting` makes it skip the lines before the first message."""

    def __init__(self, decoder: msgspec.json.Decoder[M], *, skips_greeting: bool = False) -> None:
        self._decoder = decoder
        self._greeting_bytes = _MAX_GREETING_BYTES if skips_greeting else 0
        self._buffer = bytearray()
        self._current_header: M | None = None

    def read(self, handle: int) -> bool:
        """Read the available bytes into the buffer; return False at the end of the pipe."""
        try:
            data = os.read(handle, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    def messages(self) -> Iterator[tuple[M, bytes]]:
        """Yield the complete messages in the buffer.

        Raises:
            WireError: a message is invalid.
        """
        while True:
            if self._current_header is None:
                end = self._buffer.find(b"\n", 0, MAX_HEADER_BYTES + 1)
                if end < 0:
                    if len(self._buffer) > MAX_HEADER_BYTES:
                        raise WireError("a message header is too long")
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._current_header = self._parse_header(line)
                continue
            if len(self._buffer) < self._current_header.num_bytes:
                return
            header, self._current_header = self._current_header, None
            body = bytes(self._buffer[: header.num_bytes])
            del self._buffer[: header.num_bytes]
            yield header, body

    def _parse_header(self, line: bytes) -> M | None:
        try:
            header = decode_document(self._decoder.decode, line)
        except msgspec.DecodeError as error:
            self._greeting_bytes -= len(line) + 1
            if self._greeting_bytes >= 0:
                return None
            raise WireError(f"invalid message: {error}") from None
        # After the first message, an invalid line is an error.
        self._greeting_bytes = 0
        if not 0 <= header.num_bytes <= MAX_BODY_BYTES:
            raise WireError("a message body is too large")
        return header


class MessageWriter:
    """Queue of messages to write. Check `pending_bytes` before queueing more."""

    def __init__(self) -> None:
        self._urgent: deque[bytes] = deque()
        self._bulk: deque[bytes] = deque()
        self._current = memoryview(b"")
        self.pending_bytes = 0

    def put(self, message: Message, body: bytes = b"") -> None:
        """Queue a message.

        Raises:
            ValueError: the header or the body is too large, or a text is not valid UTF-8.
        """
        header = msgspec.json.encode(msgspec.structs.replace(message, num_bytes=len(body)))
        if len(header) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
            raise ValueError("the message is too large")
        data = header + b"\n" + body
        if isinstance(message, (Ping, Pong)):
            self._urgent.append(data)
        else:
            self._bulk.append(data)  # all other messages stay in order
            self.pending_bytes += len(data)

    def __bool__(self) -> bool:
        return bool(self._current or self._urgent or self._bulk)

    def write(self, handle: int) -> None:
        """Write as many bytes as the pipe accepts without blocking.

        Raises:
            OSError: the pipe has no reader.
        """
        while self:
            # A message that is partly written has to be finished first, even if an urgent one waits.
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
    """Return the message that refuses request `number` because of `error`, a RankdeckError whose texts are
    truncated to fit in a header."""
    problem = error.problem
    return Refused(
        number=number,
        code=problem.code,
        message=problem.message[:4000],
        advice=(problem.advice or "")[:4000],
    )
