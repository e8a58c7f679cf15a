"""A host that `doctor --hosts` asks, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import phrase
from rankdeck.doctor.python import parse_last_line
from rankdeck.remote.hosts import RemoteCommand, RemoteHost


class ProbedHost(NamedTuple):
    """A host, its address for the others, and what `rankdeck meet` says there."""

    host: RemoteHost
    address: str
    process: RemoteCommand

    def steps(self, stage: str) -> list[JsonObject]:
        return [step for step in parse_steps(self.process) if step.get("stage") == stage]

    def step(self, stage: str) -> JsonObject:
        """The first; empty where it was not told."""
        return next(iter(self.steps(stage)), {})

    def failure_reason(self) -> str | None:
        """Why this host has no part in what comes next, whatever the network does; None where it may have."""
        if (why := self.step("torch").get("error")) is not None:
            return phrase("torch cannot be imported: {why}", why=str(why)[:300])
        if self.host.error is not None:
            return self.host.error.message
        return None if self.process.exit_code is None else self.process.failure_text()

    def installed_packages(self) -> dict[str, str]:
        """Versions of packages; empty where they were not told."""
        told = self.step("facts").get("installed")
        return {name: str(one)[:40] for name, one in told.items()} if isinstance(told, dict) else {}


def parse_steps(ran: RemoteCommand) -> Iterable[JsonObject]:
    return filter(None, map(parse_last_line, bytes(ran.out).splitlines()))
