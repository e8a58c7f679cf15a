"""Masks secrets, which are recognized by their name or form, in arguments and variables.

A run's config.toml and environment.json are read, compared and copied into reports, so they contain MASK in
place of a secret. The original values, which are needed to rerun the run, are stored next to these two files,
in files that only the owner can read (run_dir/directory.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_SECRET_WORDS = {"secret", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "jwt"}
_SECRET_LAST_WORDS = {"token", "pass", "pwd", "auth", "pat", "cookie", "authorization"}
_KEY_PREFIXES = {"api", "access", "secret", "private", "auth", "account", "encryption", "signing"}
_TOKENIZER_WORDS = {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "special", "per"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ASSIGNMENT = re.compile(
    r"""([A-Za-z][\w.\-]*)(["']?\s*[=:]\s*)("[^"]*"|'[^']*'|(?:(?:Bearer|Basic)\s+)?[^\s,;&?"']+)""", re.I
)
_OPTION_WITH_VALUE = re.compile(r"""(--?[A-Za-z][\w.\-]*)(\s+)("[^"]*"|'[^']*'|(?!--)[^\s"']+)""")
_URL_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.\-]*://)[^\s/?#]+@", re.I)
_BEARER = re.compile(r"\b(Bearer)\s+[^\s\"']+", re.I)
_API_KEY = re.compile(
    r"\b(?:(?:hf_|gh[opsur]_|github_pat_|glpat-|xox[a-z]-|pypi-|AKIA|ASIA|AIza|eyJ)[\w.\-]{12,}"
    r"|sk-(?:\w+-)?\w{16,})"
)
_CONTROL_CHARACTERS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_OPTION_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)


def is_secret_name(name: str, *, any_key: bool = False) -> bool:
    """Return whether the name of an option, key or variable is that of a secret: --password or API_KEY.

    If `any_key` is True, every name that ends in "key" counts as secret.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if last == "key":
        return any_key or before in _KEY_PREFIXES
    # pad_token or eos_token belong to a tokenizer and are not secrets.
    is_at_the_end = last in _SECRET_LAST_WORDS and not (last == "token" and before in _TOKENIZER_WORDS)
    return is_at_the_end or not _SECRET_WORDS.isdisjoint(words)


def mask_text(text: str, *, any_key: bool = False) -> str:
    """Mask credentials in URLs, text in the form of an API key, and values that follow a secret's name."""
    text = _URL_CREDENTIALS.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _API_KEY.sub(MASK, text)

    def hide(match: re.Match[str]) -> str:
        name, between, _ = match.groups()
        return f"{name}{between}{MASK}" if is_secret_name(name, any_key=any_key) else match[0]

    return _OPTION_WITH_VALUE.sub(hide, _ASSIGNMENT.sub(hide, text))


def mask_arguments(argv: Sequence[str], *, any_key: bool = False) -> list[str]:
    """Mask the secrets in a command line: VALUE in --token VALUE and --token=VALUE."""
    masked: list[str] = []
    follows = False
    for word in argv:
        option = _OPTION_ASSIGNMENT.fullmatch(word)
        # A value may start with one dash; two dashes start the next option.
        if follows and not word.startswith("--"):
            masked.append(MASK)
        elif option is not None and is_secret_name(option["name"], any_key=any_key):
            masked.append(f"{option['name']}={MASK}")
        else:
            masked.append(mask_text(word, any_key=any_key))
        follows = word.startswith("-") and option is None and is_secret_name(word, any_key=any_key)
    return masked


def mask_table(table: Mapping[str, Any]) -> dict[str, object]:
    """Mask the secrets in a configuration's tables."""
    return {key: _mask_value(str(key), value) for key, value in table.items()}


def _mask_value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return mask_table(value)
    if isinstance(value, str):
        return MASK if value and is_secret_name(key) else mask_text(value)
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return mask_arguments(value)
        return [_mask_value(key, item) for item in value]
    return value


def replace_control_characters(text: str) -> str:
    """Replace characters that move a terminal's cursor, set colors or reverse text direction.

    Names, messages and logs may come from an untrusted source, and such characters affect web pages as well.
    """
    return _CONTROL_CHARACTERS.sub("?", text)
