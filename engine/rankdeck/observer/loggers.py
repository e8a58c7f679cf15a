"""Turns the values that a script logs, with `rankdeck.log` (log.py) or a logging library, into curves.

A table lists the module of each library's logger and the calls to wrap right after the module is imported.
All of these calls are documented, except one in Lightning's internal connector, which receives every
`self.log` call of a LightningModule. Values are recorded as the library passes them on, before they reach
any backend, under the script's names, and only in the process that logs them (rank 0 if the library restricts
logging to it). Read metrics.py first.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .frames import drop_own_frame
from .metrics import MetricBuffer
from .parts import LIGHTNING, module_names
from .readings import DeviceScalarReader
from .session import current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .session import RankSession

    LoggedValues = list[tuple[Any, Any]]  # values and their step
    ValueExtractor = Callable[..., LoggedValues]

PART = "loggers"
_buffers: dict[int, MetricBuffer] = {}


def get_metric_buffer(session: RankSession) -> MetricBuffer:
    """Return this process's buffer of logged values; the session's thread writes it as events."""
    buffer = _buffers.get(id(session))
    if buffer is None:
        buffer = _buffers[id(session)] = MetricBuffer(
            session.on_log, lambda: session.step, DeviceScalarReader().read
        )

        def flush() -> None:
            for columns in buffer.take(session.is_ending):
                session.emit("metric", **columns._asdict())

        session.on_tick.add(PART, flush)
        session.on_fork.add(PART, buffer.forget)
        session.metric_buffer = buffer
    return buffer


def log_values(values: Any, named: Mapping[str, object], step: Any) -> None:
    """Buffer the values passed to `rankdeck.log`."""
    session = current()
    buffer = get_metric_buffer(session)
    try:
        buffer.add("rankdeck", {**(values or {}), **named}, step)
    except Exception as error:
        session.disable_part("rankdeck.log", error)


def _wrap(
    session: RankSession, owner: Any, name: str, through: str, pick: ValueExtractor, **how: Any
) -> None:
    """Wrap `owner.name`: after a successful call, buffer the values that `pick` extracts from the call's
    arguments."""
    original = getattr(owner, name, None)
    if original is None:
        return
    buffer = get_metric_buffer(session)
    off: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        outermost = buffer.enter()
        try:
            out = original(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            buffer.leave()
        if outermost and not off:
            try:
                for values, step in pick(*args, **kwargs):
                    buffer.add(through, values, step, **how)
                    for value in values.values() if through == "wandb" else ():
                        if type(value).__module__.partition(".")[0] == "wandb":
                            session.disable_part(*_unlogged_part(through, type(value).__name__))
            except Exception as error:
                off.append(True)
                session.disable_part(f"{PART} ({through})", error)
        return out

    if hasattr(original, "__code__") or hasattr(original, "__wrapped__"):
        call = functools.wraps(original)(call)
    setattr(owner, name, call)


def _transformers(self: Any, *_: Any, **__: Any) -> LoggedValues:
    # The history includes values that the trainer added. The argument itself loses entries: Hugging Face's
    # progress callback removes them.
    if not self.state.is_world_process_zero:
        return []
    values = dict(self.state.log_history[-1])
    step = values.pop("step", None)
    return [(values, step)]


def _accelerate(self: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> LoggedValues:
    return [(values, step)] if self.is_main_process else []


def _lightning(self: Any, metrics: Any, step: Any = None) -> LoggedValues:
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


def _fabric(self: Any, metrics: Any, step: Any = None) -> LoggedValues:
    return [(metrics, step)] if self.is_global_zero else []


def _summary_writer_scalar(
    self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
) -> LoggedValues:
    return [({tag: scalar_value}, global_step)]


def _summary_writer_scalars(
    self: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *_: Any, **__: Any
) -> LoggedValues:
    return [({main_tag: tag_scalar_dict}, global_step)]


def _wandb(self: Any, data: Any = None, step: Any = None, *_: Any, **__: Any) -> LoggedValues:
    return [(data, step)] if data else []


def _report_unlogged_call(session: RankSession, owner: Any, name: str, through: str) -> None:
    """Wrap `owner.name`, a call that logs no numbers, so that its first use reports that its data is not
    recorded."""
    original: Any = getattr(owner, name, None)
    if not hasattr(original, "__code__"):
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        session.disable_part(*_unlogged_part(through, name))
        return original(*args, **kwargs)

    setattr(owner, name, call)


def _unlogged_part(through: str, what: str) -> tuple[str, str]:
    return f"non-numeric values ({through})", f"{what} is not recorded; {through} itself saves it"


def _mlflow(key: Any, value: Any, step: Any = None, *_: Any, **__: Any) -> LoggedValues:
    return [({key: value}, step)]


def _mlflow_metrics(metrics: Any, step: Any = None, *_: Any, **__: Any) -> LoggedValues:
    return [(metrics, step)]


def _mlflow_client(
    self: Any, run_id: Any, key: Any, value: Any, timestamp: Any = None, step: Any = None, *_: Any, **__: Any
) -> LoggedValues:
    return [({key: value}, step)]


def _mlflow_batch(self: Any, run_id: Any, metrics: Any = (), *_: Any, **__: Any) -> LoggedValues:
    return [({metric.key: metric.value}, metric.step) for metric in metrics]


def _on_rank_zero(module: ModuleType) -> ValueExtractor:
    """Return an extractor for direct calls to a Lightning logger; it returns values on rank 0 only."""

    def pick(self: Any, metrics: Any, step: Any = None, *_: Any, **__: Any) -> LoggedValues:
        elsewhere = getattr(getattr(module, "rank_zero_only", None), "rank", 0)
        return [] if elsewhere else [(metrics, step)]

    return pick


_SUMMARY_WRITER_CALLS = (
    ("SummaryWriter", "add_scalar", _summary_writer_scalar),
    ("SummaryWriter", "add_scalars", _summary_writer_scalars),
)
_CALLS: dict[str, tuple[str, tuple[tuple[str, str, ValueExtractor], ...]]] = {
    "transformers.trainer": ("transformers", (("Trainer", "log", _transformers),)),
    "accelerate.accelerator": ("accelerate", (("Accelerator", "log", _accelerate),)),
    "torch.utils.tensorboard.writer": ("tensorboard", _SUMMARY_WRITER_CALLS),
    "tensorboardX.writer": ("tensorboard", _SUMMARY_WRITER_CALLS),
    "wandb.sdk.wandb_run": ("wandb", (("Run", "log", _wandb),)),
    # Runs with WANDB_MODE=disabled: wandb discards the values, but the script still logs them.
    "wandb.sdk.lib.noop_run": ("wandb", (("NoopRun", "log", _wandb),)),
    "mlflow.tracking.fluent": ("mlflow", (("", "log_metric", _mlflow), ("", "log_metrics", _mlflow_metrics))),
    "mlflow.tracking.client": (
        "mlflow",
        (("MlflowClient", "log_metric", _mlflow_client), ("MlflowClient", "log_batch", _mlflow_batch)),
    ),
}
_NON_SCALAR_CALLS = {
    "tensorboard": [
        f"add_{what}"
        for what in ("image", "images", "figure", "video", "audio", "text", "histogram", "embedding", "mesh")
    ],
    "mlflow": ["log_image", "log_figure", "log_text", "log_table"],
}
"""Calls that log something other than numbers, by logger."""
_LIGHTNING_LOGGERS = {
    "fabric.loggers.csv_logs": "CSVLogger",
    "fabric.loggers.tensorboard": "TensorBoardLogger",
    "pytorch.loggers.wandb": "WandbLogger",
    "pytorch.loggers.mlflow": "MLFlowLogger",
    "pytorch.loggers.comet": "CometLogger",
    "pytorch.loggers.neptune": "NeptuneLogger",
}
_CONNECTOR, _FABRIC = "logger_connector", "fabric.fabric"
_LIGHTNING_MODULES = {name: short_name for short_name in LIGHTNING for name in module_names(short_name)}


def install(module: ModuleType, session: RankSession) -> None:
    """Wrap the logging calls of a module that was just imported.

    When a wrapped call's extractor fails for the first time, the failure is reported, and the call is no
    longer observed.
    """
    name = module.__name__
    if name in _CALLS:
        through, calls = _CALLS[name]
        for owner, call, pick in calls:
            home = getattr(module, owner, None) if owner else module
            if home is not None:
                _wrap(session, home, call, through, pick, separator="." if through == "wandb" else "/")
        home = getattr(module, "SummaryWriter", module)
        for call in _NON_SCALAR_CALLS.get(through, ()):
            _report_unlogged_call(session, home, call, through)
        return
    module_path = _LIGHTNING_MODULES[name]
    if module_path.endswith(_CONNECTOR):
        _wrap(session, module._LoggerConnector, "log_metrics", "lightning", _lightning)
    elif module_path == _FABRIC:
        _wrap(session, module.Fabric, "log_dict", "lightning", _fabric)
    else:
        logger = getattr(module, _LIGHTNING_LOGGERS[module_path])
        # A callback passes the same values to each of a trainer's loggers.
        _wrap(session, logger, "log_metrics", "lightning", _on_rank_zero(module), skip_repeats=True)
