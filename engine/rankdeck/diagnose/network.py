"""Detect a lossy network: ranks on several hosts are all in one collective that does not end.

A network may carry small packets but lose large ones, if hosts and switches disagree on the maximum packet
size (MTU): ranks connect, but the first tensor never arrives. A rank that only sends is one collective ahead
of the receiving ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankdeck.base.phrases import AND_TEMPLATE, Phrase, join_phrases, phrase, tr_noop
from rankdeck.diagnose.stacks import CollectiveCall, find_unfinished

MTU_ADVICE = tr_noop(
    "Set the same MTU on the hosts and all network devices between them, or try a smaller MTU "
    "on each host: ip link set INTERFACE mtu 1400."
)
_MAX_HOSTS = 4
"""Maximum number of hosts named in a message."""


@dataclass(frozen=True)
class LossyNetwork:
    """A network between `hosts` that loses data sent in `call`."""

    call: CollectiveCall
    hosts: Sequence[str]

    def text(self) -> Phrase:
        hosts = join_phrases(self.hosts[:_MAX_HOSTS], AND_TEMPLATE)
        return phrase(
            "every rank has reached {call}, but the network between {hosts} does not deliver all of its data",
            call=self.call.text(),
            hosts=hosts,
        )

    def advice(self) -> Phrase:
        return phrase(
            "The network may drop large packets (MTU); rankdeck doctor --hosts {hosts} tests this. {fix}",
            hosts=",".join(self.hosts),
            fix=phrase(MTU_ADVICE),
        )


def find_lossy_network(
    calls: Mapping[int, Sequence[CollectiveCall]], hosts: Mapping[int, str]
) -> LossyNetwork | None:
    """Return the lossy network for which the ranks are waiting. Call this only if all ranks are waiting.

    None if no collective indicates a lossy network, or if all ranks of the collective are on one host.
    `hosts`: host name by rank.
    """
    unfinished = find_unfinished(calls)
    if unfinished is None:
        return None
    call, ranks = unfinished
    # dict.fromkeys removes duplicates and keeps the order of ranks.
    names = [*dict.fromkeys(hosts[rank] for rank in sorted(ranks) if rank in hosts)]
    return LossyNetwork(call, names) if len(names) > 1 else None
