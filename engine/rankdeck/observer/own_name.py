"""`import rankdeck` in an observed script, where no package of that name is installed: a module with `log`.

The finder stands last, so whatever the script would find itself comes first.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_NAME = "rankdeck"


class _Finder:
    """Finds that one module, and loads it."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        # The class of every spec: importlib.machinery would cost each Python of a run some milliseconds.
        make: Any = type(sys.__spec__)
        return make(name, self, origin=__file__) if name == _NAME else None

    def create_module(self, spec: "Any") -> None:
        """As usual."""

    def exec_module(self, module: "ModuleType") -> None:
        from .log import log

        module.__doc__ = log.__doc__
        module.log = log  # type: ignore[attr-defined]


def arm() -> None:
    """Answer from now on to what nobody else does."""
    sys.meta_path.append(_Finder())
