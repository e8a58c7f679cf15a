"""Searches once for what keeps earlier steps' tensors alive: a container of the script, or a tensor's graph.

Every object that the garbage collector tracks is examined, which takes about 0.1 s. No reference outlives the
search. Names come from the dictionaries of modules and objects and, from Python 3.13 on, from the variables
of running functions: in older versions, reading these variables would keep their values alive. Read
source_lines.py next.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections import deque

from .source_lines import find_growing_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

Holder = "tuple[str, str, int, str, str]"
"""Container or tensor that keeps others alive: (kind, name, number of elements, shape of a tensor, line of
the script that adds to the container or tensor)."""
_NUM_LAST = 16
"""Number of newest elements of a container, and of values in each element, to search for tensors."""
_MIN_ELEMENTS = 32
_MAX_ELEMENTS = 1 << 17
_MAX_TENSORS = 16
_MAX_NODES = 20_000
_MIN_MARKS = 4
_MAX_FRAMES = 60
_FAST_LOCALS_PYTHON = (3, 13)
_BOUNDED = "bounded"
_CONTAINERS = (list, dict, deque)


def find_holder(torch: Any, key: str, node_names: set[str], line: str) -> Any:
    """Return the Holder that keeps the graphs of earlier steps alive; None if none is found.

    A node whose name is in `node_names` is marked if its metadata contains `key`. `line` is the line of the
    script's backward call.
    """

    def has_graph(tensor: Any) -> bool:
        return type(tensor) is torch.Tensor and tensor.grad_fn is not None

    container, count = find_container(has_graph)
    if container is not None:
        kind = _BOUNDED if getattr(container, "maxlen", None) is not None else "container"
        tensor = next(
            t for element in last_elements(container) for t in inner_tensors(element) if has_graph(t)
        )
        return _describe(kind, container, count, tensor, line)
    tensors = [thing for thing in gc.get_objects() if has_graph(thing)]
    tensors.sort(key=lambda tensor: -int(tensor.numel()))
    chains: list[tuple[Any, set[Any]]] = []
    for tensor in (*tensors[:_MAX_TENSORS], *tensors[-_MAX_TENSORS:]):
        nodes, num_marks = _walk(tensor.grad_fn, key, node_names)
        if num_marks >= _MIN_MARKS:
            chains.append((tensor, nodes))
    if not chains:
        return None
    # The tensor from which the graphs of the others come: a state, and not the loss that is computed from it.
    counts = [sum(tensor.grad_fn in nodes for _, nodes in chains) for tensor, _ in chains]
    tensor = chains[counts.index(max(counts))][0]
    return _describe("chain", tensor, 1, tensor, line)


def _describe(kind: str, holder: Any, count: int, tensor: Any, line: str) -> Any:
    name = name_of(holder)
    found_line, found_name = find_growing_line(line, name, kind)
    return kind, name or found_name, count, "x".join(map(str, tensor.shape)), found_line


def _walk(node: Any, key: str, node_names: set[str]) -> tuple[set[Any], int]:
    """Return the graph's nodes and the number of marked nodes: those named in `node_names` whose metadata
    contains `key`."""
    nodes, waiting, num_marks = {node}, deque([node]), 0
    while waiting and len(nodes) < _MAX_NODES:
        node = waiting.popleft()
        num_marks += node.name() in node_names and key in node.metadata
        for following, _ in node.next_functions:
            if following is not None and following not in nodes:
                nodes.add(following)
                waiting.append(following)
    return nodes, num_marks


def find_container(is_counted: Callable[[Any], bool]) -> tuple[Any, int]:
    """Return the container with the most elements that are, or contain, a tensor for which `is_counted` is
    True, and the number of these elements."""
    best, max_count = None, _MIN_ELEMENTS - 1
    for container, length, _ in _containers(is_counted):
        if length > max_count:
            try:
                elements = itertools.islice(_elements(container), _MAX_ELEMENTS)
                count = sum(_has(is_counted, element) for element in elements)
            except RuntimeError:  # Another thread changes it.
                continue
            if count > max_count:
                best, max_count = container, count
    return best, max_count if best is not None else 0


def find_containers(num_bytes: Callable[[Any], int]) -> dict[int, tuple[Any, int, int]]:
    """Return (container, its length, bytes per new element), by id, for each container without a maximum
    length whose newest elements contain tensors; `num_bytes` returns a tensor's bytes, or 0 to ignore it."""
    found: dict[int, tuple[Any, int, int]] = {}
    for container, length, newest in _containers(num_bytes):
        if length >= _MIN_ELEMENTS and getattr(container, "maxlen", None) is None:
            total = sum(num_bytes(tensor) for element in newest for tensor in inner_tensors(element))
            found[id(container)] = container, length, total // len(newest)
    return found


