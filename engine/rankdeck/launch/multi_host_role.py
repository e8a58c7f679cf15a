"""This host's role in a multi-host run: the coordinator, to which all other hosts connect, or a node."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import rankdeck
from rankdeck.base import files, packages
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.checkpoint_files import data_checksum
from rankdeck.config import DevicesConfig, RunConfig
from rankdeck.config.multi_host import HOST_NAME_ENV, portable_tables
from rankdeck.events import DeviceInfo
from rankdeck.launch.event_relay import host_slug
from rankdeck.launch.guard_spec import HostsSpec

_JOIN_ADDRESS = re.compile(
    r"(?P<address>[^\s/]+):(?P<port>\d{1,5})/(?P<secret>[\w-]{16,64})"
    r"(?:/(?P<run>\w[\w.-]{0,200})@(?P<attempt>\d{1,6}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class MultiHostRole:
    """Role of this host in a run on `num_hosts` hosts.

    On the coordinator, `listener` is a socket bound to `listen_address`. On a node, `coordinator_address` is
    the (address, port) to connect to; `run` and `attempt` are the run's name and attempt on the coordinator.
    """

    num_hosts: int
    secret: str
    listener: socket.socket | None = None
    coordinator_address: tuple[str, int] | None = None
    run: str = ""
    attempt: int = 0
    listen_address: tuple[str, int] = ("", 0)
    name: str = field(default_factory=lambda: os.environ.get(HOST_NAME_ENV, "") or platform.node())
    """This host's name in the run."""

    @classmethod
    def as_coordinator(cls, num_hosts: int, address: str) -> MultiHostRole:
        """Create the coordinator's role, listening on `address`.

        Raises:
            ConfigError: this host has no such address, or `num_hosts` is below 2.
        """
        _check_num_hosts(num_hosts)
        if address in ("", "0.0.0.0", "::"):
            raise ConfigError(
                phrase(
                    "{address} means every address of this host, but the other hosts need a "
                    "specific address.",
                    address=address,
                ),
                code="address",
                advice=phrase(
                    "Use the address that the other hosts can reach. To list all addresses: ip address"
                ),
            )
        try:
            listener = socket.create_server((address, 0), backlog=64)
        except OSError as error:
            raise ConfigError(
                phrase("Cannot listen on {address}: {why}.", address=address, why=error.strerror or error),
                code="address",
                advice=phrase(
                    "Use an address of this host that the other hosts can reach. To list all addresses: "
                    "ip address"
                ),
            ) from None
        return cls(num_hosts, secrets.token_urlsafe(24), listener, listen_address=listener.getsockname()[:2])

    @classmethod
    def as_node(cls, num_hosts: int, join_address: str) -> MultiHostRole:
        """Create a node's role from `join_address`, which the coordinator printed.

        Raises:
            ConfigError: the address is invalid, or `num_hosts` is below 2.
        """
        _check_num_hosts(num_hosts)
        match = _JOIN_ADDRESS.fullmatch(join_address)
        if match is None or int(match["port"]) > 65_535:
            raise ConfigError(
                phrase("{place} is not a valid join address.", place=repr(join_address[:100])),
                code="place",
                advice=phrase("Copy the address that the coordinator printed: ADDRESS:PORT/SECRET."),
            )
        coordinator_address = match["address"], int(match["port"])
        return cls(
            num_hosts,
            match["secret"],
            None,
            coordinator_address,
            match["run"] or "",
            int(match["attempt"] or 0),
        )

    def join_address(self, run: str, attempt: int) -> str:
        """Return the address at which nodes join this attempt of the run."""
        assert self.listener is not None
        address, port = self.listen_address
        return f"{address}:{port}/{self.secret}/{run}@{attempt}"

    @contextmanager
    def hand_over(self, config: RunConfig, devices: list[DeviceInfo]) -> Iterator[HostsSpec]:
        """Yield the parameters for the guard that the `with` block starts; then close this process's
        listener."""
        try:
            yield self.hosts_spec(config, devices)
        finally:
            if self.listener is not None:
                self.listener.close()

    def folder_name(self, runs: Path) -> str | None:
        """Return an unused folder name for a node's part of a new run: the run's name on the coordinator or,
        if that is taken, the same name with the host's name appended.

        Returns None on the coordinator, or if both names are taken.
        """
        for name in (self.run, f"{self.run}-{host_slug(self.name)}") if self.run else ():
            if not (runs / name).exists():
                return name
        return None

    def for_this_host(self, config: RunConfig) -> RunConfig:
        """Return a copy of `config` that uses the devices that `config` assigns to this host.

        Raises:
            ConfigError: hosts.use does not name this host, or lists a different number of hosts.
        """
        named = config.hosts.use
        if not named:
            return config
        if len(named) != self.num_hosts:
            raise ConfigError(
                plural_phrase(
                    tr_noop("hosts.use lists 1 host, but --hosts is {hosts}."),
                    tr_noop("hosts.use lists {n} hosts, but --hosts is {hosts}."),
                    len(named),
                    hosts=self.num_hosts,
                ),
                path="hosts.use",
                advice=phrase("Leave --hosts out."),
            )
        if self.name not in named:
            raise ConfigError(
                phrase("This host's name is {name}, but hosts.use does not list it.", name=self.name),
                path="hosts.use",
                advice=phrase("Set this host's name with {variable}=NAME.", variable=HOST_NAME_ENV),
            )
        use = config.hosts.devices.get(self.name, config.devices.use)
        return config.model_copy(update={"devices": DevicesConfig(use=use)})

    def device_counts(self, config: RunConfig, num_local_devices: int) -> list[int]:
        """Return the number of devices that this host expects on each host; the hosts exchange the actual
        numbers later."""
        named = config.hosts.counts(config.devices) if config.hosts.use else None
        return named or [num_local_devices] * self.num_hosts

    def mask_secret(self, argv: Sequence[str]) -> list[str]:
        """Return the command line with the secret masked."""
        return [word.replace(self.secret, "...") for word in argv]

    def hosts_spec(self, config: RunConfig, devices: list[DeviceInfo]) -> HostsSpec:
        """Return the parameters for this host's guard."""
        facts = {
            "ranks": len(devices),
            "devices": msgspec.to_builtins(devices),
            "rankdeck": rankdeck.__version__,
            # Patch releases are compatible with each other.
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": packages.package_version("torch") or "",
            # Runs on CPU do not use NCCL, so its version may differ between hosts.
            "nccl": (any(device.kind == "gpu" for device in devices) and packages.nccl_version()) or "",
            "lock": _lock_digest(config),
            "config": _config_digest(config),
        }
        launch = config.launch
        spec: HostsSpec = {
            "name": self.name,
            "secret": self.secret,
            "own": facts,
            "order": config.hosts.use,
            "least": config.hosts.min or self.num_hosts,
            "max_restarts": max(launch.max_restarts, int(launch.on_hang == "restart")),
        }
        if self.coordinator_address is not None:
            return {**spec, "head": self.coordinator_address}
        assert self.listener is not None
        return {
            **spec,
            "listener": self.listener.fileno(),
            "address": self.listener.getsockname()[0],
            "others": self.num_hosts - 1,
        }


def _config_digest(config: RunConfig) -> str:
    """Return a checksum of the settings that must be equal on all hosts; paths may differ per host."""
    tables = portable_tables(config)
    tables["data"].get("args", {}).pop("path", None)
    return data_checksum(json.dumps(tables, sort_keys=True).encode())


def _lock_digest(config: RunConfig) -> str:
    """Return a checksum of the lock file that pins the packages of user code; "" if there is none."""
    # Without user code, no other package's version matters.
    lock = packages.find_lock_file(Path(config.folder or ".")) if config.user_code() else None
    try:
        return "" if lock is None else data_checksum(files.read_bytes(lock))
    except OSError:
        return ""


def _check_num_hosts(num_hosts: int) -> None:
    if num_hosts < 2:
        raise ConfigError(
            phrase("The number of hosts (--hosts) must be at least 2, not {n}.", n=num_hosts),
            code="hosts",
            advice=phrase("Leave --hosts out to run on this host only."),
        )
