"""The rate of the decayed group is overwritten with 0 by a config default, only the group of biases
trains. An expert would find lr=0 in the first group. Class: learning rate 0."""

# ranks: 1
# expect: learning-rate-zero
# words: lr|learning rate

import torch

from tests.silent import toy

model = toy.mlp(out=4, hidden=48)
weights = [p for p in model.parameters() if p.ndim > 1]
biases = [p for p in model.parameters() if p.ndim == 1]
groups = [{"params": weights, "weight_decay": 0.1, "lr": 0.0}, {"params": biases, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
for x, y in toy.batches(120, toy.class_data()):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
