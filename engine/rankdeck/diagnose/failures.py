"""What an error's own words mean, as data: the code, what it says in plain words, and what to do next.

The first of RULES (failure_rules.py) that an error's type and text fit names it. Read exceptions.py (an
exception at hand) and tracebacks.py (one that was printed) next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.failure_rules import COMMUNICATION, DISK, RULES, Rule

UNNAMED = "rank-exception"
"""The code of an error that no rule knows."""
_LONGEST = 300


@dataclass(frozen=True)
class Named:
    """A rule that fits, with what it found in the text."""

    rule: Rule
    found: dict[str, str]

    @property
    def code(self) -> str:
        return self.rule.code

    def advice(self, *, of_script: bool) -> Phrase | None:
        """What it means and what to do next; None where only the log says more."""
        rule, found = self.rule, self.found
        says = phrase(rule.says, **found) if rule.says and _holes(rule.says) <= found.keys() else None
        advice = (rule.to_scripts if of_script else "") or rule.advice
        if not advice:
            return says
        return phrase(advice) if says is None else phrase("{says} {advice}", says=says, advice=phrase(advice))


def name(kind: str, text: str) -> Named | None:
    """The first rule that fits. `kind` is the name of the exception's type without its module, "" where a
    process said it without one; `text` its whole text.
    """
    for rule in RULES:
        found = rule.match(kind, text)
        if found is not None:
            groups = {key: said[:_LONGEST].strip() for key, said in found.groupdict().items() if said}
            return Named(rule, groups)
    return None


def name_disk(text: str) -> Named:
    """What the system says of a disk that takes nothing."""
    return name("", text) or Named(next(rule for rule in RULES if rule.code == DISK), {})


def is_communication(text: str) -> bool:
    """Whether the words of an error, or the end of a log, speak of ranks that have gone or not arrived."""
    return any(rule.code == COMMUNICATION and rule.words and rule.pattern.search(text) for rule in RULES)


def _holes(template: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", template))
