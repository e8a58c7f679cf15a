"""Messages out of bytes, however they are cut; and bytes that are none."""

from __future__ import annotations

import itertools
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdeck.remote import wire

MESSAGES: list[tuple[wire.Message, bytes]] = [
    (wire.Welcome(protocol=1, version="0.2.0", host="box1"), b""),
    (wire.Output(number=3, stream=1), b"{}\n\x00\xff"),
    (wire.Piece(number=0, name="events/rank-0.0.jsonl", offset=1 << 40), b"\n" * 1000),
    (wire.Ended(number=3, code=0), b""),
    (wire.Whole(number=0, name="config.toml", last=True), b""),
]


def encode_through_pipe(messages: list[tuple[wire.Message, bytes]]) -> bytes:
    """Through a real pipe."""
    outbox = wire.MessageWriter()
    for message, body in messages:
        outbox.put(message, body)
    read_end, write_end = os.pipe()
    try:
        outbox.write(write_end)
        assert not outbox and outbox.pending_bytes == 0
        return os.read(read_end, 1 << 20)
    finally:
        os.close(read_end)
        os.close(write_end)


def decode_through_pipe(*chunks: bytes, skips_greeting: bool = False) -> list[tuple[wire.Message, bytes]]:
    inbox = wire.MessageReader(wire.TO_CLIENT, skips_greeting=skips_greeting)
    messages: list[tuple[wire.Message, bytes]] = []
    read_end, write_end = os.pipe()
    try:
        for chunk in chunks:
            os.write(write_end, chunk)
            assert inbox.read(read_end)
            messages += inbox.messages()
        return messages
    finally:
        os.close(read_end)
        os.close(write_end)


def without_body_sizes(messages: list[tuple[wire.Message, bytes]]) -> list[tuple[wire.Message, bytes]]:
    """Without what `put` adds."""
    return [(msgspec.structs.replace(message, num_bytes=0), body) for message, body in messages]


@given(st.lists(st.integers(0, 1300), max_size=6))
def test_messages_do_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    data = encode_through_pipe(MESSAGES)
    bounds = [0, *sorted(cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(bounds) if a < b]
    assert without_body_sizes(decode_through_pipe(*chunks)) == without_body_sizes(MESSAGES)


def test_a_pong_is_sent_before_queued_pieces() -> None:
    messages = [(wire.Piece(number=0, name="x", offset=0), b"x" * 100), (wire.Pong(sent=1.0, now=2.0), b"")]
    assert isinstance(decode_through_pipe(encode_through_pipe(messages))[0][0], wire.Pong)


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (wire.MAX_HEADER_BYTES + 1),
        b'{"kind":"output","number":1,"stream":1,"num_bytes":262145}\n',
        b'{"kind":"output","number":1,"stream":1,"num_bytes":-1}\n',
        b'{"kind":"ping"}\n',  # what only the near end says
        b'{"kind":"output","number":"1","stream":1}\n',
        b"[" * 60_000 + b"\n",
        b'{"kind":"ended","number":' + b"9" * 50_000 + b',"code":0}\n',
        b"\xff\xfe\n",
        b"\n",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_invalid_messages_raise_a_wire_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        decode_through_pipe(data[: 1 << 16], data[1 << 16 :]) if len(data) > 1 << 16 else decode_through_pipe(
            data
        )


@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_a_wire_error(data: bytes) -> None:
    for skips_greeting in (False, True):
        try:
            decode_through_pipe(data or b"\n", skips_greeting=skips_greeting)
        except wire.WireError:
            pass


def test_a_greeting_is_skipped_before_the_first_message_only() -> None:
    greeting = b"Welcome to box1!\n\xff{}\n" * 50
    assert len(decode_through_pipe(greeting + encode_through_pipe(MESSAGES), skips_greeting=True)) == len(
        MESSAGES
    )
    with pytest.raises(wire.WireError):
        decode_through_pipe(encode_through_pipe(MESSAGES[:1]) + greeting, skips_greeting=True)
    with pytest.raises(wire.WireError):
        decode_through_pipe(*[b"more\n" * 1000] * 20, skips_greeting=True)


def test_messages_over_the_size_limits_are_not_sent() -> None:
    with pytest.raises(ValueError, match="too large"):
        wire.MessageWriter().put(wire.Command(number=0, argv=["x" * wire.MAX_HEADER_BYTES]))
    with pytest.raises(ValueError, match="too large"):
        wire.MessageWriter().put(wire.Output(number=0, stream=1), bytes(wire.MAX_BODY_BYTES + 1))
