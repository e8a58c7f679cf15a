"""A process's command as one may show it: on one line, not longer than is of use, without what looks like a
secret.

What is hidden: the value of an option or a variable whose name is one of a secret (--api-key X, HF_TOKEN=X),
user and password of an address, what follows "Bearer", and texts that have the form of a known key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
LONGEST = 200
_ANYWHERE = {"secret", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "jwt"}
_AT_THE_END = {"token", "key", "pass", "pwd", "auth", "pat", "cookie", "authorization"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMED = re.compile(
    r"""([A-Za-z][\w.\-]*)(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|(?:(?:Bearer|Basic)\s+)?[^\s,;&?"']+)""", re.I
)
_SPACED = re.compile(r"""(--?[A-Za-z][\w.\-]*)(\s+)("[^"]*"|'[^']*'|(?!--)[^\s"']+)""")
_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.\-]*://)[^\s/?#]+@", re.I)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[^\s\"']+", re.I)
_KEYS = re.compile(
    r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|pypi-|AKIA|ASIA|AIza|eyJ)[\w.\-]{12,}|\b[0-9a-f]{40}\b"
)


def command_of(arguments: Sequence[str]) -> str:
    """The arguments of a process, as they may be shown."""
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        text = argument.encode(errors="replace").decode()
        hides = is_secret and not text.startswith("--")
        shown.append(HIDDEN if hides else _without_secrets(text))
        is_secret = text.startswith("-") and "=" not in text and _names_secret(text)
    words = " ".join(shown).strip()
    words = "".join(sign if sign.isprintable() else " " for sign in words)
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


def _without_secrets(text: str) -> str:
    text = _ADDRESS.sub(rf"\1{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _KEYS.sub(HIDDEN, text)
    for form in (_NAMED, _SPACED):
        text = form.sub(_hide, text)
    return text


def _hide(found: re.Match[str]) -> str:
    name, between, _ = found.groups()
    return f"{name}{between}{HIDDEN}" if _names_secret(name) else found[0]


def _names_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (words[-1] in _AT_THE_END or not _ANYWHERE.isdisjoint(words))
