"""Whether this host has lost its own connection. Standard library only, as all of the guard."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _RUNNING = 0x1, 0x40
_NAME_BYTES, _REQUEST_BYTES = 16, 40


def is_unplugged(address: str) -> bool:
    """Whether the interface of this address is down or without a carrier, or the address is gone."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.bind((address, 0))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    if ":" in address:
        return False  # of these the kernel tells no interface here
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = name.encode()[: _NAME_BYTES - 1].ljust(_REQUEST_BYTES, b"\0")
            try:
                found = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) != address:
                    continue
                flags: int = struct.unpack_from("H", fcntl.ioctl(asked, _SIOCGIFFLAGS, request), 16)[0]
            except OSError:
                continue
            return flags & (_UP | _RUNNING) != _UP | _RUNNING
    return False
