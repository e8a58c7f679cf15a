"""Training does not import torch's compiler; whoever needs it finds the same one, however it is imported."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

_DEFERRED_IMPORT = (
    "from rankdeck.torch_compat.compiler import defer_compiler_import, without_compiler\n"
    "defer_compiler_import()\n"
)
_TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
inputs = torch.randn(6, 4)

def train(model, optimizer):
    optimizer.zero_grad()
    loss = model(inputs).square().sum()
    loss.backward()
    optimizer.step()
    return loss
"""
_EAGER = """
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
with without_compiler():
    replica = nn.parallel.DistributedDataParallel(model)
for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
    optimizer = kind(model.parameters(), lr=0.1)
    train(replica, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    optimizer.load_state_dict(optimizer.state_dict())
    train(replica, optimizer)
print([weight.sum().item() for weight in model.parameters()])
"""
_PRINT_IMPORTED = "print('torch._dynamo.eval_frame' in sys.modules, 'sympy' in sys.modules)\n"
_COMPILED = """
graphs = []

def backend(graph, _):
    graphs.append(len(graph.graph.nodes))
    return graph.forward

compiled = torch.compile(train, backend=backend)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
train(model, optimizer)
for _ in range(2):
    compiled(model, optimizer)
assert graphs
print(graphs, torch._dynamo.utils.counters["graph_break"])
print([weight.sum().item() for weight in model.parameters()])
"""
_PRINT_FULL_GRAPH = """
import torch._dynamo
import torch._dynamo.utils as utils
from torch._dynamo.eval_frame import OptimizedModule

assert type(torch._dynamo) is type(torch) and torch._dynamo is sys.modules["torch._dynamo"]
assert utils is torch._dynamo.utils and utils.__spec__.origin == utils.__file__
assert OptimizedModule is torch._dynamo.OptimizedModule
"""
_FIRST_IMPORTS = "import torch._dynamo.utils", "torch._dynamo.config"
_FORKED = """
import os

def forked(*codes):
    for code in codes:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.dup2(write_end, 1)
            exec(code, globals())
            sys.stdout.flush()
            os._exit(0)
        os.close(write_end)
        with open(read_end) as printed:
            print(printed.read().split("\\n")[:-1])
        assert os.wait()[1] == 0
"""


def run_forked(*codes: str) -> list[list[str]]:
    """The lines that each of the codes prints, in forks of one interpreter that has imported torch."""
    code = f"{_TRAINING}{_FORKED}\nforked(*{codes!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [ast.literal_eval(line) for line in done.stdout.splitlines()]


def test_training_does_not_import_the_compiler() -> None:
    torchs = "from contextlib import nullcontext as without_compiler\n"
    ours, theirs = run_forked(_DEFERRED_IMPORT + _EAGER + _PRINT_IMPORTED, torchs + _EAGER + _PRINT_IMPORTED)
    assert ours[-1] == "False False" and theirs[-1] == "True True"
    assert ours[:-1] == theirs[:-1] != []


@pytest.mark.parametrize(
    "first", ["", *(pytest.param(code, marks=pytest.mark.slow) for code in _FIRST_IMPORTS)]
)
def test_compiled_steps_work_whoever_imports_the_compiler(first: str) -> None:
    start = _DEFERRED_IMPORT + "train(model, torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]))\n"
    torchs, ours = run_forked(
        _COMPILED + _PRINT_FULL_GRAPH, f"{start}{first}\n{_COMPILED}{_PRINT_FULL_GRAPH}"
    )
    assert ours == torchs
