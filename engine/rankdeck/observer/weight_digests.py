"""Computes digests of this rank's weights, by which ranks can be compared bit by bit.

A digest is the sum of a parameter's bit patterns as integers: it is exact and independent of the order of
summation. Digests are taken for steps 1, 2, 4, 8, ... and every 1000th step, and cover at most 4 million
elements, so that they cost nearly nothing. The step number determines which part of a large parameter is
covered: the part is the same on all ranks. With `--observe check`, they are taken for every step and cover
all elements. Sharded parameters are left out.

Digests are taken at the start of the next step, after whatever the script does to the weights between two
steps (local SGD averages them there), and also after the first few times that the script has averaged the
weights. A second digest, right after the step, reveals changes in between. Read session.py first.
"""

from __future__ import annotations

import sys
import weakref

from .frames import script_line
from .models import list_parameters
from .readings import has_active_modes, is_capturing
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
_MIN_SYNCED_SHARE = 0.25
"""Minimum number of bytes passed to collectives between two steps that counts as averaging the weights, as a
share of the weights' bytes."""


def _is_due(number: int) -> bool:
    """Check whether a digest is due at `number`, which is a step or a count of synchronizations."""
    return not number & (number - 1) or not number % EVERY


class WeightDigester:
    """Takes the digests of the parameters of all optimizers, the leading optimizer's first."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self._integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self.forget()

    def forget(self) -> None:
        self._initial: Any = weakref.WeakKeyDictionary()
        """Optimizer -> digests of its parameters before its first step, by id; used once it leads."""
        self._described: list[int] = []
        """Ids of the parameters that the digests belong to."""
        self._training = -1
        self._num_bytes = 0
        self._after: list[int] | None = None
        """Digests right after the last step, if that step is due."""
        self._after_of: Any = None
        """Weak reference to the optimizer after whose step `_after` was taken."""
        self._num_synced = 0
        """Number of times that the script has averaged weights between two steps."""
        self._has_joined = False
        """Whether DistributedDataParallel.join was used: ranks then have different numbers of steps."""
        self._synced_bytes: int | None = None
        """Bytes passed to collectives between the last step and the first backward pass after it."""
        self._session.synced_bytes = 0
        self._observes_steps = False

    def on_leader_chosen(self, _: Any) -> None:
        """Start a new series of digests."""
        self._described = []
        self._training += 1
        self._after = None
        self._num_synced = 0
        self.observe_steps(None)

    def observe_steps(self, _: Any) -> None:
        """Handle all steps and backward calls from now on, if there are other ranks."""
        if not self._observes_steps and has_other_ranks():
            self._observes_steps = True
            session = self._session
            session.on_backward.add(PART, self.on_backward)
            session.before_step.add(PART, self.before_step)
            session.on_step.add(PART, self.on_step)

    def before_first_step(self, optimizer: Any) -> None:
        """Take the digests of an optimizer's parameters before its first step."""
        if len(self._initial) < _MAX_INITIAL and self._is_possible():
            parameters = self._usable(list_parameters(optimizer))
            if parameters:
                ids = [id(p) for p in parameters]
                self._initial[optimizer] = dict(zip(ids, self._digests(parameters, 0)))

    def on_backward(self, _: Any) -> None:
        """Handle the start of a backward pass that is not nested in another: collectives that are called
        after it may pass gradients."""
        if self._synced_bytes is None:
            self._synced_bytes = self._session.synced_bytes

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Take the digests that belong to the step before this one."""
        if not leads:
            return
        synced_bytes = self._synced_bytes or 0
        is_synced = bool(self._num_bytes) and synced_bytes >= _MIN_SYNCED_SHARE * self._num_bytes
        self._num_synced += is_synced
        if self._after is not None or (is_synced and _is_due(self._num_synced)):
            after, self._after = self._after, None
            parameters, step = self._parameters(optimizer), self._session.step
            if not self._is_possible():
                # In a step that is tracked operation by operation, nothing else may be computed.
                if after is not None and not is_synced and not self._has_joined:
                    self._emit(step, after, optimizer, 0)
            elif [id(p) for p in parameters] == self._described:
                digests = self._digests(parameters, step)
                if after is not None and not is_synced:
                    self._report_changes(optimizer, parameters, after, digests)
                self._emit(step, digests, optimizer, synced_bytes if is_synced else 0)

    def on_step(self, optimizer: Any) -> None:
        """Take digests right after a step of the leading optimizer, if the step is due."""
        self._synced_bytes, self._session.synced_bytes = None, 0
        step = self._session.step
        if not (_is_due(step) or self._session.is_checked) or not self._is_possible():
            return
        parameters = self._parameters(optimizer)
        if not parameters:
            return
        ids = [id(p) for p in parameters]
        if self._described != ids:
            if self._described:
                self._training += 1
            self._describe(parameters)
            self._described = ids
            self._emit_initial(optimizer, ids)
        self._after = self._digests(parameters, step)
        self._after_of = weakref.ref(optimizer)

    def on_tick(self) -> None:
        """Report the last digests at the end of the process, unless the script has averaged weights since."""
        after = self._after
        if after is None or not self._session.is_ending or self._session.synced_bytes:
            return
        self._after = None
        optimizer = self._after_of()
        if optimizer is not None:
            self._emit(self._session.step, after, optimizer, 0)

    def _emit_initial(self, optimizer: Any, ids: list[int]) -> None:
        """Report the digests from before the first step, if there is one for each parameter in `ids`."""
        initial: dict[int, int] = {}
        for digests in self._initial.values():
            initial.update(digests)
        self._initial.clear()
        if self._training == 0 and self._session.first_step == 0 and all(key in initial for key in ids):
            self._emit(0, [initial[key] for key in ids], optimizer, 0)

    def _emit(self, step: int, digests: list[int], optimizer: Any, synced_bytes: int) -> None:
        rate = optimizer.param_groups[0].get("lr")
        self._session.emit(
            "weights",
            step=step,
            digests=digests,
            training=self._training,
            rate=float(rate) if isinstance(rate, (int, float)) else None,
            synced_bytes=synced_bytes,
        )

    def _report_changes(
        self, optimizer: Any, parameters: list[Any], after: list[int], digests: list[int]
    ) -> None:
        """Report weights of the leading optimizer that were changed between two steps, by this rank alone."""
        others = [other for other in (ref() for ref in self._session.optimizers) if other is not optimizer]
        stepped = {id(p) for other in others for p in list_parameters(other)}
        changed = [
            p for p, old, new in zip(parameters, after, digests) if old != new and id(p) not in stepped
        ]
        if changed:
            names = parameter_names(self._session)
            self._session.report_anomaly(
                "weights-changed",
                names=[names.get(id(p), "a parameter") for p in changed],
                line=script_line(),
                parameters=len(parameters),
            )

    def _is_possible(self) -> bool:
        self._has_joined = self._has_joined or any(
            getattr(getattr(ref(), "_join_config", None), "enable", False) for ref in self._session.models
        )
        return (
            not self._has_joined
            and has_other_ranks()
            and self._session.facts.get("wrapper") not in SHARDED_WRAPPERS
            and not has_active_modes(self._torch)
            and not is_capturing(self._torch)
        )

    def _parameters(self, optimizer: Any) -> list[Any]:
        """Return the parameters of all optimizers, the leading one's first."""
        others = [other for other in (ref() for ref in self._session.optimizers) if other is not optimizer]
        found = {id(p): p for other in (optimizer, *others) for p in list_parameters(other)}
        return self._usable(list(found.values()))

    def _usable(self, parameters: list[Any]) -> list[Any]:
        """Return those of `parameters` that should be equal on all ranks and whose bits can be summed."""
        kinds = self._torch.Tensor, self._torch.nn.Parameter
        return [
            parameter
            for parameter in parameters
            if type(parameter) in kinds
            and parameter.layout is self._torch.strided
            and parameter.element_size() in self._integers
            and not parameter.is_complex()
            and parameter.is_contiguous()
        ][:_MAX_PARAMETERS]

    def _describe(self, parameters: list[Any]) -> None:
        """Report the parameters that the digests cover, and any communication hooks, which may make gradients
        differ between ranks."""
        for reference in self._session.models:
            hooks = getattr(reference(), "_comm_hooks", None)
            if hooks:
                hook_names = [getattr(hook, "__name__", str(hook)) for hook, _ in hooks]
                self._session.report_anomaly("comm-hook", names=hook_names)
        names = parameter_names(self._session)
        self._num_bytes = sum(p.numel() * p.element_size() for p in parameters)
        self._session.emit(
            "weights",
            step=0,
            digests=[],
            training=self._training,
            names=[names.get(id(p), "parameter %d" % number) for number, p in enumerate(parameters)],
            sizes=[p.numel() for p in parameters],
            num_bytes=self._num_bytes,
            max_elements=self._max_elements(parameters),
        )

    def _max_elements(self, parameters: list[Any]) -> int:
        """Return how many elements of each parameter a digest covers."""
        if self._session.is_checked:
            return max(int(p.numel()) for p in parameters)
        return max(_MIN_PART, _MAX_ELEMENTS // len(parameters))

    def _digests(self, parameters: list[Any], step: int) -> list[int]:
        max_elements = self._max_elements(parameters)
        with self._torch.no_grad():
            sums = [self._sum_of_bits(parameter, max_elements, step) for parameter in parameters]
            # One transfer per device: each waits for the work that is queued there.
            totals: dict[int, int] = {}
            for device in {total.device for total in sums}:
                here = [number for number, total in enumerate(sums) if total.device == device]
                stacked = self._torch.stack([sums[number] for number in here])
                totals.update(zip(here, stacked.tolist()))
            return [totals[number] % _MODULUS for number in range(len(sums))]

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


def has_other_ranks() -> bool:
    """Check whether this process belongs to a process group with other ranks."""
    distributed = sys.modules.get("torch.distributed")
    return bool(
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


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
    session.on_first_step.add(PART, digester.before_first_step)
    session.on_sampled_step.add(PART, digester.observe_steps)
    session.on_leader_chosen.add(PART, digester.on_leader_chosen)
    session.on_tick.add(PART, digester.on_tick)
    session.on_fork.add(PART, digester.forget)
