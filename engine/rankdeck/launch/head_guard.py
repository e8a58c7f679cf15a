"""The guard of the first of several hosts: the others come to it, and it decides what all of them do.

Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.host_guard import LEAVE_S, HostGuard, how_it_went, ranks_by_host
from rankdeck.launch.last_word import Sentence, phrase
from rankdeck.launch.peers import LEFT, Gathering, Word
from rankdeck.launch.relay import Receiver, name_in_files
from rankdeck.remote.clock import Clock

_MEET_S = 300.0
"""How long the first host waits for the last one."""
_GO_ON = phrase("To go on without what was there, resume the run on the hosts that have it still.")
_ALIKE = ("rankdeck", "python", "torch", "nccl", "lock", "config", "attempt")
"""What has to be the same on all hosts."""


class HeadGuard(HostGuard):
    """It has the whole run's events, and the last word."""

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        self._ended: dict[str, Word] = {}
        self._receiver: Receiver | None = None
        self._meet_until_s = time.monotonic() + _MEET_S

    def prepare(self) -> None:
        """It listens before the run has its name."""
        given = self.given
        server = socket.socket(fileno=given["listener"])
        os.set_inheritable(server.fileno(), False)
        self._gathering = Gathering(
            self._selector, server, given["secret"], given["others"], self._hear, self._lose, self.name
        )
        self._clocks = HostClocks(self._run, self._gathering.say_to)
        self._open_store()
        super().prepare()

    def _open_store(self) -> None:
        """Where the ranks of an attempt meet: nothing of the one before is in it. Raises: OSError."""
        self._store = socket.create_server((self.given["address"], 0), backlog=512)
        os.set_inheritable(self._store.fileno(), True)

    def look(self, now_s: float) -> None:
        self._gathering.look(now_s)
        self._clocks.look(now_s, self._gathering.names_there)
        if self.has_begun or self._status is not None:
            return
        if self._gathering.is_complete:
            self._begin_all()
        elif now_s > self._meet_until_s:
            self.fail(phrase("Not all hosts came within {seconds} s.", seconds=round(_MEET_S)))

    def turn(self) -> None:
        self.hear(self.look_s)
        self._gathering.look(time.monotonic())

    def _begin_all(self) -> None:
        own = self._own()
        for host in self._others():
            if not _is_sensible(host):
                self._refuse(host, phrase("What {host} says of itself makes no sense.", host=host["name"]))
                return
            if (odd := next((key for key in _ALIKE if host.get(key) != own[key]), None)) is not None:
                self._refuse(host, _odd(odd, host, own))
                return
        self._tell_layout()
        self.start_supervisor()

    def start_supervisor(self, *more: str) -> None:
        assert self.layout is not None
        ranks = ranks_by_host(self.layout)
        self._receiver = Receiver(self._run, ranks)
        self._clocks.begin(self._attempt, ranks)
        super().start_supervisor("--store", str(self._store.fileno()), *more)
        self._store.close()

    def _own(self) -> Word:
        return {"name": self.name, "address": self.given["address"], **self.given["own"]}

    def _others(self) -> list[Word]:
        """Those that are there, in the configuration's order, or else as they came."""
        order, there = self.given["order"], self._gathering.names_there
        hosts = [host for name, host in self._gathering.hosts.items() if name in there]
        hosts.sort(key=lambda host: order.index(host["name"]) if host["name"] in order else len(order))
        return [
            {key: value for key, value in host.items() if key not in ("word", "secret")} for host in hosts
        ]

    def _tell_layout(self, failed: str = "") -> None:
        """Who has which ranks, for everybody."""
        store = [self.given["address"], self._store.getsockname()[1]]
        self.layout = {"hosts": [self._own(), *self._others()], "store": store, "index": 0}
        self._gathering.tell({**self.layout, "failed": failed, "word": "begin"})

    def _refuse(self, host: Word, because: Sentence) -> None:
        """Nobody begins, because of one of them."""
        self.fail(because)
        self._end_all(host["name"])

    def _hear(self, name: str, word: Word) -> None:
        if word.get("word") == "events" and self._receiver is not None:
            self._receiver.take(name, word)
        elif word.get("word") == CLOCK:
            self._clocks.take(name, word)
        elif word.get("word") == "stop":
            self.stop(now=bool(word.get("now")))
        elif word.get("word") == "ended":
            self._ended[name] = word
            if word.get("status") != 0:
                self.ends_for_another |= self._status is None and "victim" not in word
                self._end_all(name, "" if "victim" in word else _reason_of(word))

    def _lose(self, name: str, how: str) -> None:
        if self.layout is None or (how == LEFT and name in self._ended):
            return
        address = str(self._gathering.hosts.get(name, {}).get("address", ""))
        self.lost = self.lost or how_it_went(name, address, how, self.name)
        self._end_all(name)
        self.kill_part()

    def _end_all(self, because: str, why: str = "") -> None:
        """Every part has to end, this one too."""
        self._gathering.tell({"word": "end", "because": because, "why": why})
        self.end_part()

    def _end_others(self) -> None:
        """Every part but this one, which is over; they hear what is known of the cause."""
        parts = self._parts()
        part = self._first_failed([part for part in parts if part.get("status") != 0] or parts)
        why = "" if "victim" in part else _reason_of(part)
        self._gathering.tell({"word": "end", "because": part["name"], "why": why})

    def stop(self, *, now: bool) -> None:
        self._gathering.tell({"word": "stop", "now": now})
        super().stop(now=now)

    def go_on(self) -> bool:
        if self._status != 0 and self.lost is None:
            self._end_others()
        until_s = time.monotonic() + LEAVE_S
        while self._gathering.names_there - set(self._ended) and time.monotonic() < until_s:
            self.turn()
        because = self._why_again()
        if because is None or self._stop_asked:
            self._gathering.tell({"word": "over"})
            return False
        failed = next((part["again"] for part in self._parts() if part.get("again")), "")
        self._word.tell_problem("restarted", self._going_on(because), severity="warning")
        self._ended.clear()
        try:
            self._open_store()
        except OSError:
            return False
        self._tell_layout(failed)
        return self.begin_again(failed)

    def _blamed(self) -> str:
        """The host that this part's end is due to: this one, or another that all waited for."""
        return str(self.part().get("host", self.name))

    def _parts(self) -> list[Word]:
        """How each has ended, this one first."""
        own = {**self.part(), "name": self._blamed()}
        return [own, *({**part, "name": name} for name, part in self._ended.items())]

    def _why_again(self) -> Sentence | None:
        """What another attempt may get over; None where all went well, or would go wrong again."""
        failed = [part for part in self._parts() if part.get("status") != 0]
        if self.num_restarts >= self._max_restarts or any(
            not isinstance(part.get("again"), str) for part in failed
        ):
            return None
        if 1 + self._gathering.num_there < self.given["least"]:
            return None
        if self.lost is not None or not failed:
            return self.lost
        return self._cause(failed)

    def _cause(self, failed: list[Word]) -> Sentence:
        part = self._first_failed(failed)
        return phrase("{host}: {reason}", host=part["name"], reason=_reason_of(part))

    def _first_failed(self, failed: list[Word]) -> Word:
        """Of the parts that have failed, the first that is no victim of another."""
        removed = (part for part in failed if part.get("code"))
        return next(removed, None) or next((part for part in failed if "victim" not in part), failed[0])

    def _going_on(self, because: Sentence) -> Sentence:
        number = 1 + self._gathering.num_there
        return phrase(
            "{cause} The run goes on with {hosts} from its newest checkpoint, or from the beginning "
            "where it has none (restart {n} of {most}).",
            cause=because,
            hosts=phrase("1 host") if number == 1 else phrase("{n} hosts", n=number),
            n=self.num_restarts + 1,
            most=self._max_restarts,
        )

    def end(self) -> None:
        """The last word of all."""
        self._await_others(1 if self._status is None else self._status)
        super().end()

    def end_removed(self) -> None:
        self._await_others(1)

    def _await_others(self, status: int) -> None:
        """Nobody is left behind: what the others came to is the run's end too."""
        if status != 0 and self.lost is None:
            self._end_others()
        until_s = time.monotonic() + LEAVE_S
        while self._gathering.num_there and time.monotonic() < until_s:
            self.turn()
        self._gathering.close()
        own = self.part()
        failed = [part for part in self._parts() if part.get("status") != 0]
        is_victim = "victim" in own and any("victim" not in part for part in failed)
        is_other = status == 0 or is_victim or "host" in own
        if failed and is_other and self.lost is None:
            self._status, self.because = 1, self._cause(failed)
            if any(part.get("code") == "run-folder" for part in failed):  # it could not tell that itself
                self._word.tell_problem("run-folder", self.because, _GO_ON)


def _reason_of(part: Word) -> str:
    return str(part.get("reason") or "")[:2000]


def _is_sensible(host: Word) -> bool:
    ranks, devices = host.get("ranks"), host.get("devices")
    return isinstance(ranks, int) and ranks > 0 and isinstance(devices, list) and len(devices) == ranks


def _odd(key: str, host: Word, own: Word) -> Sentence:
    if key == "config":
        return phrase("{host} was started with another configuration.", host=host["name"])
    if key == "lock":
        return phrase(
            "The lock files of {host} and of this host differ: have the same one beside both configurations, "
            "and install what it says.",
            host=host["name"],
        )
    return phrase(
        "{host} has {library} {there}, and this is {here}.",
        host=host["name"],
        library="NCCL" if key == "nccl" else key,
        there=str(host.get(key))[:40] or "?",
        here=str(own[key]) or "?",
    )


# The head's guard asks the others what time it is, and keeps beside the run how far their clocks are ahead:
# what they write stays as it is, and readers of runs put its times right (rundir/reading.py).
#
# Standard library only, as all of the guard.

CLOCK = "clock"
"""The word of a question, and of its answer."""
ASK_S = 5.0
_FINE_S = 0.001
"""A clock that has gone by less is told as it was."""


class HostClocks:
    """Of one run. `ask(name, word)` sends a question."""

    def __init__(self, run: str, ask: Callable[[str, Word], None]) -> None:
        self._file, self._ask = Path(run, "clocks.jsonl"), ask
        self._clocks: dict[str, Clock] = {}
        self._asked: dict[str, float] = {}
        self._next_s = 0.0
        self._attempt = 0
        self._ranks: Mapping[str, range] = {}
        self._told: dict[str, float] = {}

    def begin(self, attempt: int, ranks: Mapping[str, range]) -> None:
        """An attempt, and who has which of its ranks: what is known of the clocks counts from its start."""
        self._attempt, self._ranks = attempt, ranks
        self._told.clear()
        for name in ranks:
            self._tell(name, 0.0)

    def look(self, now_s: float, names: Collection[str]) -> None:
        """Again and again: ask those that are there, when it is time or one is new."""
        new = [name for name in names if name not in self._clocks]
        is_time = now_s >= self._next_s
        if is_time:
            self._next_s = now_s + ASK_S
        for name in names if is_time else new:
            self._clocks.setdefault(name, Clock())
            self._asked[name] = time.monotonic()
            self._ask(name, {"word": CLOCK, "asked": self._asked[name]})

    def take(self, name: str, word: Word) -> None:
        """An answer; one to another question than the last is none."""
        asked_s = self._asked.pop(name, math.nan)
        there = word.get("now")
        if word.get("asked") != asked_s or not isinstance(there, float) or not 0 <= there < 1e11:
            return
        self._clocks[name].answered(asked_s, there)
        self._tell(name, there)

    def _tell(self, name: str, since: float) -> None:
        """Where it is not what is told already; `since` by that clock."""
        clock = self._clocks.get(name)
        if clock is None or clock.offset_s is None or name not in self._ranks:
            return
        if name in self._told and abs(clock.offset_s - self._told[name]) <= _FINE_S + clock.within_s:
            return
        ranks = self._ranks[name]
        line = {
            "attempt": self._attempt,
            "host": name_in_files(name),
            "ranks": [ranks.start, ranks.stop],
            "since": since if name in self._told else 0.0,
            "ahead_s": round(clock.offset_s, 6),
            "within_s": round(clock.within_s, 6),
        }
        self._told[name] = clock.offset_s
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # a full disk
