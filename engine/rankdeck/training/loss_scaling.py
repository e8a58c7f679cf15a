"""Keeping fp16 gradients out of underflow: the loss is multiplied by a factor that grows while gradients stay
finite and shrinks when they do not; a step with gradients that are not finite is left out.

Source: torch.amp.GradScaler. Every rank must find the same gradients, so it is for strategies whose ranks
all hold the whole gradient (capabilities.py refuses the others). Other precisions pass through untouched.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

_NAME = "loss-scaling"


class LossScaling:
    """One optimizer's scaling; `is_on` only with fp16."""

    def __init__(self, device: torch.device, *, is_on: bool) -> None:
        self.is_on = is_on
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=is_on)

    def scaled(self, factor: float) -> float | Tensor:
        """What a loss sum is multiplied by before backward; on a GPU nothing waits for it."""
        if not self.is_on:
            return factor
        scaled: Tensor = self._scaler.scale(torch.full((), factor, device=self._device))
        return scaled

    @property
    def scale(self) -> Tensor | None:
        """The factor of this step, on the device: nothing waits for it. None where nothing is scaled."""
        if not self.is_on:
            return None
        scale: Tensor = self._scaler.scale(torch.ones((), device=self._device))
        return scale

    def unscale(self, optimizer: Optimizer) -> None:
        """Gradients as they would be without scaling; before they are clipped."""
        if self.is_on:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, left out where a gradient is not finite."""
        if not self.is_on:
            optimizer.step()
            return
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Tensor]:
        if not self.is_on:
            return {}
        state = self._scaler.state_dict()
        values = [float(state["scale"]), float(state["_growth_tracker"])]
        return {_NAME: torch.tensor(values, dtype=torch.float64)}

    def take_state(self, states: dict[str, Tensor]) -> None:
        """What `state` gave, taken out of `states` if it is there."""
        kept = states.pop(_NAME, None)
        if self.is_on and kept is not None:
            scale, tracker = kept.tolist()
            known = self._scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)}
            self._scaler.load_state_dict(known)
