"""Which model is trained, in which precision, by which versions: looked up once, at the first steps.

The model is the module that holds the leading optimizer's parameters. It is found where the script itself has
it: among the variables of the functions that are running (and what objects there hold), which reads and
touches nothing. Read wrappers.py before.
"""

from __future__ import annotations

import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .session import RankSession

_PUT_IN_PLACE = ("torch.distributed.fsdp", "torch.distributed._composable")
_MOST_FRAMES = 40
_MOST_VALUES = 2000
_MOST_NODES = 400
_LIBRARIES = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed",
    "torchvision",
    "torchaudio", "datasets", "timm", "diffusers", "peft", "trl", "torchdata", "ray", "fairscale",
)  # fmt: skip
_PRECISIONS = {
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float64": "fp64",
}
_PRODUCTS = (
    "AddmmBackward",
    "MmBackward",
    "BmmBackward",
    "BaddbmmBackward",
    "LinearBackward",
    "ConvolutionBackward",
)


def install(torch: Any, session: RankSession) -> None:
    """Look at the leading optimizer, and at the first backwards."""

    def leading(optimizer: Any) -> None:
        session.see(
            optimizer=_name(optimizer),
            parameter_groups=[_group(group) for group in optimizer.param_groups[:8]],
        )
        if "precision" not in session.seen:
            kinds = {str(p.dtype) for group in optimizer.param_groups for p in group["params"]}
            if len(kinds) == 1:
                session.see(precision=_PRECISIONS.get(kinds.pop()))
        find_model(optimizer)

    def model_of(optimizer: Any) -> None:
        model = _find(torch, optimizer, sys._getframe(1))
        known = [ref() for ref in session.models]
        if model is not None and not any(model is other for other in known):
            inside = any(model is part for other in known if other is not None for part in other.modules())
            session.models.insert(len(known) if inside else 0, weakref.ref(model))
        model = next((other for other in (ref() for ref in session.models) if other is not None), None)
        if model is None:
            return
        session.see(model=_name(_unwrapped(model)), num_parameters=sum(p.numel() for p in model.parameters()))
        if "wrapper" not in session.seen:
            for cls in type(model).__mro__:
                if cls.__module__.startswith("torch.") and cls.__name__ == "FSDPModule":
                    session.see(wrapper="fully_shard")

    def versions(optimizer: Any) -> None:
        found = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
        for name in _LIBRARIES:
            version = getattr(sys.modules.get(name), "__version__", None)
            if isinstance(version, str):
                found[name] = version
        facts: dict[str, Any] = {"versions": found, "libraries": sorted(set(found) - {"python", "torch"})}
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            facts["backend"] = str(distributed.get_backend())
        session.see(**facts)

    def precision(tensors: Any) -> None:
        if tensors and "precision" not in session.seen and session.step < 3:
            found = _computed_in(tensors[0])
            if found is not None:
                session.see(precision=found)

    find_model = session.guarded("model", model_of)
    session.on_leading.append(session.guarded("optimizer", leading))
    session.on_begin.append(session.guarded("versions", versions))
    session.on_backward.append(session.guarded("precision", precision))


def _name(thing: Any) -> str:
    """Its class; of one that fully_shard has put in its place, the class that it was."""
    own = [cls for cls in type(thing).__mro__ if not cls.__module__.startswith(_PUT_IN_PLACE)]
    return "%s:%s" % (own[0].__module__, own[0].__qualname__)


def _group(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options, and how many parameters have them."""
    options: dict[str, Any] = {"num_parameters": sum(p.numel() for p in group["params"])}
    for key, value in group.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            options[key] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
            options[key] = list(value)
    return options


def _unwrapped(model: Any) -> Any:
    """What a wrapper of torch's holds."""
    for _ in range(8):
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__module__.startswith("torch.nn.parallel"):
            inner = getattr(model, "module", None)
        if inner is None and type(model).__name__ == "FullyShardedDataParallel":
            inner = getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    return model


def _find(torch: Any, optimizer: Any, frame: Any) -> Any:
    """The module with the most parameters that has one of the optimizer's."""
    wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
    best, most, checked = None, 0, set()
    for value in _values(frame):
        if not isinstance(value, torch.nn.Module) or id(value) in checked:
            continue
        checked.add(id(value))
        parameters = list(value.parameters())
        if len(parameters) > most and any(id(p) in wanted for p in parameters):
            best, most = value, len(parameters)
    return best


def _values(frame: Any) -> Iterator[Any]:
    """Variables of the functions under way, and the attributes of objects among them."""
    count = 0
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        for value in list(frame.f_locals.values()):
            yield value
            held = getattr(value, "__dict__", None) if type(value).__module__ != "builtins" else None
            if isinstance(held, dict) and not isinstance(value, type):
                yield from list(held.values())
            count += 1
            if count > _MOST_VALUES:
                return
        frame = frame.f_back


def _computed_in(tensor: Any) -> str | None:
    """The precision of the first products behind `tensor`, from the shape of autograd's graph."""
    seen: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith(_PRODUCTS):
            described = getattr(node, "_input_metadata", None)
            return _PRECISIONS.get(str(described[0].dtype)) if described else None
        waiting.extend(following for following, _ in node.next_functions)
    return None
