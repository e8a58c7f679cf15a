"""What a script tells of itself becomes curves of its run: what it gives to `rankdeck.log` (log.py), and what
its loggers are given, taken where the values go in, before any backend.

One table: the module that a library's logger lives in, and what is wrapped right after it was imported. Each
is a call that its library documents; the one that is not, Lightning's connector, is what every `self.log`
of a module ends in. Values are those that the library passes on, under the names that the script gave, and
only of the process that logs them (rank 0 where a library says so). Read metrics.py before.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .frames import leave_out
from .metrics import MetricsBook
from .parts import LIGHTNING, both_names
from .readings import OffCpu
from .session import current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .session import RankSession

    Told = list[tuple[Any, Any]]  # values and their step
    Pick = Callable[..., Told]

PART = "loggers"
_books: dict[int, MetricsBook] = {}


def book_of(session: RankSession) -> MetricsBook:
    """The book of this process, which the session's thread empties into events."""
    book = _books.get(id(session))
    if book is None:
        book = _books[id(session)] = MetricsBook(session.logs, lambda: session.step, OffCpu().read)

        def flush() -> None:
            for columns in book.take(session.ending):
                session.emit("metric", **columns._asdict())

        session.on_tick.append(session.guarded(PART, flush))
        session.on_fork.append(book.forget)
        session.book = book
    return book


def take(values: Any, named: Mapping[str, object], step: Any) -> None:
    """What `rankdeck.log` was given."""
    session = current()
    book = book_of(session)
    try:
        book.add("rankdeck", {**(values or {}), **named}, step)
    except Exception as error:
        session.switch_off("rankdeck.log", error)


def _wrap(session: RankSession, owner: Any, name: str, through: str, pick: Pick, **how: Any) -> None:
    """`owner.name` tells the book what `pick` makes of its arguments, once the call itself has succeeded."""
    original = getattr(owner, name, None)
    if original is None:
        return
    book = book_of(session)
    off: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        outermost = book.enter()
        try:
            out = original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            book.leave()
        if outermost and not off:
            try:
                for values, step in pick(*args, **kwargs):
                    book.add(through, values, step, **how)
                    for value in values.values() if through == "wandb" else ():
                        if type(value).__module__.partition(".")[0] == "wandb":
                            session.switch_off(*_left_out(through, type(value).__name__))
            except Exception as error:
                off.append(True)
                session.switch_off(f"{PART} ({through})", error)
        return out

    if hasattr(original, "__code__") or hasattr(original, "__wrapped__"):
        call = functools.wraps(original)(call)
    setattr(owner, name, call)


def _transformers(self: Any, *_: Any, **__: Any) -> Told:
    # What every callback was told, which includes what the trainer has added.
    if not self.state.is_world_process_zero:
        return []
    told = dict(self.state.log_history[-1])
    step = told.pop("step", None)
    return [(told, step)]


