"""Finds the trained model, its precision and the library versions during the first steps.

The model is the module with the leading optimizer's parameters. It is searched for among the objects
that the garbage collector tracks, which takes about 0.1 s per search. Reading the variables of a running
function instead would, before Python 3.13, keep their values alive as long as the function runs. Read
wrappers.py first.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .session import RankSession

_INJECTED_CLASS_MODULES = ("torch.distributed.fsdp", "torch.distributed._composable")
_OTHER_WRAPPERS = ("FullyShardedDataParallel", "_FabricModule")
_MAX_NODES = 400
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
_MAX_TIME_SHARE = 0.01
"""Maximum share of the run time for model searches, which go through all objects of the process."""
_MATMUL_NODES = (
    "AddmmBackward",
    "MmBackward",
    "BmmBackward",
    "BaddbmmBackward",
    "LinearBackward",
    "ConvolutionBackward",
)


def install(torch: Any, session: RankSession) -> None:
    """Inspect the leading optimizer and the first backward calls."""

    def leading(optimizer: Any) -> None:
        session.record_facts(
            optimizer=_class_name(optimizer),
            parameter_groups=[_group_options(group) for group in optimizer.param_groups[:8]],
        )
        if "precision" not in session.facts and "precision" not in session.disabled_parts:
            kinds = {str(p.dtype) for group in optimizer.param_groups for p in group["params"]}
            if len(kinds) == 1:
                session.record_facts(precision=_PRECISIONS.get(kinds.pop()))
        find_model(optimizer)

    def versions(optimizer: Any) -> None:
        library_versions = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
        for name in _LIBRARIES:
            version = getattr(sys.modules.get(name), "__version__", None)
            if isinstance(version, str):
                library_versions[name] = version
        facts: dict[str, object] = {
            "versions": library_versions,
            "libraries": sorted(set(library_versions) - {"python", "torch"}),
        }
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            facts["backend"] = str(distributed.get_backend())
        session.record_facts(**facts)

    def precision(tensors: Any) -> None:
        detected = _compute_precision(tensors[0]) if tensors else None
        if detected is not None:
            session.record_facts(precision=detected)
        if detected is not None or session.step > 2:
            session.on_backward.remove("precision", precision)

    find_model = session.wrap_part("model", _ModelFinder(torch, session).find)
    session.on_leader_chosen.add("optimizer", leading)
    session.on_rank_start.add("versions", versions)
    if hasattr(torch.autograd.graph.Node, "_input_metadata"):
        session.on_backward.add("precision", precision)
    else:  # Older graphs have no dtypes, and the parameters' would be wrong under autocast.
        session.disable_part("precision", "needs torch 2.5 or newer")


class _ModelFinder:
    """Finds the trained modules and determines which of them is the model."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._next_search_at = 0.0

    def find(self, optimizer: Any) -> None:
        """Find the model that this optimizer trains, unless it is too early to search again."""
        session, start_s = self._session, time.perf_counter()
        if start_s < self._next_search_at:
            return
        model = _find_model(self._torch, optimizer)
        now = time.perf_counter()
        self._next_search_at = now + (now - start_s) / _MAX_TIME_SHARE
        session.models[:] = [ref for ref in session.models if ref() is not None]
        models = [ref() for ref in session.models]
        if model is not None and not any(model is other for other in models):
            inside = any(
                model is module for other in models if other is not None for module in other.modules()
            )
            session.models.insert(len(models) if inside else 0, weakref.ref(model))
        model = next((other for other in (ref() for ref in session.models) if other is not None), None)
        if model is None:
            return
        session.record_facts(
            model=_class_name(unwrapped(model)), num_parameters=sum(p.numel() for p in model.parameters())
        )
        session.record_facts(batch_norms=_num_batch_norms(self._torch, model, session.facts.get("batch")))
        if "wrapper" not in session.facts:
            for cls in type(model).__mro__:
                if cls.__module__.startswith("torch.") and cls.__name__ == "FSDPModule":
                    session.record_facts(wrapper="fully_shard")


def _class_name(thing: Any) -> str:
    """Return the name of an object's class, or of its original class if fully_shard replaced it."""
    classes = [cls for cls in type(thing).__mro__ if not cls.__module__.startswith(_INJECTED_CLASS_MODULES)]
    return "%s:%s" % (classes[0].__module__, classes[0].__qualname__)


def _group_options(group: Mapping[str, Any]) -> dict[str, object]:
    """Return a parameter group's options and its number of parameters."""
    options: dict[str, object] = {"num_parameters": sum(p.numel() for p in group["params"])}
    for key, value in group.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            options[key] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
            options[key] = list(value)
    return options


def unwrapped(model: Any) -> Any:
    """Return the module inside torch's wrappers, or inside the wrapper that Lightning Fabric's `setup`
    returns."""
    for _ in range(8):
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__module__.startswith("torch.nn.parallel"):
            inner = getattr(model, "module", None)
        if inner is None and type(model).__name__ in _OTHER_WRAPPERS:
            inner = getattr(model, "module", None)
        if inner is None:
            break
        model = inner
    return model


def list_parameters(optimizer: Any) -> list[Any]:
    """Return an optimizer's parameters; empty if it does not store them as torch does."""
    try:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [parameter for parameter in parameters if hasattr(parameter, "requires_grad")]
    except Exception:
        return []


def uses_compiler() -> bool:
    """Check whether torch.compile has compiled anything; a new hook would then make it compile again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters and counters["frames"].get("total"))


def _num_batch_norms(torch: Any, model: Any, batch: Any) -> int:
    """Count the batch-norm layers in training mode that normalize over this process's samples only. `batch`
    is the loader's batch size."""
    norms: tuple[Any, ...] = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    # BatchNorm1d rejects a single sample, so one item of the loader must be a set of samples.
    if batch != 1:
        norms += (torch.nn.BatchNorm1d,)
    return sum(isinstance(module, norms) and module.training for module in model.modules())


def _find_model(torch: Any, optimizer: Any) -> Any:
    """Return the top-level module that contains some of the optimizer's parameters; among several, the one
    with the most parameter tensors."""
    parameter_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    kind = torch.nn.Module
    # Not isinstance, which reads __class__: in a lazy proxy that may run the script's code.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    inside = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    best, best_count = None, 0
    for module in modules:
        if id(module) in inside or "_modules" not in module.__dict__:
            continue
        parameters = list(module.parameters())
        if len(parameters) > best_count and any(id(p) in parameter_ids for p in parameters):
            best, best_count = module, len(parameters)
    return best


def _compute_precision(tensor: Any) -> str | None:
    """Return the precision of the matrix product nearest to `tensor` in its graph; None if unknown."""
    visited: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting and len(visited) < _MAX_NODES:
        node = waiting.pop(0)
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name().startswith(_MATMUL_NODES):
            described = getattr(node, "_input_metadata", None)
            return _PRECISIONS.get(str(described[0].dtype)) if described else None
        waiting.extend(following for following, _ in node.next_functions)
    return None