def _containers(is_counted: Callable[[Any], Any]) -> Iterator[tuple[Any, int, list[Any]]]:
    """Yield (container, its length, its newest elements) for each container whose newest elements are, or
    contain, at least one tensor for which `is_counted` is true."""
    for thing in gc.get_objects():
        # Not isinstance, which reads __class__: in a lazy proxy that may run the script's code.
        if not issubclass(type(thing), _CONTAINERS):
            continue
        try:
            newest = last_elements(thing)
            if any(_has(is_counted, element) for element in newest):
                yield thing, len(thing), newest
        except (RuntimeError, TypeError):  # Another thread changes it, or it has methods of its own.
            continue


def _has(is_counted: Callable[[Any], Any], element: Any) -> bool:
    return any(is_counted(tensor) for tensor in inner_tensors(element))


def _elements(container: Any) -> Any:
    return container.values() if issubclass(type(container), dict) else container


def last_elements(container: Any) -> list[Any]:
    """Return the newest elements of a list, a deque or a dictionary."""
    return list(itertools.islice(reversed(_elements(container)), _NUM_LAST))


def inner_tensors(element: Any) -> Any:
    """Return the first values of a dictionary, list or tuple; for anything else, (`element`,)."""
    if type(element) is dict:
        return list(element.values())[:_NUM_LAST]
    return element[:_NUM_LAST] if type(element) in (list, tuple) else (element,)


def name_of(thing: Any, depth: int = 2, owners: list[Any] | None = None) -> str:
    """Return the name under which the script refers to an object, such as losses or Trainer.losses; "" if no
    name is found. `owners` receives the module's dictionary or the object to which the name belongs."""
    owners = [] if owners is None else owners
    frames = _frames()
    if sys.version_info >= _FAST_LOCALS_PYTHON:
        for frame in frames:
            for name, value in frame.f_locals.items():
                if value is thing:
                    return str(name)
    del frames
    for owner in gc.get_referrers(thing):
        if issubclass(type(owner), dict):
            name = _key(owner, thing)
            if name and "__builtins__" in owner and "__name__" in owner:
                owners.append(owner)
                return name
            if name and depth:
                outer = next(
                    (other for other in gc.get_referrers(owner) if _attributes(other) is owner), None
                )
                if outer is not None:
                    owners.append(outer)
                    return "%s.%s" % (type(outer).__name__, name)
                outer_name = name_of(owner, depth - 1, owners)
                if outer_name:
                    return "%s[%r]" % (outer_name, name)
        else:
            name = _key(_attributes(owner) or {}, thing)
            if name:
                owners.append(owner)
                return "%s.%s" % (type(owner).__name__, name)
    return ""


def _key(names: Any, thing: Any) -> str:
    return next((str(key) for key, value in list(names.items()) if value is thing), "")


def _attributes(owner: Any) -> Any:
    """Return an object's attribute dictionary without running the script's code; None if it has none."""
    if type(owner).__module__ == "builtins":
        return None
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None


def _frames() -> list[Any]:
    frames: list[Any] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(frames) < _MAX_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames
