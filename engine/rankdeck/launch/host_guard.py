"""The guard of a run's part on one of several hosts.

    the head's listens  ->  the others' connect and say what they have  ->  all hear of all, and start their
    supervisors  ->  they hold on to each other (peers.py)  ->  whose part is over says how, and leaves

When a part fails, or a host goes, the head has the others end theirs. A supervisor whose other hosts are gone
is killed: its ranks may wait in a call that never returns. The head goes last and says how all went.
Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from rankdeck.launch.guard import EXIT_STOPPED, STOP_S, Guard
from rankdeck.launch.last_word import Sentence, how_it_was_killed, phrase
from rankdeck.launch.peers import BEAT_S, LAPSE_S, LEFT, SILENT, Gathering, Membership, Word
from rankdeck.launch.relay import Receiver, Sender

_MEET_S = 300.0
"""How long the first host waits for the last one."""
_VICTIM_S = 5.0
"""How long a part that others have made fail may take to say so itself."""
_LEAVE_S = STOP_S + _VICTIM_S + LAPSE_S
"""How long the head waits for the others' ends."""
_ALIKE = ("rankdeck", "python", "torch", "config", "attempt")
"""What has to be the same on all hosts."""
_SEE_IT = phrase("See whether it is on and reachable, then go on from the newest checkpoint.")


