"""torch.compile captures the same graphs with the observer as without it."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.observed_process import observe_script

_SCRIPT = """
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
net = nn.Linear(8, 1)

def clip(gradients):
    for p, gradient in zip(net.parameters(), gradients):
        p.grad = gradient
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    return [p.grad for p in net.parameters()]

def clear(x):
    net.zero_grad()
    return x * 2

for function, value in ((clip, [torch.ones(1, 8), torch.ones(1)]), (clear, torch.ones(3))):
    counter = CompileCounter()
    torch.compile(function, backend=counter)(value)
    print(function.__name__, counter.frame_count, counter.op_count)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


def test_calls_that_are_compiled_stay_in_the_same_graph(tmp_path: Path) -> None:
    plain = observe_script(_SCRIPT, tmp_path / "plain", level="none")
    observed = observe_script(_SCRIPT, tmp_path / "observed")
    assert plain.status == observed.status == 0, plain.stderr + observed.stderr
    assert plain.stdout == observed.stdout and "clip 1 " in plain.stdout
    assert observed.disabled_parts() == {}
