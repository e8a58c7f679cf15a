"""Everything that planning a rank imports, imported once, before children are forked."""

from __future__ import annotations

import functools

from rankdeck.base.garbage import kept_for_good


@functools.cache
def preload() -> None:
    """Import torch and what plans a rank. The second call does nothing."""
    with kept_for_good():
        import torch._dynamo  # noqa: F401 - an optimizer's first step would, in every child

        import rankdeck.planner.figures  # noqa: F401
