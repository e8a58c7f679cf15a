"""Check whether several hosts can train together in one run, with one row for each possible obstacle.

One pipe to each host stays open, and independent checks run in parallel. probe_hosts.py runs on each host.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rankdeck
from rankdeck.base import packages
from rankdeck.base.parsing import JsonObject
from rankdeck.base.phrases import AND_TEMPLATE, COMMA_TEMPLATE, join_phrases, phrase
from rankdeck.base.units import format_bytes
from rankdeck.diagnose.network import MTU_ADVICE
from rankdeck.doctor.lines import HOST_ROW_TITLES, CheckLine, Verdict, make_row, skipped_rows
from rankdeck.doctor.probe_hosts import LARGE_BYTES
from rankdeck.doctor.probed_host import ProbedHost, parse_steps
from rankdeck.remote.host_launcher import find_coordinator_address
from rankdeck.remote.hosts import RemoteCommand, RemoteHosts

_CONNECT_S, _LISTEN_S, _REACH_S, _FACTS_S, _PAIR_S = 25.0, 10.0, 15.0, 8.0, 20.0
_MAX_SKEW_S = 5.0
_LOW_DISK_BYTES = 2 << 30
_SLOW_BYTES_PER_S = 20 << 20
"""Speed at which an all_reduce of 100 MB of gradients takes five seconds."""
_REQUIRED_EQUAL = ("python", "torch")  # a run refuses hosts that differ here (launch/coordinator_guard.py)
_PACKAGE_TITLES = {"nccl": "NCCL"}
_MAX_PACKAGES = 5
"""Maximum number of packages to name: unrelated environments would differ in hundreds of packages."""


def check_hosts(
    names: Sequence[str],
    head_address: str | None = None,
    *,
    needs_gpus: bool = False,
    code: Path | None = None,
) -> Iterator[CheckLine]:
    """Yield every row as soon as it is known; `code` is the folder of user code that the hosts will run.

    Nodes reach the coordinator at `head_address`, by default the address that ssh uses. Raises: ConfigError.
    """
    with RemoteHosts(names, lambda host, text: None) as hosts:
        hosts.connect(_CONNECT_S)
        line = _ssh_row(hosts)
        yield line
        if line.verdict is Verdict.FAILED:
            why = phrase("Not all hosts are available.")
            yield from skipped_rows([name for name in HOST_ROW_TITLES if name != "ssh"], why)
            return
        probes = _start_probes(hosts, head_address)
        try:
            yield from _host_rows(hosts, probes, needs_gpus=needs_gpus, code=code)
        finally:
            for probe in probes:
                probe.process.send_signal()
            hosts.poll_until(lambda: all(probe.has_ended for probe in probes), 2.0)


def _ssh_row(hosts: RemoteHosts) -> CheckLine:
    evidence: list[str] = [
        phrase("{host}: rankdeck {version}", host=host.name, version=host.link.version or "")
        for host in hosts.reachable
    ]
    missing = [host for host in hosts.all if host not in hosts.reachable]
    if not missing:
        finding = phrase("All hosts have rankdeck {version}.", version=rankdeck.__version__)
        return make_row("ssh", Verdict.OK, finding, *evidence)
    why = [
        phrase("{host}: no answer in {limit:.0f} s.", host=host.name, limit=_CONNECT_S)
        if host.error is None
        else host.error.message
        for host in missing
    ]
    fixes = [host.error.advice for host in missing if host.error is not None and host.error.advice]
    fix = fixes[0] if fixes else phrase("Check that the host is on and reachable.")
    return make_row("ssh", Verdict.FAILED, why[0], *why[1:], *evidence, fix=fix)


def _start_probes(hosts: RemoteHosts, head_address: str | None) -> list[ProbedHost]:
    """Start the coordinator's probe, then the nodes' probes with the address of the coordinator's store."""
    coordinator, *others = hosts.all
    number, probes = str(len(hosts.all)), list[ProbedHost]()
    first_address = head_address or find_coordinator_address(coordinator, others)
    for index, host in enumerate(hosts.all):
        address = first_address if index == 0 else host.link.address or "127.0.0.1"
        argv = ["meet", "--address", address, "--number", str(index), "--hosts", number]
        if index:
            argv += ["--store", f"{probes[0].address}:{probes[0].step('listens').get('store', 0)}"]
        probes.append(ProbedHost(host, address, host.start_command(argv)))
        if index == 0:
            _wait_for_step(hosts, [probes[0]], lambda probe: probe.step("listens"), _LISTEN_S)
    _wait_for_step(hosts, probes, lambda probe: probe.step("listens"), _LISTEN_S)
    return probes


