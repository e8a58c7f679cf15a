"""Values as JSON has them: of a type, most of them usual and some absurd; and of no type at all."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from rankdeck import events

DEEP: Any = "DEEP"
"""Stands for five hundred lists in each other, which no repr needs to show."""

INTS = st.one_of(
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(-2, 60),
    st.sampled_from([65_535, 65_536, 10**6, 4 * 10**8, 10**9, 2**31, 2**52, 2**53 + 1, 2**62, 2**63, 2**64]),
    st.sampled_from([-1, -(2**31), -(2**63), -(2**64), 10**30, 10**400, 10**4299]),
)
FLOATS = st.one_of(
    st.floats(0, 5, allow_nan=False),
    st.floats(0, 5, allow_nan=False),
    st.integers(0, 60),
    st.sampled_from([1e308, -1e308, 1.7e308, 1e300, 1e-320, 5e-324, -1.0, 2.5e11, 1e15, 3e38, 1e39, -0.0]),
    st.sampled_from([float("nan"), float("inf"), 10**400]),
)
TEXTS = st.one_of(
    st.sampled_from(["a", "loss", "completed", "failed", "cuda:0", "ddp", "dp", "gpu", "virtual", "cpu:2"]),
    st.sampled_from(
        ["", ".", "..", "../../outside", "/dev/zero", "a/b", "\0", "\ud800", "é\n\x1b[31m", "[bold]x"]
    ),
    st.sampled_from(
        ["x" * 300, "[/]", "{x}", "%s", "9" * 30, "last", "<script>", "\u202e", "~nobody/x", " "]
    ),
    st.sampled_from(["x" * 70_000, "canary:factory", "canary.py:factory", "../../outside/canary.py:factory"]),
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), INTS, FLOATS, TEXTS, st.just(DEEP)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """JSON that a decoder of the type would take, but for its bounds."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return of(args[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of, args))
    if origin is list or origin is tuple:
        return st.lists(of(args[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(TEXTS, of(args[1]), max_size=3)
    if hint is Any:
        return ANYTHING
    if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint)):
        return st.deferred(lambda: _of_fields(hint))
    return {int: INTS, float: FLOATS, bool: st.booleans(), type(None): st.none()}.get(hint, TEXTS)


def _of_fields(kind: type) -> st.SearchStrategy[dict[str, Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    optional = {
        field.name: of(hints[field.name])
        for field in fields
        if field.default not in (msgspec.NODEFAULT, dataclasses.MISSING)
        or field.default_factory not in (msgspec.NODEFAULT, dataclasses.MISSING)
    }
    required = {field.name: of(hints[field.name]) for field in fields if field.name not in optional}
    return st.fixed_dictionaries(required, optional=optional)


def event() -> st.SearchStrategy[dict[str, Any]]:
    """A line of a run's event file."""
    return st.one_of(*map(_of_kind, typing.get_args(events.AnyEvent)))


def _of_kind(kind: type[events.Event]) -> st.SearchStrategy[dict[str, Any]]:
    tag = {"kind": str(kind.__struct_config__.tag)}
    lengths = st.one_of(st.none(), st.integers(0, 6))  # of all columns
    return st.builds(
        lambda values, length: {**_even(values, length), "v": 1, **tag}, _of_fields(kind), lengths
    )


def _even(values: dict[str, Any], length: int | None) -> dict[str, Any]:
    """With columns of one length: what does not fit together is refused at once."""
    if length is None:
        return values
    return {
        key: (value * length)[:length] if isinstance(value, list) and value else value
        for key, value in values.items()
    }
