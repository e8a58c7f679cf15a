"""Predictions are collected for a metric at the end, with their graphs. An expert would append
logits.detach(). Class: growth."""

# ranks: 1
# expect: graphs-retained
# words: detach

import torch

from tests.silent import toy


class Accuracy:
    def __init__(self):
        self.logits, self.labels = [], []

    def update(self, logits, labels):
        self.logits.append(logits)
        self.labels.append(labels)

    def compute(self):
        return (torch.cat(self.logits).argmax(1) == torch.cat(self.labels)).float().mean().item()


metric = Accuracy()
model = toy.mlp(out=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in toy.batches(200, toy.class_data()):
    logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(logits, y)
print(metric.compute())