def _host_rows(
    hosts: RemoteHosts, probes: Sequence[ProbedHost], *, needs_gpus: bool, code: Path | None
) -> Iterator[CheckLine]:
    yield _reach_row(hosts, probes)
    yield _interfaces_row(probes)
    _wait_for_step(hosts, probes, lambda probe: probe.step("facts"), _FACTS_S)
    yield _versions_row(probes, needs_gpus=needs_gpus, code=code)
    yield _clocks_row(probes)
    yield _free_devices_row(probes, needs_gpus=needs_gpus)
    yield _disks_row(probes)
    yield _collective_row(hosts, probes)


def _wait_for_step(
    hosts: RemoteHosts, probes: Sequence[ProbedHost], is_there: Callable[[ProbedHost], Any], within_s: float
) -> None:
    hosts.poll_until(lambda: all(is_there(probe) or probe.has_ended for probe in probes), within_s)


def _reach_row(hosts: RemoteHosts, probes: Sequence[ProbedHost]) -> CheckLine:
    """Return the row about reachability: every host tries to connect to every other one."""
    deaf = [probe for probe in probes if not probe.step("listens")]
    if deaf:
        names = join_phrases((probe.host.name for probe in deaf), AND_TEMPLATE)
        finding = phrase("{hosts}: no process can listen on the host's address.", hosts=names)
        evidence = [f"{probe.host.name}: {probe.failure_reason() or probe.address}" for probe in deaf]
        fix = phrase("Set hosts.address to the address at which the other hosts reach the first host.")
        return make_row("reach", Verdict.FAILED, finding, *evidence, fix=fix)
    tries: list[tuple[ProbedHost, list[ProbedHost], RemoteCommand]] = []
    for probe in probes:
        others = [other for other in probes if other is not probe]
        endpoints = ",".join(f"{other.address}:{other.step('listens').get('reach')}" for other in others)
        tries.append((probe, others, probe.host.start_command(["meet", "--reach", endpoints])))
    hosts.poll_until(lambda: all(ran.exit_code is not None or ran.host.error for *_, ran in tries), _REACH_S)
    evidence, failed, small = list[str](), list[str](), list[str]()
    for probe, others, ran in tries:
        steps = {step.get("number"): step for step in parse_steps(ran)}
        for number, other in enumerate(others):
            step = steps.get(number, {})
            fields = {"host": probe.host.name, "other": other.host.name, "address": other.address}
            if step.get("takes_large") is False:
                lost = phrase(
                    "{host} to {other} ({address}): small packets arrive, but {size} at once does not",
                    size=format_bytes(LARGE_BYTES),
                    **fields,
                )
                small.append(lost)
            elif isinstance(seconds := step.get("seconds"), float):
                evidence.append(
                    phrase("{host} to {other} ({address}): {ms:.1f} ms", ms=seconds * 1e3, **fields)
                )
            else:
                why = step.get("error") or phrase("no answer")
                failed.append(phrase("{host} to {other} ({address}): {why}", why=why, **fields))
    total = len(failed) + len(small) + len(evidence)
    if failed:
        finding = phrase("{count} of {total} connections fail.", count=len(failed), total=total)
        fix = phrase(
            "Allow TCP on all ports between these hosts in the firewall, or set another address "
            "(hosts.address)."
        )
        return make_row("reach", Verdict.FAILED, finding, *failed, *small, *evidence, fix=fix)
    if small:
        finding = phrase("{count} of {total} connections lose large packets.", count=len(small), total=total)
        return make_row("reach", Verdict.FAILED, finding, *small, *evidence, fix=phrase(MTU_ADVICE))
    finding = phrase("All {count} connections work.", count=len(evidence))
    return make_row("reach", Verdict.OK, finding, *evidence)


