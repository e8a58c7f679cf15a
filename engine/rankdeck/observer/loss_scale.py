"""Removes a gradient scaler's scale from losses, with the help of marks in the autograd graph.

The scale is stored in the graph node of the result of `scaler.scale`, and lives as long as the graph. A loss
that is such a result, or a sum, a mean or a multiple of such results, is divided by the scale. The unscaled
value of a loss that has other terms is unknown. Read grad_scaler.py first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCALE_KEY = "rankdeck: scale"
_MAX_NODES = 64
_LINEAR_NODES = ("AddBackward0", "SubBackward0", "SumBackward0", "MeanBackward0", "StackBackward0")
"""Nodes whose result is a multiple of the scale if all their inputs are."""
_PRODUCT_NODES = ("MulBackward0", "DivBackward0")
"""Nodes whose result is a multiple of the scale if they multiply or divide such a multiple by a constant."""
_UNKNOWN = object()


def record_scale(scaled: Any, original: Any, scale: Any) -> bool:
    """Mark `scaled` as `original` (a tensor or a list) times `scale`; return whether that was possible."""
    if isinstance(scaled, (list, tuple)):
        return all(record_scale(*both, scale) for both in zip(scaled, original))
    if scale is None or not hasattr(scaled, "grad_fn"):
        return False
    if scaled.grad_fn is not None:
        itself = original.detach() if original.numel() == 1 else None
        # The scaler updates its scale in place; the version tells whether it has done so since.
        scaled.grad_fn.metadata[_SCALE_KEY] = scale, scale._version, itself
    return True


def scale_of(node: Any) -> Any:
    """Return the scale of the loss whose graph starts at `node`; None if there is none or it is unknown."""
    mark = node.metadata.get(_SCALE_KEY)
    scale = mark[0] if mark is not None else _find_scale(node)
    return None if scale is _UNKNOWN else scale


def unscale(loss: Any) -> Any:
    """Return the loss without its scale, or unchanged if it has none; None if the scale is unknown, or if the
    scaled loss has several elements."""
    node = loss.grad_fn
    mark = node.metadata.get(_SCALE_KEY) if node is not None else None
    if mark is not None:
        return mark[2]
    scale = _find_scale(node)
    if scale is None:
        return loss
    if scale is _UNKNOWN:
        return None
    return loss.detach().double() / scale.to(loss.device, non_blocking=True).double()


def _find_scale(root: Any) -> Any:
    """Return the scale of the loss at a graph's root; None if no term is scaled, `_UNKNOWN` if unclear."""
    scales: list[Any] = []
    is_mixed = False
    waiting = [(root, True)]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, is_multiple = waiting.pop(0)
        if node is None:
            continue
        mark = node.metadata.get(_SCALE_KEY)
        if mark is not None:
            scales.append(mark)
            is_mixed = is_mixed or not is_multiple
            continue
        inputs = [following for following, _ in node.next_functions]
        goes_on = is_multiple and _is_multiple(node.name(), inputs)
        is_mixed = is_mixed or (is_multiple and not goes_on)
        waiting += [(following, goes_on) for following in inputs]
    if not scales:
        return None
    scale, version, _ = scales[0]
    if is_mixed or waiting or any(other[0] is not scale for other in scales) or scale._version != version:
        return _UNKNOWN
    return scale


def _is_multiple(name: str, inputs: list[Any]) -> bool:
    with_gradients = [following for following in inputs if following is not None]
    if name in _PRODUCT_NODES:
        return len(with_gradients) == 1 and (name == "MulBackward0" or inputs[0] is not None)
    return name in _LINEAR_NODES and len(with_gradients) == len(inputs)
