"""Replace random numbers with fixed numbers during the check, so that none of them depends on how a batch is
split.

Every draw gives all elements the same number: for a uniform draw, a value about a third of the way through
its range; for a normal draw, a value near the mean; dropout keeps everything. The computation with these
numbers is still compared. ../parity_notes.py adds the note that a run draws different numbers than one
device.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rankdeck.torch_compat.dispatch import DispatchMode, Kwargs, call_operation

_Draw = Callable[[tuple[Any, ...], Kwargs], Any]
"""Replacement for a random operation, with the same arguments and the same kind of result."""
_UNIFORM_VALUE, _NORMAL_VALUE = 0.37, 0.6


class FixedDraws(DispatchMode):
    """Dispatch mode in which random operations return fixed numbers.

    `has_drawn` is True once a random operation has been called; `has_missed` is True once an operation
    without a replacement in `_DRAWS` has used a generator. If `is_idle` is True, the mode only watches
    generators, because intercepting an operation costs some microseconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_idle = False
        self.has_drawn = False
        self.has_missed = False
        self._states: list[Any] = []

    def __enter__(self) -> Self:
        self._states = _generator_states()
        if not self.is_idle:
            super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if not self.is_idle:
            super().__exit__(*error)
        self.has_missed = self.has_missed or self._states != _generator_states()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> Any:
        # func.__name__ ends with the overload, as in normal.float_Tensor.
        draw = _DRAWS.get(func.__name__.partition(".")[0])
        if draw is None or func.namespace != "aten":
            return call_operation(func, args, kwargs)
        self.has_drawn = True
        return draw(args, kwargs or {})

    def worker_mode(self) -> DispatchMode:
        return _WorkerFixedDraws(self)


class _WorkerFixedDraws(DispatchMode):
    """Mode that passes a worker thread's operations to `draws`, the mode that its parent thread entered."""

    def __init__(self, draws: FixedDraws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> Any:
        return self._draws.__torch_dispatch__(func, types, args, kwargs)


def _generator_states() -> list[Any]:
    """Return comparable states of the generators: torch's on the CPU and the GPUs in use, NumPy's and
    Python's."""
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = [bytes(state.numpy()) for state in (torch.get_rng_state(), *of_gpus)]
    # Pickled, because == does not compare dictionaries of arrays.
    return [*states, pickle.dumps(np.random.get_state(legacy=False)), random.getstate()]


def _fill_with(value: Callable[[Kwargs, tuple[Any, ...]], Any]) -> _Draw:
    """Return an in-place draw that fills the tensor with the result of calling `value` with the draw's
    arguments."""
    return lambda args, kwargs: args[0].fill_(value(kwargs, args[1:]))


def _argument(kwargs: Kwargs, rest: tuple[Any, ...], position: int, name: str, default: Any) -> Any:
    return rest[position] if len(rest) > position else kwargs.get(name, default)


def _options(kwargs: Kwargs) -> Kwargs:
    """Return the requested dtype and device, if any."""
    return {name: kwargs[name] for name in ("dtype", "device") if kwargs.get(name) is not None}


def _constant(value: float) -> _Draw:
    """Return a draw that makes a constant tensor of the requested shape, dtype and device."""

    def draw(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
        options = _options(kwargs)
        if isinstance(args[0], Tensor):
            return torch.full_like(args[0], value, **options)
        options.setdefault("dtype", torch.get_default_dtype())
        return torch.full(args[0], value, **options)

    return draw


def _normal(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    """Replace torch.normal, whose mean and standard deviation can be tensors."""
    mean = args[0] if args else 0.0
    deviation = args[1] if len(args) > 1 else kwargs.get("std", 1.0)
    if not isinstance(mean, Tensor) and not isinstance(deviation, Tensor):
        options = _options(kwargs)
        return torch.full(
            args[2] if len(args) > 2 else kwargs["size"], mean + _NORMAL_VALUE * deviation, **options
        )
    drawn: Tensor = mean + _NORMAL_VALUE * deviation
    return drawn


def _bernoulli(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    """Return 1 wherever the probability is above 0, so that nothing is dropped."""
    rate = args[1] if len(args) > 1 else args[0]
    return (rate > 0).to(args[0].dtype) if isinstance(rate, Tensor) else torch.full_like(args[0], rate > 0)


def _bernoulli_in_place(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    rate = _argument(kwargs, args[1:], 0, "p", 0.5)
    drawn: Tensor = args[0].copy_(rate > 0) if isinstance(rate, Tensor) else args[0].fill_(float(rate > 0))
    return drawn


def _integers(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    """Replace randint(high, size), randint(low, high, size) and similar calls."""
    is_like = isinstance(args[0], Tensor)
    numbers = [arg for arg in args[is_like:] if isinstance(arg, int)]
    low, high = (0, *numbers) if len(numbers) == 1 else numbers[:2]
    value = low + (high - low) // 3
    options = _options(kwargs)
    if is_like:
        return torch.full_like(args[0], value, **options)
    options.setdefault("dtype", torch.int64)
    return torch.full(next(arg for arg in args if isinstance(arg, list | tuple)), value, **options)


def _integer_in_place(kwargs: Kwargs, rest: tuple[Any, ...]) -> int:
    numbers = [number for number in rest if isinstance(number, int)]
    low, high = (0, *numbers) if len(numbers) == 1 else (numbers or [0, 3])[:2]
    return int(low + (high - low) // 3)


def _permutation(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    options = _options(kwargs)
    return torch.arange(args[0], **options)


def _most_likely(args: tuple[Any, ...], kwargs: Kwargs) -> Tensor:
    """Replace multinomial: return the most likely indices."""
    num = args[1]
    with_replacement = len(args) > 2 and args[2]
    if with_replacement:
        likeliest: Tensor = args[0].argmax(-1, keepdim=True)
        return likeliest.expand(*args[0].shape[:-1], num).contiguous()
    chosen: Tensor = args[0].topk(num, dim=-1).indices
    return chosen


def _native_dropout(args: tuple[Any, ...], kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)


_DRAWS: dict[str, _Draw] = {
    "rand": _constant(_UNIFORM_VALUE),
    "rand_like": _constant(_UNIFORM_VALUE),
    "randn": _constant(_NORMAL_VALUE),
    "randn_like": _constant(_NORMAL_VALUE),
    "normal": _normal,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_in_place,
    "randint": _integers,
    "randint_like": _integers,
    "randperm": _permutation,
    "multinomial": _most_likely,
    "native_dropout": _native_dropout,
    "uniform_": _fill_with(
        lambda kwargs, rest: (
            _argument(kwargs, rest, 0, "from", 0.0)
            + _UNIFORM_VALUE
            * (_argument(kwargs, rest, 1, "to", 1.0) - _argument(kwargs, rest, 0, "from", 0.0))
        )
    ),
    "normal_": _fill_with(
        lambda kwargs, rest: (
            _argument(kwargs, rest, 0, "mean", 0.0) + _NORMAL_VALUE * _argument(kwargs, rest, 1, "std", 1.0)
        )
    ),
    "exponential_": _fill_with(lambda kwargs, rest: 1.0 / _argument(kwargs, rest, 0, "lambd", 1.0)),
    "random_": _fill_with(_integer_in_place),
    "poisson": lambda args, kwargs: args[0].round(),
}
"""Replacements by operation. Other random operations draw as usual, which changes the generator's state."""