def _interfaces_row(probes: Sequence[ProbedHost]) -> CheckLine:
    named = {probe.host.name: probe.step("listens").get("interface") for probe in probes}
    evidence = [f"{probe.host.name}: {probe.address} ({named[probe.host.name] or '?'})" for probe in probes]
    if all(named.values()):
        finding = phrase("gloo and NCCL use the interface that has the host's address.")
        return make_row("interfaces", Verdict.OK, finding, *evidence)
    finding = phrase("The interface of a host's address is unknown: gloo uses the hostname's interface.")
    fix = phrase("Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on that host.")
    return make_row("interfaces", Verdict.WARNING, finding, *evidence, fix=fix)


def _versions_row(probes: Sequence[ProbedHost], *, needs_gpus: bool, code: Path | None) -> CheckLine:
    """Return the worse of the two rows about versions and packages, with the evidence of both."""
    both = _compare_versions(probes, needs_gpus=needs_gpus), _compare_packages(probes, code)
    line, other = sorted(both, key=lambda row: -list(Verdict).index(row.verdict))
    line.evidence += [*([other.finding] if other.verdict is not Verdict.OK else []), *other.evidence]
    line.phrases = {**line.phrases, **other.phrases}
    return line


def _compare_versions(probes: Sequence[ProbedHost], *, needs_gpus: bool) -> CheckLine:
    first, odd, evidence, unlike = probes[0].step("facts"), set[str](), list[str](), list[str]()
    must = (*_REQUIRED_EQUAL, "nccl") if needs_gpus else _REQUIRED_EQUAL
    for probe in probes:
        facts = probe.step("facts")
        libraries = (*_REQUIRED_EQUAL, "nccl", "driver")
        text = ", ".join(f"{_PACKAGE_TITLES.get(name, name)} {facts.get(name) or '?'}" for name in libraries)
        others = [name for name in must if _short_version(name, facts) != _short_version(name, first)]
        (unlike if others else evidence).append(f"{probe.host.name}: {text}")
        odd.update(others)
    build = phrase("Install the same torch build on all hosts, with the NCCL version that it requires.")
    told_of = {probe.host.name: probe.step("facts") for probe in probes}
    lacking = [name for name, facts in told_of.items() if "torch" in facts and not facts["torch"]]
    if lacking:
        finding = phrase("{hosts}: torch is not installed.", hosts=join_phrases(lacking, COMMA_TEMPLATE))
        fix = phrase("Install it there: rankdeck --host {host} install", host=lacking[0])
        return make_row("alike", Verdict.FAILED, finding, *evidence, *unlike, fix=fix)
    if odd:
        titles = [_PACKAGE_TITLES.get(name, name) for name in must if name in odd]
        finding = phrase("Hosts differ in {names}.", names=join_phrases(titles, AND_TEMPLATE))
        fix = (
            build
            if odd == {"nccl"}
            else phrase("Install the same versions on all hosts: rankdeck --host NAME install.")
        )
        return make_row("alike", Verdict.FAILED, finding, *evidence[:1], *unlike, *evidence[1:], fix=fix)
    if len({probe.step("facts").get("nccl") for probe in probes}) > 1:
        finding = phrase("Hosts have different NCCL versions: Rankdeck would refuse a run on GPUs.")
        return make_row("alike", Verdict.WARNING, finding, *evidence, fix=build)
    if len({probe.step("facts").get("driver") for probe in probes}) > 1:
        finding = phrase("Hosts have different drivers, which may slow down runs.")
        fix = phrase("Install the same driver on all hosts.")
        return make_row("alike", Verdict.WARNING, finding, *evidence, fix=fix)
    return make_row("alike", Verdict.OK, phrase("Python and torch are the same on all hosts."), *evidence)


