"""Observes the constructors of parallel wrappers, and records the options passed to them."""

from __future__ import annotations

import functools
import inspect
import weakref

from .frames import drop_own_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import RankSession

SHARDED_WRAPPERS = ("FullyShardedDataParallel", "fully_shard")
"""Wrappers that leave only a shard of each parameter on each rank."""


def install_ddp(module: Any, session: RankSession) -> None:
    _wrap_constructor(
        module.DistributedDataParallel, session, session.wrap_part("wrapper", _enable_parameter_names)
    )


def install_dp(module: Any, session: RankSession) -> None:
    _wrap_constructor(module.DataParallel, session)


def install_fsdp(module: Any, session: RankSession) -> None:
    """Wrap FSDP's class and FSDP2's function `fully_shard` in `module`, from which scripts import them."""
    fsdp_class = getattr(module, "FullyShardedDataParallel", None)
    if fsdp_class is not None and not hasattr(fsdp_class.__init__, "__rankdeck__"):
        _wrap_constructor(fsdp_class, session)
    shard = getattr(module, "fully_shard", None)
    if shard is None or hasattr(shard, "__rankdeck__"):
        return
    record = session.wrap_part("wrapper", _record_wrapper)

    @functools.wraps(shard)
    def observed(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = shard(wrapped, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        record(session, "fully_shard", shard, (wrapped, *args), kwargs, wrapped)
        return result

    observed.__rankdeck__ = True  # type: ignore[attr-defined]
    module.fully_shard = observed


def _enable_parameter_names() -> Callable[[], None]:
    """Make DDP's errors name the unused parameters, and return a function that undoes this.

    Until that function is called, wrappers are built as with TORCH_DISTRIBUTED_DEBUG=INFO. A debug level that
    the script has set stays unchanged.
    """
    import torch

    distributed: Any = torch.distributed
    if distributed.get_debug_level() != distributed.DebugLevel.OFF:
        return _do_nothing
    # Only around the constructor: if the level stays raised, every step pays for it.
    distributed.set_debug_level(distributed.DebugLevel.INFO)
    return functools.partial(distributed.set_debug_level, distributed.DebugLevel.OFF)


def _do_nothing() -> None:
    pass


def _wrap_constructor(
    wrapper: Any, session: RankSession, before: Callable[[], Callable[[], None] | None] = lambda: None
) -> None:
    """Make the constructor of `wrapper` record each call. `before` is called before the constructor; the
    function that `before` returns is called after the constructor."""
    construct = wrapper.__init__
    record = session.wrap_part("wrapper", _record_wrapper)

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        end = before() or _do_nothing
        try:
            construct(self, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            end()
        record(session, wrapper.__name__, construct, (self, *args), kwargs, self)

    observed.__rankdeck__ = True  # type: ignore[attr-defined]
    wrapper.__init__ = observed


def _record_wrapper(
    session: RankSession, name: str, called: Callable[..., Any], args: Any, kwargs: Any, model: Any
) -> None:
    """Record a wrapper's name and options.

    If wrappers are nested, or each layer has its own, the outermost wrapper is recorded last.
    """
    arguments = inspect.signature(called).bind(*args, **kwargs).arguments
    options = {key: _to_json(value) for key, value in list(arguments.items())[1:] if key != "module"}
    options.update(options.pop("kwargs", None) or {})
    session.models[:] = [ref for ref in session.models if ref() not in (None, model)]
    session.models.insert(0, weakref.ref(model))
    if name == "DistributedDataParallel":
        reduced = getattr(model, "_module_parameters", ())
        session.reduced_ids[model] = {id(p) for p in reduced if p.requires_grad}
    if name == "DataParallel":
        options["device_ids"] = [int(index) for index in getattr(model, "device_ids", [])]
    session.record_facts(wrapper=name, wrapper_options=options)


def _to_json(value: Any) -> Any:
    """Return `value` in a form that JSON can represent; unsupported objects become a short text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value[:16]]
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in list(value.items())[:16]}
    text = getattr(value, "__qualname__", None) or str(value)
    return text if len(text) <= 120 else text[:119] + "…"
