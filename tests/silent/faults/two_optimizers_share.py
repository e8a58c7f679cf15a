"""The generator's optimizer gets all parameters by mistake, so one backward pass steps the encoder twice. An
expert would pass each parameter to one optimizer. Class: two optimizers, one parameter."""

# ranks: 1
# expect: stepped-twice
# words: one optimizer|same

import torch
from torch import nn

from tests.silent import toy

model = nn.ModuleDict({"encoder": nn.Linear(8, 16), "head": nn.Linear(16, 1)})
slow = torch.optim.SGD(model["encoder"].parameters(), lr=1e-3)
fast = torch.optim.AdamW(model.parameters(), lr=1e-2)
for x, y in toy.batches(70):
    for optimizer in (slow, fast):
        optimizer.zero_grad()
    prediction = model["head"](model["encoder"](x).tanh())
    torch.nn.functional.mse_loss(prediction, y).backward()
    slow.step()
    fast.step()