def _compare_packages(probes: Sequence[ProbedHost], code: Path | None) -> CheckLine:
    """Return the row about packages: only those pinned by `code`'s lock file must have equal versions."""
    lock = None if code is None else packages.find_lock_file(code)
    try:
        names = None if lock is None else packages.pinned_packages(lock)
    except (OSError, ValueError) as error:
        assert lock is not None
        why = getattr(error, "strerror", None) or error
        finding = phrase("{file} cannot be read: {why}.", file=lock.name, why=why)
        fix = phrase("Recreate the file, so that package versions can be compared.")
        return make_row("alike", Verdict.WARNING, finding, fix=fix)
    differ, lack = _package_differences(probes, names)
    if lock is None:
        if code is not None and differ:
            finding = phrase("Package versions differ, and no lock file lists the packages that must match.")
            fix = phrase(
                "Install the same versions on all hosts. To require that, put a lock file next to the "
                "configuration."
            )
            return make_row("alike", Verdict.WARNING, finding, *_truncate(differ), fix=fix)
        return make_row("alike", Verdict.OK, phrase("No package versions have to match."), *_truncate(differ))
    fix = phrase("Install the versions from {file} into Rankdeck's Python on each host.", file=lock.name)
    if differ:
        finding = phrase("Hosts have different versions of packages in {file}.", file=lock.name)
        return make_row("alike", Verdict.FAILED, finding, *_truncate(differ), *_truncate(lack), fix=fix)
    if lack:
        finding = phrase("Not all hosts have the packages in {file}.", file=lock.name)
        return make_row("alike", Verdict.WARNING, finding, *_truncate(lack), fix=fix)
    finding = phrase("The packages in {file} are the same on all hosts.", file=lock.name)
    return make_row("alike", Verdict.OK, finding)


def _package_differences(probes: Sequence[ProbedHost], names: Container[str] | None) -> list[list[str]]:
    """Return how the other hosts' packages differ from the first host's: [other versions, missing packages].
    If `names` is not None, compare only these packages."""
    differ, lack = list[str](), list[str]()
    first_host, here = probes[0].host.name, probes[0].installed_packages()
    for probe in probes[1:]:
        host, there = probe.host.name, probe.installed_packages()
        for name in sorted(here.keys() | there.keys()) if here and there else ():
            if names is not None and name not in names:
                continue
            fields = {"package": name, "host": host, "other": first_host}
            if name not in there:
                lack.append(phrase("{host} has no {package}; {other} has {here}", here=here[name], **fields))
            elif name not in here:
                text = phrase("{host} has {package} {there}; {other} lacks it", there=there[name], **fields)
                lack.append(text)
            elif here[name] != there[name]:
                fields |= {"there": there[name], "here": here[name]}
                differ.append(phrase("{host} has {package} {there}, {other} has {here}", **fields))
    return [differ, lack]


def _truncate(items: Sequence[str]) -> list[str]:
    more = len(items) - _MAX_PACKAGES
    return [*items[:_MAX_PACKAGES], *([phrase("and {count} more", count=more)] if more > 0 else [])]


def _short_version(name: str, facts: JsonObject) -> str:
    """Return the version to compare: for Python only major.minor, otherwise the whole version."""
    version = str(facts.get(name))
    return ".".join(version.split(".")[:2]) if name == "python" else version


def _clocks_row(probes: Sequence[ProbedHost]) -> CheckLine:
    offsets = {probe.host.name: probe.host.link.clock.offset_s or 0.0 for probe in probes}
    evidence = [
        phrase("{host}: {seconds:+.3f} s relative to this host", host=name, seconds=seconds)
        for name, seconds in offsets.items()
    ]
    apart_s = max(offsets.values()) - min(offsets.values())
    if apart_s <= _MAX_SKEW_S:
        return make_row("clocks", Verdict.OK, phrase("The clocks differ by {s:.2f} s.", s=apart_s), *evidence)
    finding = phrase(
        "Clocks are {s:.1f} s apart: a run's charts correct for this, but hosts' logs do not.", s=apart_s
    )
    fix = phrase(
        "Synchronise the clocks with a time service (chrony, systemd-timesyncd). Training is not affected."
    )
    command = "timedatectl set-ntp true"
    return make_row("clocks", Verdict.WARNING, finding, *evidence, fix=fix, command=command)


def _free_devices_row(probes: Sequence[ProbedHost], *, needs_gpus: bool) -> CheckLine:
    evidence, lacking = list[str](), list[str]()
    for probe in probes:
        host, facts = probe.host.name, probe.step("facts")
        free, total = facts.get("free_gpus", 0), facts.get("gpus", 0)
        text = phrase("{host}: free GPUs: {free} of {total}", host=host, free=free, total=total)
        evidence.append(text)
        if not free:
            lacking.append(host)
    if not lacking:
        return make_row("free", Verdict.OK, phrase("Every host has free GPUs."), *evidence)
    names = join_phrases(lacking, COMMA_TEMPLATE)
    if needs_gpus:
        finding = phrase("{hosts}: no GPU is free.", hosts=names)
        fix = phrase("Wait, leave the host out, or rehearse: --devices cpu:2.")
        return make_row("free", Verdict.FAILED, finding, *evidence, fix=fix)
    finding = phrase("{hosts}: no GPU is free; a rehearsal needs none.", hosts=names)
    return make_row("free", Verdict.OK, finding, *evidence)


