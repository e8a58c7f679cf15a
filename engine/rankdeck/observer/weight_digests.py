"""Computes digests of this rank's weights, by which ranks can be compared bit by bit.

A digest is the sum of a parameter's bit patterns as integers: it is exact and independent of the order of
summation. Digests are taken before the first step, after steps 1, 2, 4, 8, ... and then after every 1000th
step, and cover at most 4 million elements, so that they cost nearly nothing. The step number determines
which part of a large parameter is covered: the part is the same on all ranks. With `--observe check`, they
are taken after every step and cover all elements. Sharded parameters are left out. Read session.py first.
"""

from __future__ import annotations

import sys
import weakref

from .models import list_parameters
from .readings import has_active_modes
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "weights"
EVERY = 1000
_MAX_ELEMENTS = 1 << 22
_MIN_PART = 4096
_MAX_PARAMETERS = 4096
_MODULUS = 1 << 53
_MAX_INITIAL = 4


class WeightDigester:
    """Takes the digests of the leading optimizer's parameters."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self.forget()

    def forget(self) -> None:
        self._initial: Any = weakref.WeakKeyDictionary()
        """Digests before the first step, by optimizer, until one of them leads."""
        self._has_described = False
        self._training = -1

    def on_leader_chosen(self, _: Any) -> None:
        """Begin a new series of digests."""
        self._has_described = False
        self._training += 1

    def before_first_step(self, optimizer: Any) -> None:
        """Take the digests of an optimizer that has not stepped yet."""
        if len(self._initial) < _MAX_INITIAL and self._is_possible():
            parameters = self._parameters(optimizer)
            if parameters:
                self._initial[optimizer] = self._digests(parameters, 0)

    def on_step(self, optimizer: Any) -> None:
        """Handle the end of a step of the leading optimizer."""
        step = self._session.step
        if step & (step - 1) and step % EVERY and not self._session.is_checked:
            return
        if not self._is_possible():
            return
        parameters = self._parameters(optimizer)
        if not parameters:
            return
        if not self._has_described:
            self._has_described = True
            self._describe(parameters)
            initial = self._initial.get(optimizer)
            self._initial.clear()
            if initial is not None and self._training == 0 and self._session.first_step == 0:
                self._emit(0, initial)
        self._emit(step, self._digests(parameters, step))

    def _emit(self, step: int, digests: list[int]) -> None:
        self._session.emit("weights", step=step, digests=digests, training=self._training)

    def _is_possible(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        return (
            distributed is not None
            and distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
            and self._session.facts.get("wrapper") not in SHARDED_WRAPPERS
            and not has_active_modes(self._torch)
            and not (self._torch.cuda.is_initialized() and self._torch.cuda.is_current_stream_capturing())
        )

    def _parameters(self, optimizer: Any) -> list[Any]:
        """Return the parameters that have the same value on every rank if all goes well."""
        kinds = self._torch.Tensor, self._torch.nn.Parameter
        return [
            parameter
            for parameter in list_parameters(optimizer)
            if type(parameter) in kinds
            and parameter.layout is self._torch.strided
            and parameter.element_size() in self._integers
            and not parameter.is_complex()
            and parameter.is_contiguous()
        ][:_MAX_PARAMETERS]

    def _describe(self, parameters: list[Any]) -> None:
        """Report what the digests belong to, and communication hooks, after which gradients may differ."""
        for reference in self._session.models:
            hooks = getattr(reference(), "_comm_hooks", None)
            if hooks:
                hook_names = [getattr(hook, "__name__", str(hook)) for hook, _ in hooks]
                self._session.report_anomaly("comm-hook", names=hook_names)
        names = parameter_names(self._session)
        self._session.emit(
            "weights",
            step=0,
            digests=[],
            training=self._training,
            names=[names.get(id(p), "parameter %d" % number) for number, p in enumerate(parameters)],
            sizes=[p.numel() for p in parameters],
            num_bytes=sum(p.numel() * p.element_size() for p in parameters),
        )

    def _digests(self, parameters: list[Any], step: int) -> list[int]:
        max_elements = max(_MIN_PART, _MAX_ELEMENTS // len(parameters))
        if self._session.is_checked:
            max_elements = max(p.numel() for p in parameters)
        with self._torch.no_grad():
            sums = [self._sum_of_bits(parameter, max_elements, step) for parameter in parameters]
            # One transfer for all: on a GPU each would wait for the work that is queued there.
            return [int(total) % _MODULUS for total in self._torch.stack(sums).tolist()]

    def _sum_of_bits(self, parameter: Any, max_elements: int, step: int) -> Any:
        flat = parameter.detach().view(-1)
        if flat.numel() > max_elements:
            num_parts = -(-flat.numel() // max_elements)
            # The digests of doubling steps would all cover part 0 if the step were used as it is.
            part = step.bit_length() + step // EVERY
            start = (part % num_parts) * max_elements
            flat = flat[start : start + max_elements]
        bits = flat.view(self._integers[flat.element_size()])
        return bits.sum(dtype=self._torch.int64)


def parameter_names(session: RankSession) -> dict[int, str]:
    """Return the names of the parameters of the trained modules, by id."""
    names: dict[int, str] = {}
    for reference in session.models:
        model = reference()
        if model is not None:
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), plain_name(name))
    return names


def plain_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add."""
    return ".".join(
        part for part in name.split(".") if part not in ("module", "_orig_mod", "_fsdp_wrapped_module")
    )


def install(torch: Any, session: RankSession) -> None:
    """Take digests at steps of the leading optimizer."""
    digester = WeightDigester(torch, session)
    session.on_first_step.append(session.wrap_part(PART, digester.before_first_step))
    session.on_step.append(session.wrap_part(PART, digester.on_step))
    session.on_leader_chosen.append(session.wrap_part(PART, digester.on_leader_chosen))
    session.on_fork.append(digester.forget)
