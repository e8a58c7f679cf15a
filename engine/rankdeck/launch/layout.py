"""Which ranks of a run are on which host. A run of one host has one, at no address."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import psutil

from rankdeck.base.parsing import parse_json
from rankdeck.events import DeviceInfo


class LayoutHost(msgspec.Struct, frozen=True):
    """One host of a run: its address for the other hosts, and its devices."""

    name: str
    address: str
    ranks: int
    devices: list[DeviceInfo]


class Layout(msgspec.Struct, frozen=True):
    """`index` is this host's among all; `store` (address, port) is where ranks meet, at the head."""

    hosts: list[LayoutHost]
    index: int = 0
    store: tuple[str, int] = ("", 0)

    @property
    def this_host(self) -> LayoutHost:
        return self.hosts[self.index]

    @property
    def is_single_host(self) -> bool:
        return len(self.hosts) == 1

    @property
    def world_size(self) -> int:
        return sum(host.ranks for host in self.hosts)

    @property
    def local_ranks(self) -> range:
        """Of this host."""
        first = sum(host.ranks for host in self.hosts[: self.index])
        return range(first, first + self.this_host.ranks)

    @property
    def host_by_rank(self) -> list[str]:
        """The name of each rank's."""
        return [host.name for host in self.hosts for _ in range(host.ranks)]

    def remote_host_of(self, rank: int | None) -> str:
        """The name of the other host that has the rank; "" where it is this one's, or nobody's."""
        if rank is None or rank in self.local_ranks or not 0 <= rank < self.world_size:
            return ""
        return self.host_by_rank[rank]

    @property
    def devices(self) -> list[DeviceInfo]:
        """Of all hosts, numbered through."""
        if self.is_single_host:
            return self.this_host.devices
        every = [(host, device) for host in self.hosts for device in host.devices]
        return [
            msgspec.structs.replace(
                device,
                index=index,
                name=f"Virtual {index}" if device.kind == "virtual" else device.name,
                host=host.name,
            )
            for index, (host, device) in enumerate(every)
        ]

    def interface(self) -> str | None:
        """What this host's address belongs to; loopback of a run of one host, None where it is not known."""
        if self.is_single_host:
            return "lo"
        for name, addresses in psutil.net_if_addrs().items():
            if any(
                one.family == socket.AF_INET and one.address == self.this_host.address for one in addresses
            ):
                return name
        return None


def parse_layout(text: str) -> Layout:
    """What a guard says of the hosts. Raises: ValueError."""
    return msgspec.convert(parse_json(text), Layout)


def single_host_layout(ranks: int, devices: Sequence[DeviceInfo]) -> Layout:
    return Layout([LayoutHost("", "", ranks, list(devices))])
