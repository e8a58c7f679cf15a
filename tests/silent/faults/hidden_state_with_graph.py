"""The hidden state of an RNN is passed on without detach, and retain_graph=True silences the error: every
backward pass goes back to the start. An expert would detach the state. Class: growth."""

# ranks: 1
# expect: graphs-retained
# words: detach

import torch
from torch import nn

from tests.silent import toy

cell, head = nn.GRUCell(8, 16), nn.Linear(16, 1)
model = nn.ModuleList([cell, head])
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
hidden = torch.zeros(16, 16)
for x, y in toy.batches(200):
    hidden = cell(x, hidden)
    loss = nn.functional.mse_loss(head(hidden), y)
    model.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
