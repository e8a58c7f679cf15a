"""Checks whether training that resumes from a file also restores the optimizer's and the scheduler's state.

Weights are often loaded to start something new, and then no other state is needed. So training counts as
resumed only if a counter in the file, such as its epoch or step, equals a variable of the script in the first
step and this variable then grows, or if the scheduler continues. Whether the optimizer's state was loaded is
read from the optimizer: if it was not, the moments of its parameters do not exist before the first step. Read
loaded_weights.py and schedulers.py first.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref

from .frames import drop_own_frame, script_frames, script_line
from .models import list_parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .session import RankSession

PART = "resume"
_COUNTER = re.compile(r"(\w+_)?(epoch|steps?|iter(ation)?s?|it|updates?)(_\w+)?", re.I)
_EPOCH_NAME = re.compile(r"epoch|^ep?$", re.I)
_STEP_NAME = re.compile(r"step|iter|update|count|batch|^(?:it|i|n|t|k)$", re.I)
_MIN_EPOCH, _MIN_STEP = 2, 20
"""Minimum values of counters: in its first step, training from scratch has counted 0 or 1 epochs, and at
most the micro-batches of one step."""
_OWNERS = ("self", "state", "trainer", "train_state", "ctx")
_MOMENTS = ("exp_avg", "momentum_buffer", "square_avg", "exp_inf", "exp_avg_sq", "sum")
_MIN_SHARE = 0.9
"""Minimum share of the optimizer's parameters whose weights came from the file."""
_MAX_FIRST_STEPS = 16
"""Maximum number of steps of all optimizers before the first step of an optimizer that resumes training."""
_MAX_TENSORS, _MAX_DEPTH, _MAX_FILES = 1024, 3, 16
_OPTIMIZED, _NAMESPACE_FUNCTIONS = 1, frozenset(("locals", "vars", "eval", "exec", "dir"))


