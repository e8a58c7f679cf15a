"""What is kept over steps without harm. Kinds: detached losses in a list, losses as numbers, an RNN with
truncated backpropagation, hooks that are removed in each step, a queue of keys, outputs of one epoch with
their graphs, retain_graph for two losses of one graph, a loss over a window of batches."""

# ranks: 1
# args: --kind losses
# args: --kind running
# args: --kind tbptt
# args: --kind hooks
# args: --kind queue
# args: --kind epoch-outputs
# args: --kind retain
# args: --kind window

import argparse
from collections import deque

import torch
from torch import nn

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
model = nn.ModuleDict({"cell": nn.GRUCell(8, 16), "head": nn.Linear(16, 1)})
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
hidden, history, running, pending = torch.zeros(16, 16), [], torch.zeros(()), 0
queue, window = deque(maxlen=64), deque(maxlen=4)
epoch_outputs = []
for step, (x, y) in enumerate(toy.batches(120)):
    handle = model["cell"].register_forward_hook(lambda *_: None) if kind == "hooks" else None
    state = hidden if kind == "tbptt" else torch.zeros(16, 16)
    state = model["cell"](x, state)
    loss = nn.functional.mse_loss(model["head"](state), y)
    if kind == "queue" and queue:
        loss = loss + 0.01 * (state @ torch.stack(list(queue)).T).logsumexp(1).mean()
    if kind == "window":
        window.append(loss)
        loss = torch.stack(list(window)).mean() if len(window) == window.maxlen else loss
        if len(window) < window.maxlen:
            continue
        window.clear()
    if kind == "tbptt" and step % 5 != 4:
        hidden, pending = state, pending + loss
        continue
    optimizer.zero_grad()
    if kind == "retain":
        loss.backward(retain_graph=True)
        state.square().mean().mul(0.01).backward()
    else:
        (loss + pending).backward()
    optimizer.step()
    hidden, pending = state.detach(), 0
    queue.extend(state.detach())
    running = running + loss.detach()
    history.append(loss.item() if kind == "running" else loss.detach())
    if kind == "epoch-outputs":
        epoch_outputs.append(state)
        if step % 16 == 15:
            print(torch.cat(epoch_outputs).std().item())
            epoch_outputs.clear()
    if handle is not None:
        handle.remove()
