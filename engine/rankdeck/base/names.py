"""Validates the name that a configuration, --name or a rename gives to a run or a race."""

from __future__ import annotations

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase

MAX_NAME_LENGTH = 120


def validate_name(name: str) -> str:
    """Return the name on one line, with whitespace collapsed.

    Raises:
        ConfigError: the name is too long, or is "last".
    """
    called = " ".join(name.split())
    if called.lower() == "last":
        raise ConfigError(
            phrase('"last" is reserved for the newest run.'),
            path="name",
            advice=phrase("Choose another name."),
        )
    if len(called) > MAX_NAME_LENGTH:
        raise ConfigError(
            phrase(
                "This name has {count} characters, but the limit is {most}.",
                count=len(called),
                most=MAX_NAME_LENGTH,
            ),
            path="name",
            advice=phrase("Choose a shorter name."),
        )
    return called
