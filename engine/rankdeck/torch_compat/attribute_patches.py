"""Replace attributes of torch's classes and modules, and restore them later."""

from __future__ import annotations

from typing import Any


class AttributePatches:
    """Replaced attributes of classes and modules, restored in reverse order."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def patch(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            # The patch created an attribute on the owner; deleting it restores the inherited one.
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