def _accelerate(self: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> Told:
    return [(values, step)] if self.is_main_process else []


def _lightning(self: Any, metrics: Any, step: Any = None) -> Told:
    trainer = self.trainer
    if not trainer.is_global_zero:
        return []
    values = dict(metrics)
    if step is None:
        step = values.pop("step", None)
        if step is None:
            values.setdefault("epoch", trainer.current_epoch)
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
    return [(values, step)]


def _fabric(self: Any, metrics: Any, step: Any = None) -> Told:
    return [(metrics, step)] if self.is_global_zero else []


def _writer(self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> Told:
    return [({tag: scalar_value}, global_step)]


def _writer_of_many(
    self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *_: Any, **__: Any
) -> Told:
    return [({main_tag: tag_scalar_dict}, global_step)]


def _wandb(self: Any, data: Any = None, step: Any = None, *_: Any, **__: Any) -> Told:
    return [(data, step)] if data else []


def _tell_left_out(session: RankSession, owner: Any, name: str, through: str) -> None:
    """`owner.name` logs what is no number: its first call says that it is not kept."""
    original: Any = getattr(owner, name, None)
    if not hasattr(original, "__code__"):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        session.switch_off(*_left_out(through, name))
        return original(*args, **kwargs)

    setattr(owner, name, call)


def _left_out(through: str, what: str) -> tuple[str, str]:
    return f"all but numbers ({through})", f"{what} is not kept; it is where {through} writes it"


def _mlflow(key: Any, value: Any, step: Any = None, *_: Any, **__: Any) -> Told:
    return [({key: value}, step)]


def _mlflow_many(metrics: Any, step: Any = None, *_: Any, **__: Any) -> Told:
    return [(metrics, step)]


def _mlflow_client(
    self: Any, run_id: Any, key: Any, value: Any, timestamp: Any = None, step: Any = None, *_: Any, **__: Any
) -> Told:
    return [({key: value}, step)]


def _mlflow_batch(self: Any, run_id: Any, metrics: Any = (), *_: Any, **__: Any) -> Told:
    return [({metric.key: metric.value}, metric.step) for metric in metrics]


def _on_rank_zero(module: ModuleType) -> Pick:
    """What a logger of Lightning's own is told by a script or a callback that asks for it directly."""

    def pick(self: Any, metrics: Any, step: Any = None, *_: Any, **__: Any) -> Told:
        elsewhere = getattr(getattr(module, "rank_zero_only", None), "rank", 0)
        return [] if elsewhere else [(metrics, step)]

    return pick


_WRITERS = (("SummaryWriter", "add_scalar", _writer), ("SummaryWriter", "add_scalars", _writer_of_many))
_CALLS: dict[str, tuple[str, tuple[tuple[str, str, Pick], ...]]] = {
    "transformers.trainer": ("transformers", (("Trainer", "log", _transformers),)),
    "accelerate.accelerator": ("accelerate", (("Accelerator", "log", _accelerate),)),
    "torch.utils.tensorboard.writer": ("tensorboard", _WRITERS),
    "tensorboardX.writer": ("tensorboard", _WRITERS),
    "wandb.sdk.wandb_run": ("wandb", (("Run", "log", _wandb),)),
    # Runs with WANDB_MODE=disabled: the values go nowhere, and are still what the script tells.
    "wandb.sdk.lib.noop_run": ("wandb", (("NoopRun", "log", _wandb),)),
    "mlflow.tracking.fluent": ("mlflow", (("", "log_metric", _mlflow), ("", "log_metrics", _mlflow_many))),
    "mlflow.tracking.client": (
        "mlflow",
        (("MlflowClient", "log_metric", _mlflow_client), ("MlflowClient", "log_batch", _mlflow_batch)),
    ),
}
_NO_NUMBERS = {
    "tensorboard": [
        f"add_{what}"
        for what in ("image", "images", "figure", "video", "audio", "text", "histogram", "embedding", "mesh")
    ],
    "mlflow": ["log_image", "log_figure", "log_text", "log_table"],
}
"""Calls that log something else, by logger."""
_LIGHTNING_LOGGERS = {
    "fabric.loggers.csv_logs": "CSVLogger",
    "fabric.loggers.tensorboard": "TensorBoardLogger",
    "pytorch.loggers.wandb": "WandbLogger",
    "pytorch.loggers.mlflow": "MLFlowLogger",
    "pytorch.loggers.comet": "CometLogger",
    "pytorch.loggers.neptune": "NeptuneLogger",
}
_CONNECTOR, _FABRIC = "logger_connector", "fabric.fabric"
_OF_LIGHTNING = {name: known for known in LIGHTNING for name in both_names(known)}


def install(module: ModuleType, session: RankSession) -> None:
    """Wrap what `module`, just imported, logs with. A value that is not understood is told of once, and the
    call that brought it is then left alone."""
    name = module.__name__
    if name in _CALLS:
        through, calls = _CALLS[name]
        for owner, call, pick in calls:
            home = getattr(module, owner, None) if owner else module
            if home is not None:
                _wrap(session, home, call, through, pick, between="." if through == "wandb" else "/")
        home = getattr(module, "SummaryWriter", module)
        for call in _NO_NUMBERS.get(through, ()):
            _tell_left_out(session, home, call, through)
        return
    known = _OF_LIGHTNING[name]
    if known.endswith(_CONNECTOR):
        _wrap(session, module._LoggerConnector, "log_metrics", "lightning", _lightning)
    elif known == _FABRIC:
        _wrap(session, module.Fabric, "log_dict", "lightning", _fabric)
    else:
        logger = getattr(module, _LIGHTNING_LOGGERS[known])
        # A callback tells each of a trainer's loggers the same.
        _wrap(session, logger, "log_metrics", "lightning", _on_rank_zero(module), once=True)
