"""Finds parameters that no optimizer updates, although the loss's graph uses them between trained parameters.

Layers in a Python list, or layers that are added to a model later, get gradients but are in no optimizer. The
graph of a loss shows such layers wherever they are stored. A part before the first or after the last trained
layer (a backbone, a perceptual loss) often requires gradients although it is left untrained on purpose.
Therefore only parameters between two trained ones count, and only if their values stay the same between two
examinations. Read losses.py first.
"""

from __future__ import annotations

import weakref

from .readings import has_active_modes, is_capturing
from .unfreezing import stepped_ids, trains_vectors_only
from .weight_digests import parameter_names
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "graph parameters"
_FIRST_STEP = 16
_MAX_NODES = 1 << 13
"""Maximum number of nodes in a graph to examine; a walk takes a few microseconds per node."""
_LEAF = "AccumulateGrad"


class GraphParameters:
    """Walks the graphs of a few losses, at step numbers that double each time."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._next_step = _FIRST_STEP
        self._found: dict[int, tuple[Any, float]] = {}
        """(weak reference, sum of the values) of the parameters that the last walk found, by id."""
        self._last_step = 0
        self._is_done = False

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the results of earlier walks, because another optimizer leads from now on."""
        self.forget()

    def on_backward(self, tensors: Any) -> None:
        """Walk the graph of the loss if the next walk is due."""
        session = self._session
        if session.step < self._next_step or self._is_done or len(tensors) != 1:
            return
        self._next_step = 2 * session.step
        if session.facts.get("wrapper") in SHARDED_WRAPPERS or is_capturing(self._torch):
            return
        if trains_vectors_only(session):
            return
        if tensors[0].grad_fn is None or has_active_modes(self._torch):
            return
        between = find_between(tensors[0].grad_fn, stepped_ids(session))
        before, self._found = self._found, {}
        for parameter in between:
            if type(parameter) is self._torch.nn.Parameter:
                total = float(parameter.detach().double().sum())
                self._found[id(parameter)] = weakref.ref(parameter), total
        same = [
            ref()
            for key, (ref, total) in self._found.items()
            if key in before and before[key][0]() is ref() and before[key][1] == total
        ]
        if same:
            self._report(same, session.step - self._last_step)
        self._last_step = session.step

    def _report(self, parameters: list[Any], num_steps: int) -> None:
        self._is_done = True
        names = parameter_names(self._session)
        inside = [names[id(p)] for p in parameters if id(p) in names]
        shapes = ["x".join(map(str, p.shape)) for p in parameters]
        self._session.report_anomaly(
            "gradient-without-optimizer",
            names=inside or shapes,
            step=self._session.step + 1,
            added=float(bool(inside)),
            outside=float(not inside),
            steps=num_steps,
        )


def find_between(root: Any, stepped: set[int]) -> list[Any]:
    """Return the leaves of the graph at `root` that are not in `stepped` (ids) but are used between two
    operations that use leaves in `stepped`; an empty list if the graph is too large."""
    below: dict[Any, bool] = {}
    """Node -> whether an operation behind it, farther from the loss, uses a leaf in `stepped`."""
    above: dict[Any, bool] = {root: False}
    """Node -> whether an operation before it, nearer to the loss, uses a leaf in `stepped`."""
    leaves: dict[Any, list[Any]] = {}
    order = _sort(root, leaves)
    if order is None:
        return []
    uses = {node: any(id(leaf) in stepped for leaf in leaves[node]) for node in order}
    for node in order:
        following = [child for child, _ in node.next_functions if child in uses]
        below[node] = any(uses[child] or below[child] for child in following)
    for node in reversed(order):
        for child, _ in node.next_functions:
            if child in uses:
                above[child] = above.get(child, False) or above[node] or uses[node]
    found = {
        id(leaf): leaf
        for node in order
        if above[node] and below[node]
        for leaf in leaves[node]
        if id(leaf) not in stepped
    }
    return list(found.values())


def _sort(root: Any, leaves: dict[Any, list[Any]]) -> list[Any] | None:
    """Return the operations of the graph at `root` in topological order, the loss last, and fill `leaves`
    with the leaves that each operation uses; None if there are too many operations."""
    order: list[Any] = []
    stack = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
            continue
        if node in leaves:
            continue
        if len(leaves) >= _MAX_NODES:
            return None
        leaves[node] = []
        stack.append((node, True))
        for child, _ in node.next_functions:
            if child is None:
                continue
            leaf = _leaf_of(child)
            if leaf is not None:
                leaves[node].append(leaf)
            elif child not in leaves:
                stack.append((child, False))
    return order


def _leaf_of(node: Any) -> Any:
    """Return the leaf at the end of a short chain of operations with one input each (such as a transpose or a
    cast) that starts at `node`; None if the chain does not end at a leaf."""
    for _ in range(4):
        if node is None or type(node).__name__ == _LEAF:
            return getattr(node, "variable", None)
        if len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def install(torch: Any, session: RankSession) -> None:
    """Examine the graphs of losses."""
    checks = GraphParameters(torch, session)
    session.on_some_backward.add(PART, checks.on_backward)
    session.on_leader_chosen.add(PART, checks.on_leader_chosen)
    session.on_fork.add(PART, checks.forget)