class HostGuard(Guard):
    """`spec["hosts"]`: name, secret, own (what the others are told of this host), and of the head listener (a
    socket), its address and others (how many), else head (address and port).
    """

    look_s = BEAT_S / 2

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._given: dict[str, Any] = spec["hosts"]
        self._given["own"]["attempt"] = self._attempt
        self._name: str = self._given["name"]
        self._gathering: Gathering | None = None
        self._membership: Membership | None = None
        self._store: socket.socket | None = None
        self._layout: Word | None = None
        self._because: Sentence | None = None
        self._lost: Sentence | None = None
        self._ended: dict[str, Word] = {}
        self._sender = Sender(self._run, self._attempt)
        self._receiver: Receiver | None = None
        self._meet_until_s = time.monotonic() + _MEET_S

    def prepare(self) -> None:
        """Listens, or has come to the head, before the run has its name."""
        given = self._given
        if "head" in given:
            self._join((given["head"][0], given["head"][1]))
        else:
            server = socket.socket(fileno=given["listener"])
            os.set_inheritable(server.fileno(), False)
            self._gathering = Gathering(
                self._selector, server, given["secret"], given["others"], self._hear, self._lose
            )
            self._store = socket.create_server((given["address"], 0), backlog=512)
            os.set_inheritable(self._store.fileno(), True)
        super().prepare()

    def _join(self, head: tuple[str, int]) -> None:
        given = self._given
        hello = {"word": "hello", "name": self._name, "secret": given["secret"], **given["own"]}
        try:
            self._membership = Membership(self._selector, head, hello, self._heed, self._lose_head)
        except OSError as error:
            error.filename = "{}:{}".format(*head)
            raise

    def begin(self) -> None:
        """The supervisor begins once all hosts are there."""

    def look(self, now_s: float) -> None:
        if self._gathering is not None:
            self._gathering.look(now_s)
            if self._layout is None and self._gathering.is_complete:
                self._lay_out()
        if self._membership is not None:
            self._send_news(self._membership)
            self._membership.look(now_s)
        if self._supervisor or self._status is not None:
            return
        if self._layout is not None:
            self._receiver = Receiver(self._run, _ranks_by_host(self._layout))
            self.start_supervisor("--hosts", json.dumps(self._layout), *self._store_argument())
            if self._store is not None:
                self._store.close()
        elif now_s > self._meet_until_s:
            self._fail(phrase("Not all hosts came within {seconds} s.", seconds=round(_MEET_S)))

    def _lay_out(self) -> None:
        """Who has which ranks, for everybody: in the order in which they came."""
        assert self._gathering is not None
        assert self._store is not None
        own = {"name": self._name, "address": self._given["address"], **self._given["own"]}
        others = [
            {key: value for key, value in host.items() if key not in ("word", "secret")}
            for host in self._gathering.hosts.values()
        ]
        for host in others:
            if not _is_sensible(host):
                self._refuse(host, phrase("What {host} says of itself makes no sense.", host=host["name"]))
                return
            if (odd := next((key for key in _ALIKE if host.get(key) != own[key]), None)) is not None:
                self._refuse(host, _odd(odd, host, own))
                return
        store = [self._given["address"], self._store.getsockname()[1]]
        self._layout = {"hosts": [own, *others], "store": store, "index": 0}
        self._gathering.tell({**self._layout, "word": "begin"})

    def _refuse(self, host: Word, because: Sentence) -> None:
        """Nobody begins, because of one of them."""
        self._fail(because)
        self._end_all(host["name"])

    def _store_argument(self) -> list[str]:
        return [] if self._store is None else ["--store", str(self._store.fileno())]

    # What the head hears.

    def _hear(self, name: str, word: Word) -> None:
        if word.get("word") == "events" and self._receiver is not None:
            self._receiver.take(name, word)
        elif word.get("word") == "stop":
            self.stop(now=bool(word.get("now")))
        elif word.get("word") == "ended":
            self._ended[name] = word
            if word.get("status") != 0:
                self._end_all(name)

    def _lose(self, name: str, how: str) -> None:
        if self._layout is None or (how == LEFT and name in self._ended):
            return
        self._lost = self._lost or _how_it_went(name, self._address_of(name), how)
        self._end_all(name)
        self._kill_supervisor()

    def _address_of(self, name: str) -> str:
        host = {} if self._gathering is None else self._gathering.hosts.get(name, {})
        return str(host.get("address", ""))

    def _end_all(self, because: str) -> None:
        """Every part has to end, this one too, once it has said what it has met itself."""
        if self._gathering is not None:
            self._gathering.tell({"word": "end", "because": because})
        self._end_own()

    def _end_own(self) -> None:
        if not self._supervisor:
            self._status = 1 if self._status is None else self._status
        elif self._kill_at is None:
            self._kill_at = time.monotonic() + _VICTIM_S

    # What the others hear.

    def _heed(self, word: Word) -> None:
        match word.get("word"):
            case "begin":
                try:
                    names = list(_ranks_by_host(word))
                    self._layout = {**word, "index": names.index(self._name)}
                except (KeyError, TypeError, ValueError):
                    self._fail(phrase("What the head says of the hosts makes no sense."))
            case "refused":
                self._fail(
                    phrase("The run's head did not take {name}: one of that name is there.", name=self._name)
                )
            case "stop":
                self.stop(now=bool(word.get("now")))
            case "end":
                self._because = phrase(
                    "The run ended because of {host}.", host=str(word.get("because"))[:200]
                )
                self._end_own()

    def _lose_head(self, how: str) -> None:
        if self._status is None:
            if how != LEFT:
                self._lost = _how_it_went(phrase("the head"), str(self._given["head"][0]), how)
                self._kill_supervisor()
            self._end_own()

    def _send_news(self, head: Membership) -> None:
        """While what was said before has gone."""
        if not head.is_behind:
            for word in self._sender.news():
                head.say(word)

    def _send_all(self, head: Membership) -> None:
        """What is left, before the last word; not for ever."""
        until_s = time.monotonic() + _VICTIM_S
        while time.monotonic() < until_s and self._lost is None:
            words = list(self._sender.news())
            for word in words:
                head.say(word)
            if not words and not head.is_behind:
                return
            head.look(time.monotonic())
            time.sleep(0.01 if head.is_behind else 0.0)

    def _fail(self, because: Sentence) -> None:
        """Before anything has begun."""
        self._because, self._status = because, 1

    def stop(self, *, now: bool) -> None:
        if self._gathering is not None:
            self._gathering.tell({"word": "stop", "now": now})
        elif self._membership is not None and not self._stop_asked:
            self._membership.say({"word": "stop", "now": now})
        if self._supervisor:
            super().stop(now=now)
        elif self._status is None:
            self._stop_asked, self._status = True, EXIT_STOPPED

    def _kill_supervisor(self) -> None:
        if self._supervisor:
            super()._kill_supervisor()

    def restart(self) -> bool:
        return False

    def end(self) -> None:
        """The last word of this part; the head's is that of all."""
        status = 1 if self._status is None else self._status
        if self._gathering is not None:
            self._await_others(status)
        if self._lost is not None and not self._stop_asked:
            if status < 0:
                self._word.tell_end("failed", 1)
            self._word.tell_problem("host-lost", self._lost, _SEE_IT)
            self._because, self._status = self._lost, 1
        elif self._because is not None and status < 0:
            self._word.tell_end("failed", 1)
            self._status = 1
        super().end()
        if self._membership is not None:
            self._send_all(self._membership)
            self._membership.say({"word": "ended", "status": status, "reason": str(self._reason() or "")})
            self._membership.close()

    def how_it_was_killed(self, number: int) -> Sentence:
        return phrase("{host}: {reason}", host=self._name, reason=how_it_was_killed(number))

    def _await_others(self, status: int) -> None:
        """Nobody is left behind: what the others came to is the run's end too."""
        gathering = self._gathering
        assert gathering is not None
        if status != 0 and self._lost is None:
            gathering.tell({"word": "end", "because": self._name})
        until_s = time.monotonic() + _LEAVE_S
        while gathering.num_there and time.monotonic() < until_s:
            for key, _ in self._selector.select(self.look_s):
                key.data(key.fileobj)
            gathering.look(time.monotonic())
        gathering.close()
        failed = [(name, word) for name, word in self._ended.items() if word.get("status") != 0]
        if failed and status == 0:
            name, word = failed[0]
            self._status = 1
            self._because = phrase("{host}: {reason}", host=name, reason=str(word.get("reason"))[:2000])

    def _reason(self) -> str | None:
        return self._because if self._because is not None else super()._reason()


def _is_sensible(host: Word) -> bool:
    ranks, devices = host.get("ranks"), host.get("devices")
    return isinstance(ranks, int) and ranks > 0 and isinstance(devices, list) and len(devices) == ranks


def _odd(key: str, host: Word, own: Word) -> Sentence:
    if key == "config":
        return phrase("{host} was started with another configuration.", host=host["name"])
    return phrase(
        "{host} has {library} {there}, and this is {here}.",
        host=host["name"],
        library=key,
        there=str(host.get(key))[:40],
        here=str(own[key]),
    )


def _ranks_by_host(layout: Word) -> dict[str, range]:
    found: dict[str, range] = {}
    first = 0
    for host in layout["hosts"]:
        found[host["name"]] = range(first, first + host["ranks"])
        first += host["ranks"]
    return found


def _how_it_went(name: str, address: str, how: str) -> Sentence:
    if how == SILENT:
        return phrase(
            "{host} ({address}) has been silent for {seconds} s: it is cut off, stopped or without power.",
            host=name,
            address=address,
            seconds=round(LAPSE_S),
        )
    return phrase(
        "{host} ({address}) has closed its connection without a word: its guard was killed, or it ended.",
        host=name,
        address=address,
    )
