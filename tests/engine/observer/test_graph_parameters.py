"""Parameters that get gradients between trained layers but are in no optimizer are reported."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
x = torch.randn(32, 8)
first, last = nn.Linear(8, 16), nn.Linear(16, 1)
others = [nn.Linear(16, 16), nn.Linear(16, 16)]
{optimizers}
for step in range(100):
    hidden = first(x).tanh()
    {forward}
    loss = nn.functional.mse_loss(last(hidden), x[:, :1])
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
_OUTER = "optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], 0.003)"
_THROUGH = "for layer in others: hidden = layer(hidden).tanh()"
_RUN = """
def run(hidden):
    for layer in others:
        hidden = layer(hidden).tanh()
    return hidden.float()
"""
_BY_HAND = "with torch.no_grad(): [p.sub_(0.01 * p.grad) for o in others for p in o.parameters()]"


def _script(forward: str, *, optimizers: str = _OUTER, loss: str = "", after: str = "") -> str:
    return _SCRIPT.format(optimizers=optimizers, forward=forward, loss=loss, after=after)


_FAULTS = {
    "in a list": _script(_THROUGH),
    "added later": _script("hidden = others[0](hidden) if step > 20 else hidden"),
    "under autocast": _script(
        "with torch.autocast('cpu', torch.bfloat16): hidden = run(hidden)", optimizers=_OUTER + _RUN
    ),
}  # fmt: skip
_HEALTHY = {
    "all of them": _script(
        _THROUGH,
        optimizers=_OUTER.replace("*last", "*others[0].parameters(), *others[1].parameters(), *last"),
    ),
    "frozen": _script(_THROUGH, optimizers=_OUTER + "\n[o.requires_grad_(False) for o in others]"),
    "another optimizer": _script(
        _THROUGH,
        optimizers=_OUTER + "\nsecond = torch.optim.SGD([p for o in others for p in o.parameters()], 0.01)",
        after="second.step(); second.zero_grad()",
    ),
    "by hand": _script(_THROUGH, after=_BY_HAND),
    "a perceptual loss": _script("", loss="loss = loss + others[0](first(x)).square().mean()"),
    "a backbone": _script(
        "hidden = hidden", optimizers="optimizer = torch.optim.Adam(last.parameters(), 0.003)"
    ),
    "a part that is not used": _script(""),
    "noise": _script("noise = torch.zeros_like(hidden, requires_grad=True); hidden = hidden + noise"),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): script for name, script in (_FAULTS | _HEALTHY).items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize("name", _FAULTS | _HEALTHY)
def test_parameters_that_no_optimizer_steps_are_reported(
    processes: dict[str, ObservedProcess], name: str
) -> None:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    found = {event.code: event for event in process.events_of_type(events.Anomaly)}
    assert found.keys() == ({"gradient-without-optimizer"} if name in _FAULTS else set())
    assert process.disabled_parts() == {}
    for event in found.values():
        assert event.names[:2] in (["16x16", "16"], ["16", "16x16"]) and event.numbers["outside"] == 1
