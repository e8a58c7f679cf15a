"""A process's command as one may show it: on one line, not longer than is of use, without what looks like a
secret (base/masking.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankdeck.base.masking import MASK, mask_arguments

LONGEST = 200
_SUM = re.compile(r"\b[0-9a-f]{40}\b")
"""A key of some services; in a configuration it would be a commit."""


def command_of(arguments: Sequence[str]) -> str:
    """The arguments of a process, as they may be shown."""
    texts = [argument.encode(errors="replace").decode() for argument in arguments]
    words = _SUM.sub(MASK, " ".join(mask_arguments(texts, any_key=True)).strip())
    words = "".join(sign if sign.isprintable() else " " for sign in words)
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."
