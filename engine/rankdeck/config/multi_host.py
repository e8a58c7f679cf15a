"""Checks how a run is placed on several hosts: devices per host, and axes whose groups must not span hosts.

Ranks are numbered host by host. The groups of an axis therefore stay within hosts if every host's number of
ranks is a multiple of the group size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rankdeck.base.errors import DeviceError, Problem, format_choices
from rankdeck.base.parsing import TomlTable
from rankdeck.base.phrases import phrase
from rankdeck.config import mesh_sizes
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.devices import DeviceSelection, parse_devices
from rankdeck.config.schema import Choice, HostsConfig, RunConfig

HOST_NAME_ENV = "RANKDECK_HOST"
"""Environment variable that contains this host's name in the run."""
JOIN_ENV = "RANKDECK_JOIN"
"""Environment variable that replaces --join; other users cannot read it, unlike a command line."""


def portable_tables(config: RunConfig) -> TomlTable:
    """Return the tables for use on another host, with code paths relative to the configuration's folder."""
    tables = config.to_dict()
    # Removed, because the path is this host's: elsewhere, the folder is where the file is.
    folder = Path(tables.pop("folder", None) or ".").resolve()
    for table in (tables["model"], tables["data"], tables["loss"], tables["train"]["optimizer"]):
        module, colon, name = table["use"].rpartition(":")
        if colon and Path(module).is_absolute() and Path(module).is_relative_to(folder):
            table["use"] = f"{Path(module).relative_to(folder)}:{name}"
    return tables


def hosts_table_problems(hosts: HostsConfig) -> list[Problem]:
    """Return the problems within the hosts table, without regard to the other tables."""
    problems = []
    for name in dict.fromkeys(hosts.use):
        if hosts.use.count(name) > 1:
            message = phrase("hosts.use lists {host} twice.", host=name)
            problems.append(
                Problem("hosts", message, path="hosts.use", advice=phrase("List each host only once."))
            )
    if hosts.use and (hosts.min or 1) > len(hosts.use):
        message = phrase(
            "hosts.min = {least}, but hosts.use lists only {n}.", least=hosts.min, n=len(hosts.use)
        )
        advice = phrase("Set hosts.min to at most {n}.", n=len(hosts.use))
        problems.append(Problem("hosts", message, path="hosts.min", advice=advice))
    for name, use in hosts.devices.items():
        path = f"hosts.devices.{name}"
        if name not in hosts.use:
            message = phrase("hosts.devices contains {host}, but hosts.use does not.", host=name)
            advice = phrase("Add it to hosts.use, or remove it from hosts.devices.")
            problems.append(Problem("hosts", message, path=path, advice=advice))
        try:
            parse_devices(use)
        except DeviceError as error:
            problems.append(Problem("device", error.message, path=path, advice=error.advice))
    return problems


def device_kinds_problem(selections: Mapping[str, DeviceSelection]) -> Problem | None:
    """Return a problem if some hosts have GPUs and others virtual devices."""
    of_kind = {selection.kind: name for name, selection in selections.items()}
    if not {"gpu", "cpu"} <= of_kind.keys():
        return None
    return Problem(
        "hosts",
        phrase(
            "{gpus} has GPUs and {virtual} has virtual devices, but a run cannot use both.",
            gpus=of_kind["gpu"],
            virtual=of_kind["cpu"],
        ),
        path=f"hosts.devices.{of_kind['gpu']}",
        advice=phrase("Use GPUs on all hosts, or virtual devices on all hosts."),
    )


def hosts_problem(
    strategy: Choice, num_hosts: int, counts: Sequence[int] | None, across: Sequence[str]
) -> Problem | None:
    """Return a problem if the strategy cannot span the hosts; `counts` are their device counts. If `counts`
    is None, only check whether the strategy uses a single process. `across`: axes that may span hosts."""
    use = strategy.use
    if num_hosts < 2:
        return None
    if STRATEGIES[use].one_process:
        over = [name for name, card in STRATEGIES.items() if not card.one_process]
        return Problem(
            "hosts",
            phrase("{strategy} uses a single process, which cannot span several hosts.", strategy=use),
            path="strategy.use",
            advice=phrase("On several hosts, use {ones}.", ones=format_choices(over)),
        )
    for axis, size in _axis_group_sizes(strategy, sum(counts)).items() if counts else ():
        if axis not in across and any(count % size for count in counts or ()):
            path = "strategy.use" if use == axis else f"strategy.{axis}"
            return Problem(
                "hosts",
                phrase(
                    "Every {axis} group needs {size} consecutive ranks, but the hosts have "
                    "{counts} devices. Some groups would span hosts and cause heavy network "
                    "traffic.",
                    axis=axis,
                    size=size,
                    counts=", ".join(map(str, counts or ())),
                ),
                path=path,
                advice=phrase(
                    'Choose a size that fits, or allow groups across hosts: hosts.across = ["{axis}"].',
                    axis=axis,
                ),
            )
    return None


def _axis_group_sizes(strategy: Choice, num_devices: int) -> dict[str, int]:
    """Return, for each axis with heavy traffic, the number of consecutive ranks that a group spans."""
    if strategy.use == "tensor":
        return {"tensor": num_devices}
    if not STRATEGIES[strategy.use].has_mesh:
        return {}
    sizes = mesh_sizes.sizes_of(strategy.options)
    # Ranks are numbered along tensor first, then stage, shard and data.
    inner = {"tensor": sizes["tensor"], "shard": sizes["shard"] * sizes["stage"] * sizes["tensor"]}
    return {axis: size for axis, size in inner.items() if sizes[axis] > 1}