class _LoadedFile:
    """A file that was loaded before the first step."""

    def __init__(self, content: Any, tensor_class: Any, path: Any, line: str) -> None:
        self.name = os.path.basename(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
        self.line = line
        keys = [key for key in content if isinstance(key, str)]
        self.has_optimizer = any("optim" in key.lower() or key == "opt" for key in keys)
        self.has_scheduler = any("sched" in key.lower() for key in keys)
        self.counters = {
            key: content[key] for key in keys if type(content[key]) is int and _COUNTER.fullmatch(key)
        }
        self.tensors = {
            id(tensor): weakref.ref(tensor)
            for tensor, _ in zip(_tensors(content, tensor_class, _MAX_DEPTH), range(_MAX_TENSORS))
        }
        self.modules: list[Any] = []
        """Weak references to the modules into which its weights were loaded."""

    def contains(self, tensor: Any) -> bool:
        reference = self.tensors.get(id(tensor))
        return reference is not None and reference() is tensor


class _Resumption:
    """Training that may resume from `file`, observed from its first step until its counters have grown."""

    def __init__(self, file: _LoadedFile, optimizer: Any) -> None:
        self.file, self.optimizer = file, weakref.ref(optimizer)
        self.is_empty = not _has_state(optimizer)
        self.variables: dict[tuple[Any, str], tuple[str, int]] = {}
        """(code, variable) -> (key of the file, value in the first step)."""
        self.schedule: Any = None
        self.first_counter: int | None = None


class ResumeChecks:
    """The files that were loaded, and the optimizers whose training may resume from them."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._files: list[_LoadedFile] = []
        self._pending: list[_Resumption] = []

    def on_file(self, content: Any, path: Any) -> None:
        """Handle a file's content that torch.load returns."""
        has_begun = self._session.num_outermost_steps > 0
        if has_begun or not isinstance(content, dict) or len(self._files) >= _MAX_FILES:
            return
        file = _LoadedFile(content, self._torch.Tensor, path, script_line())
        if file.tensors:
            self._files.append(file)

    def on_weights_loaded(self, module: Any, state: Any) -> None:
        """Handle a call of a module's `load_state_dict`."""
        for file in self._files:
            if any(file.contains(tensor) for tensor in state.values()):
                file.modules.append(weakref.ref(module))

    def on_first_step(self, optimizer: Any) -> None:
        """Handle the start of an optimizer's first step."""
        if not self._files or self._session.num_outermost_steps > _MAX_FIRST_STEPS:
            return
        parameters = {id(parameter) for parameter in list_parameters(optimizer)}
        for file in self._files:
            modules = [module for module in (reference() for reference in file.modules) if module is not None]
            loaded = {id(parameter) for module in modules for parameter in module.parameters()}
            if not parameters or len(parameters & loaded) < _MIN_SHARE * len(parameters):
                continue
            resumption = _Resumption(file, optimizer)
            schedules = self._session.schedules
            schedule = schedules.find(optimizer) if schedules is not None else None
            if schedule is not None:
                resumption.schedule, resumption.first_counter = schedule, schedule.read_counter()
            self._find_variables(resumption)
            # A gradient scaler may skip the first steps, which a new scheduler then counts.
            if resumption.variables or (resumption.first_counter or 0) >= _MIN_STEP:
                self._pending.append(resumption)

    def _find_variables(self, resumption: _Resumption) -> None:
        losses = self._session.losses
        num_before = max(1, losses.backwards if losses is not None else 1)
        for code, name, value in _integers():
            for key, counter in resumption.file.counters.items():
                is_epoch = _EPOCH_NAME.search(key) is not None
                names, least = (_EPOCH_NAME, _MIN_EPOCH) if is_epoch else (_STEP_NAME, _MIN_STEP)
                if counter >= least and counter <= value <= counter + num_before and names.search(name):
                    resumption.variables[code, name] = key, value

    def on_sampled_step(self, _: Any) -> None:
        """Report missing state once it is clear that training has resumed from a file: its scheduler
        continues, or a counter has grown since the first step."""
        if not self._pending:
            return
        values = {(code, name): value for code, name, value in _integers()}
        pending, self._pending = self._pending, []
        for resumption in pending:
            optimizer = resumption.optimizer()
            if optimizer is None:
                continue
            counter = resumption.first_counter or 0
            if counter >= _MIN_STEP and resumption.is_empty:
                self._report(resumption, optimizer, "", counter, 0)
                continue
            grown = [
                (key, values[variable] - first)
                for variable, (key, first) in resumption.variables.items()
                if values.get(variable, first) > first
            ]
            if grown:
                key, growth = grown[0]
                self._report(resumption, optimizer, key, resumption.file.counters[key], growth)
            else:
                self._pending.append(resumption)

    def _report(self, resumption: _Resumption, optimizer: Any, key: str, counter: int, growth: int) -> None:
        session, file = self._session, resumption.file
        first = session.first_step + 1
        if resumption.is_empty and _has_moments(optimizer):
            session.report_anomaly(
                "resume-without-optimizer",
                names=[type(optimizer).__name__, file.name, key],
                step=first,
                line=file.line,
                counter=counter,
                saved=float(file.has_optimizer),
            )
        schedule = resumption.schedule
        if not key or schedule is None or resumption.first_counter is None:
            return
        now = schedule.read_counter()
        # A script may set the scheduler itself, as by scheduler.step(epoch).
        is_set = now is None or schedule.has_gone_back or -1 <= now - counter <= growth + 1
        if resumption.first_counter <= 1 and not is_set and schedule.has_plan:
            session.report_anomaly(
                "resume-without-scheduler",
                names=[schedule.name, file.name, key],
                step=first,
                line=file.line,
                counter=counter,
                saved=float(file.has_scheduler),
            )


def _tensors(content: Any, tensor_class: Any, depth: int) -> Iterator[Any]:
    for key, value in content.items():
        if isinstance(value, tensor_class):
            yield value
        elif depth and isinstance(value, dict) and not (isinstance(key, str) and "optim" in key.lower()):
            yield from _tensors(value, tensor_class, depth - 1)


def _has_state(optimizer: Any) -> bool:
    return any(optimizer.state.get(parameter) for parameter in list_parameters(optimizer))


def _has_moments(optimizer: Any) -> bool:
    """Check whether the optimizer's state contains moments (`_MOMENTS`); called after its first step."""
    return any(
        optimizer.state.get(parameter, {}).get(name) is not None
        for parameter in list_parameters(optimizer)[:_MAX_DEPTH]
        for name in _MOMENTS
    )


def _integers() -> Iterator[tuple[Any, str, int]]:
    """Yield (code, name, value) of the integers in the variables of the script's running frames."""
    for frame in script_frames():
        code = frame.f_code
        is_function = code.co_flags & _OPTIMIZED
        if is_function and (sys.gettrace() is not None or _NAMESPACE_FUNCTIONS.intersection(code.co_names)):
            continue  # Reading the variables would change what these functions return.
        variables = frame.f_locals
        for name, value in list(variables.items()):
            if type(value) is int:
                yield code, name, value
            elif name in _OWNERS:
                members = value if type(value) is dict else getattr(value, "__dict__", None)
                for key, member in list((members or {}).items()):
                    if type(member) is int and isinstance(key, str):
                        yield code, name + "." + key, member
        if is_function and type(variables) is dict:
            # Before Python 3.13, the frame keeps this copy, and with it what the script deletes.
            variables.clear()


def install(torch: Any, session: RankSession) -> None:
    """Observe loaded files in functions that torch.load calls: if torch.load itself were wrapped, its
    warnings would not name the script's line."""
    session.resume = checks = ResumeChecks(torch, session)
    session.on_first_step.add(PART, checks.on_first_step)
    session.on_sampled_step.add(PART, checks.on_sampled_step)
    session.on_fork.add(PART, checks.forget)
    on_file = session.wrap_part(PART, checks.on_file)
    for name in ("_load", "_legacy_load"):
        _observe(torch.serialization, name, on_file)


def _observe(module: Any, name: str, on_file: Any) -> None:
    load = getattr(module, name)

    @functools.wraps(load)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            content = load(*args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        on_file(content, sys._getframe(1).f_locals.get("f"))
        return content

    setattr(module, name, observed)
