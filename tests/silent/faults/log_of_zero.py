"""A hand-written cross entropy takes the log of a softmax that underflows to 0. An expert would use
log_softmax. Class: not finite."""

# ranks: 1
# expect: loss-not-finite
# words: log|step \d+

import torch

from tests.silent import toy

model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
for x, y in toy.batches(80, toy.class_data()):
    probabilities = torch.softmax(30 * model(x), dim=1)
    loss = -torch.log(probabilities[torch.arange(len(y)), y]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
