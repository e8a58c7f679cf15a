"""Private APIs of torch that the engine uses, and a check for changes to them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHECKED_VERSIONS = ("2.11.0", "2.13.0", "2.15.0")
"""Versions of torch in which all private APIs work as the engine expects."""


@dataclass(frozen=True)
class PrivateApi:
    """A private API of torch that the engine uses.

    `path` is "module:Class.attribute", or a description of the object that `lookup` returns. `parameters`:
    names of arguments that the engine relies on; they must come first, in this order. `consequence`: the
    problem that users see if torch has moved the API, worded as a clause within a sentence.
    """

    path: str
    consequence: str
    parameters: tuple[str, ...] | None = None
    lookup: Callable[[], Any] | None = None
    versions: tuple[str, ...] = CHECKED_VERSIONS

    def find_change(self) -> str | None:
        """Describe how this API differs in the installed torch; None if it does not."""
        try:
            target = self.lookup() if self.lookup is not None else _resolve(self.path)
        except (ImportError, AttributeError) as error:
            return f"{self.path} is gone ({error})"
        if self.parameters is None:
            return None
        try:
            parameters = list(inspect.signature(target).parameters.values())
        except ValueError:  # a built-in function has no signature
            return None
        names = tuple(parameter.name for parameter in parameters)
        if names[: len(self.parameters)] != self.parameters:
            return f"{self.path} takes ({', '.join(names)}), not ({', '.join(self.parameters)})"
        needed = [
            parameter.name
            for parameter in parameters[len(self.parameters) :]
            if parameter.default is parameter.empty and parameter.kind not in _OPEN_ENDED
        ]
        return f"{self.path} also requires {', '.join(needed)}" if needed else None


_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _resolve(path: str) -> Any:
    """Import the object at "module:Class.attribute".

    Raises: ImportError, AttributeError if it does not exist.
    """
    module, _, names = path.partition(":")
    target: Any = importlib.import_module(module)
    for name in filter(None, names.split(".")):
        target = getattr(target, name)
    return target
