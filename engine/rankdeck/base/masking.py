"""Secrets in arguments and variables, by their names and by their shapes -> what may be shown of them.

A run's config.toml and environment.json are read, compared and put into reports: they hold MASK for a secret.
What is needed to run the same again is kept beside them, for the owner alone (rundir/directory.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_NAMES = re.compile(
    r"(?:^|[-_.])(?:token|passw(?:or)?d|passphrase|pwd|secret|credentials?|pat|"
    r"(?:api|access|secret|private|auth|account|encryption|signing)[-_]?key)$|(?:apikey|password|secret)$",
    re.IGNORECASE,
)
_NO_SECRETS = re.compile(
    r"(?:^|[-_.])(?:pad|eos|bos|unk|mask|sep|cls|image|special|per)[-_]token$", re.IGNORECASE
)
"""Signs of a vocabulary."""
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
)
_ACTS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_OPTION = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)


def names_secret(name: str) -> bool:
    """Whether an option, a key or a variable of this name holds a secret: hf_token, --password, API_KEY."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return _NAMES.search(name) is not None and _NO_SECRETS.search(name) is None


def mask_text(text: str) -> str:
    """Without what has the shape of a known service's key, or of a password in an address."""
    return _SHAPES.sub(MASK, text)


def mask_arguments(words: Sequence[str]) -> list[str]:
    """A command line without its secrets: the value of --token VALUE and --token=VALUE."""
    masked: list[str] = []
    follows = False
    for word in words:
        option = _OPTION.fullmatch(word)
        if follows and not word.startswith("--"):
            masked.append(MASK)
        elif option is not None and names_secret(option["name"]):
            masked.append(f"{option['name']}={MASK}")
        else:
            masked.append(mask_text(word))
        follows = word.startswith("-") and option is None and names_secret(word.lstrip("-"))
    return masked


def mask_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a configuration without their secrets."""
    return {key: _masked(str(key), value) for key, value in table.items()}


def _masked(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return mask_table(value)
    if isinstance(value, str):
        return MASK if value and names_secret(key) else mask_text(value)
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return mask_arguments(value)
        return [_masked(key, item) for item in value]
    return value


def harmless(text: str) -> str:
    """Without signs that move a terminal's cursor, colour it or turn its lines around, in a page as well:
    names, messages and logs may come from anywhere."""
    return _ACTS.sub("?", text)
