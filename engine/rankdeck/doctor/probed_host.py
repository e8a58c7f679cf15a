"""A host that `doctor --hosts` probes, with its reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import phrase
from rankdeck.doctor.python import parse_last_line
from rankdeck.remote.hosts import RemoteCommand, RemoteHost


class ProbedHost(NamedTuple):
    """A host, the address at which the other hosts reach it, and the `rankdeck meet` process that reports
    from it."""

    host: RemoteHost
    address: str
    process: RemoteCommand

    def steps(self, stage: str) -> list[JsonObject]:
        return [step for step in parse_steps(self.process) if step.get("stage") == stage]

    def step(self, stage: str) -> JsonObject:
        """Return the first report of a stage; empty if there is none."""
        return next(iter(self.steps(stage)), {})

    @property
    def has_ended(self) -> bool:
        """Whether the probe's process has exited or the connection to the host is lost."""
        return self.process.exit_code is not None or self.host.error is not None

    def failure_reason(self) -> str | None:
        """Return why this host cannot take part in further checks, ignoring connection problems between
        hosts; None if it can."""
        if (why := self.step("torch").get("error")) is not None:
            return phrase("torch cannot be imported: {why}", why=str(why)[:300])
        if self.host.error is not None:
            return self.host.error.message
        return None if self.process.exit_code is None else self.process.failure_text()

    def installed_packages(self) -> dict[str, str]:
        """Return the versions of installed packages; empty if they were not reported."""
        versions = self.step("facts").get("installed")
        return (
            {name: str(version)[:40] for name, version in versions.items()}
            if isinstance(versions, dict)
            else {}
        )


def parse_steps(ran: RemoteCommand) -> Iterable[JsonObject]:
    return filter(None, map(parse_last_line, bytes(ran.out).splitlines()))
