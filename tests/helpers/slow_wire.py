"""A switch in user space that is slow and loses some, where the kernel has nothing of the kind.

    slow_wire.py carry DELAY_MS LOSS_PERCENT PORT...    from port to port, each way so much later
    slow_wire.py whole INTERFACE                        from now on it sends what a wire could carry

Standard library only; run inside the network whose ports these are.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import random
import select
import socket
import struct
import sys
import time

_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)
"""Set receive and send checksums, scatter and gather, TSO, GSO, GRO (linux/ethtool.h)."""
_ALL_PROTOCOLS = 3  # ETH_P_ALL
_MAX_FRAME_BYTES = 65_600


def disable_offloads(interface: str) -> None:
    """No checksum and no cutting into frames is left to a card that does not exist."""
    with socket.socket() as asking:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(asking, _SIOCETHTOOL, request)
            except OSError:
                continue  # this kernel has no such switch


def forward_frames(delay_s: float, loss: float, ports: list[str]) -> None:
    """For ever: frames go to where their receiver was seen, others everywhere."""
    ends, ends_by_address = [_open_port(port) for port in ports], dict[bytes, socket.socket]()
    waiting: collections.deque[tuple[float, bytes, list[socket.socket]]] = collections.deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for end in select.select(ends, [], [], wait_s)[0]:
            for frame in _read_frames(end):
                ends_by_address[frame[6:12]] = end
                to = ends_by_address.get(frame[:6])
                if random.random() >= loss:
                    ways = [candidate for candidate in ends if candidate is not end] if to is None else [to]
                    waiting.append((time.monotonic() + delay_s, frame, ways))
        while waiting and waiting[0][0] <= time.monotonic():
            _, frame, ways = waiting.popleft()
            for way in ways:
                try:
                    way.send(frame)
                except OSError:
                    continue  # its queue is full, or it has gone: lost


def _open_port(port: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    end.bind((port, 0))
    end.setblocking(False)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    return end


def _read_frames(end: socket.socket) -> list[bytes]:
    """What has come in since."""
    frames = []
    while len(frames) < 64:
        try:
            frame, (_, _, kind, *_) = end.recvfrom(_MAX_FRAME_BYTES)
        except OSError:
            break
        if kind != socket.PACKET_OUTGOING:
            frames.append(frame)
    return frames


if __name__ == "__main__":
    if sys.argv[1] == "whole":
        disable_offloads(sys.argv[2])
    else:
        forward_frames(float(sys.argv[2]) / 1e3, float(sys.argv[3]) / 100, sys.argv[4:])
