"""The head is replaced for new classes after the optimizer was created, which steps the old head. An expert
would create the optimizer last. Class: parameters that no optimizer steps."""

# ranks: 1
# expect: gradient-without-optimizer
# words: (optimizer after|after the last change|no longer in the model)

import torch
from torch import nn

from tests.silent import toy

backbone = nn.Sequential(nn.Linear(8, 32), nn.GELU())
model = nn.ModuleDict({"backbone": backbone, "head": nn.Linear(32, 1000)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model["head"] = nn.Linear(32, 4)
for x, y in toy.batches(60, toy.class_data()):
    logits = model["head"](model["backbone"](x))
    loss = nn.functional.cross_entropy(logits, y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
