"""Attributes of torch that are exchanged for a while."""

from __future__ import annotations

from typing import Any


class Replaced:
    """Attributes of classes and modules that are exchanged, and put back the last one first."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def put_back(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
