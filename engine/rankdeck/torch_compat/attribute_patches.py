"""Attributes of torch that are exchanged for a while."""

from __future__ import annotations

from typing import Any


class AttributePatches:
    """Attributes of classes and modules that are exchanged, and put back the last one first."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def patch(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