def _disks_row(probes: Sequence[ProbedHost]) -> CheckLine:
    free = {probe.host.name: int(probe.step("facts").get("free_bytes") or 0) for probe in probes}
    evidence = [
        phrase("{host}: {size} is free", host=name, size=format_bytes(size)) for name, size in free.items()
    ]
    little = [name for name, size in free.items() if size < _LOW_DISK_BYTES]
    if not little:
        return make_row("disks", Verdict.OK, phrase("All hosts have space for runs."), *evidence)
    finding = phrase("{hosts}: little space for checkpoints.", hosts=join_phrases(little, COMMA_TEMPLATE))
    return make_row("disks", Verdict.WARNING, finding, *evidence, fix=phrase("Free some space there."))


def _failed_hosts_row(reasons: Mapping[str, str]) -> CheckLine:
    """Return the row about hosts on which no rank can start, with the reason for each host."""
    first = next(iter(reasons))
    finding = phrase("Ranks cannot start on {hosts}.", hosts=join_phrases(reasons, COMMA_TEMPLATE))
    evidence = [f"{host}: {reason}" for host, reason in reasons.items()]
    fix = phrase("Fix the error on {host}, or reinstall Rankdeck: rankdeck --host {host} install", host=first)
    return make_row("together", Verdict.FAILED, finding, *evidence, fix=fix)


def _collective_row(hosts: RemoteHosts, probes: Sequence[ProbedHost]) -> CheckLine:
    """Return the row about an all_reduce between the coordinator and each node. The result of a pair is the
    coordinator's report on it or, if there is no such report, the node's error."""
    coordinator, *others = probes
    numbers = range(1, len(probes))

    def pairs() -> dict[int, JsonObject]:
        steps = {step["number"]: step for other in others for step in other.steps("pair") if "error" in step}
        return {**steps, **{step["number"]: step for step in coordinator.steps("pair")}}

    def is_over() -> bool:
        reported = pairs()
        return coordinator.failure_reason() is not None or all(
            number in reported or other.failure_reason() is not None
            for number, other in zip(numbers, others, strict=True)
        )

    hosts.poll_until(is_over, _PAIR_S)
    reasons = {probe.host.name: reason for probe in probes if (reason := probe.failure_reason()) is not None}
    if reasons:
        return _failed_hosts_row(reasons)
    pair_steps, evidence, failed, speeds = pairs(), list[str](), list[str](), list[float]()
    for number, other in zip(numbers, others, strict=True):
        step = pair_steps.get(number, {})
        both = phrase("{host} and {other}", host=coordinator.host.name, other=other.host.name)
        if "error" in step or not step:
            why = step.get("error") or phrase("no answer within {limit:.0f} s", limit=_PAIR_S)
            failed.append(f"{both}: {why}")
        elif step.get("num_wrong"):
            failed.append(phrase("{both}: {count} sums are wrong", both=both, count=step["num_wrong"]))
        else:
            speeds.append(step["num_bytes"] / max(step["seconds"], 1e-9))
            evidence.append(f"{both}: {format_bytes(speeds[-1])}/s")
    if failed:
        finding = phrase(
            "{count} of {total} host pairs fail an all_reduce.", count=len(failed), total=len(others)
        )
        fix = phrase("Check the connections and interfaces of the hosts; a firewall may be blocking them.")
        return make_row("together", Verdict.FAILED, finding, *failed, *evidence, fix=fix)
    speed = f"{format_bytes(min(speeds))}/s"
    if min(speeds) < _SLOW_BYTES_PER_S:
        finding = phrase(
            "The ranks connect, but an all_reduce of 16 MiB runs at {speed}: gradient exchange will be slow.",
            speed=speed,
        )
        fix = phrase("Use a faster link (set hosts.address), or compress gradients (strategy.compress).")
        return make_row("together", Verdict.WARNING, finding, *evidence, fix=fix)
    finding = phrase(
        "The ranks connect, their sums are correct, and an all_reduce of 16 MiB runs at {speed}.", speed=speed
    )
    return make_row("together", Verdict.OK, finding, *evidence)
