"""The layout of a run: which ranks are on which host. A single-host run has one host without an address."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import psutil

from rankdeck.base.parsing import parse_json
from rankdeck.events import DeviceInfo


class LayoutHost(msgspec.Struct, frozen=True):
    """One host of a run: the address at which the other hosts reach it, its number of ranks, and its
    devices."""

    name: str
    address: str
    ranks: int
    devices: list[DeviceInfo]


class Layout(msgspec.Struct, frozen=True):
    """All hosts of a run. `index` is the index of this host; `store` is the (address, port) of the store on
    the coordinator."""

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
        """The ranks of this host."""
        first = sum(host.ranks for host in self.hosts[: self.index])
        return range(first, first + self.this_host.ranks)

    @property
    def host_by_rank(self) -> list[str]:
        """The host name of each rank."""
        return [host.name for host in self.hosts for _ in range(host.ranks)]

    def remote_host_of(self, rank: int | None) -> str:
        """Return the name of the rank's host; "" if that is this host or there is no such rank."""
        if rank is None or rank in self.local_ranks or not 0 <= rank < self.world_size:
            return ""
        return self.host_by_rank[rank]

    @property
    def devices(self) -> list[DeviceInfo]:
        """The devices of all hosts, with device indices that are unique in the whole run."""
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
        """Return the network interface of this host's address; loopback for a single host, None if
        unknown."""
        if self.is_single_host:
            return "lo"
        for name, addresses in psutil.net_if_addrs().items():
            if any(
                entry.family == socket.AF_INET and entry.address == self.this_host.address
                for entry in addresses
            ):
                return name
        return None


def parse_layout(text: str) -> Layout:
    """Parse the layout that a guard passes to its supervisor.

    Raises:
        ValueError: `text` is not a valid layout.
    """
    return msgspec.convert(parse_json(text), Layout)


def single_host_layout(ranks: int, devices: Sequence[DeviceInfo]) -> Layout:
    return Layout([LayoutHost("", "", ranks, list(devices))])
