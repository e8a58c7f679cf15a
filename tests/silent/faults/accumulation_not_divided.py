"""Eight micro-batches are summed without dividing, at a rate that was found for their mean: the training
diverges. An expert would divide each loss by 8. Class: order in a step, accumulation."""

# ranks: 1
# expect: loss-not-finite
# words: [Dd]ivide

import torch

from tests.silent import toy

ACCUMULATE = 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
for micro, (x, y) in enumerate(toy.batches(8 * 100)):
    torch.nn.functional.mse_loss(model(x), y).backward()
    if micro % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
