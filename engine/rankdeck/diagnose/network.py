"""Ranks of several hosts that all have come to a collective which does not end -> the network between them.

A network may carry small packets and lose large ones, where ends and what is between them disagree on how
large a packet may be (MTU): ranks meet, and the first tensor never arrives. Whoever only sends it is a
collective ahead by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankdeck.base.phrases import AND_TEMPLATE, Phrase, join_phrases, phrase, tr_noop
from rankdeck.diagnose.stacks import CollectiveCall, find_unfinished

MTU_ADVICE = tr_noop(
    "Give the hosts, and all that is between them, the same MTU, or try a smaller one on each: ip link set "
    "INTERFACE mtu 1400."
)
_MAX_HOSTS = 4
"""That are named."""


@dataclass(frozen=True)
class LossyNetwork:
    """What is sent in `call` does not arrive between `hosts`."""

    call: CollectiveCall
    hosts: Sequence[str]

    def text(self) -> Phrase:
        hosts = join_phrases(self.hosts[:_MAX_HOSTS], AND_TEMPLATE)
        return phrase(
            "every rank has come to {call}, and the network between {hosts} does not bring all that they "
            "send in it",
            call=self.call.text(),
            hosts=hosts,
        )

    def advice(self) -> Phrase:
        return phrase(
            "Large packets may be lost on the way (MTU): rankdeck doctor --hosts {hosts} sends some. {fix}",
            hosts=",".join(self.hosts),
            fix=phrase(MTU_ADVICE),
        )


def find_lossy_network(
    calls: Mapping[int, Sequence[CollectiveCall]], hosts: Mapping[int, str]
) -> LossyNetwork | None:
    """Of ranks that all wait; None where no collective tells it, or where one host has all of its ranks.
    `hosts`: the name of each rank's."""
    found = find_unfinished(calls)
    if found is None:
        return None
    call, ranks = found
    names = [*dict.fromkeys(hosts[rank] for rank in sorted(ranks) if rank in hosts)]
    return LossyNetwork(call, names) if len(names) > 1 else None
