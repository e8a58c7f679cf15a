"""Two parts of the model are passed to the optimizer, the projection between them is forgotten. An expert
would pass model.parameters(). Class: parameters that no optimizer steps."""

# ranks: 1
# expect: gradient-without-optimizer
# words: optimizer

import itertools

import torch
from torch import nn

from tests.silent import toy


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Linear(8, 12)
        self.projection = nn.Linear(12, 10)
        self.text = nn.Linear(10, 4)

    def forward(self, image):
        return self.text(self.projection(self.vision(image).relu()).relu())


model = Captioner()
trained = itertools.chain(model.vision.parameters(), model.text.parameters())
optimizer = torch.optim.AdamW(trained, lr=2e-3, weight_decay=0.01)
for image, label in toy.batches(64, toy.class_data()):
    loss = nn.functional.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
