"""Everything that planning a rank imports, imported once, before children are forked.

Half of a second goes into looking for garbage among what torch makes while it is imported, and in every child
again: none is looked for meanwhile, and what is there then is left out of later collections.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def preload() -> None:
    """Import torch and what plans a rank. The second call does nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        import torch._dynamo  # noqa: F401 - an optimizer's first step would, in every child

        import rankdeck.planner.figures  # noqa: F401
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
