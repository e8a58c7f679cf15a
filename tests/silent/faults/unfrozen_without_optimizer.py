"""The optimizer is created from the trainable parameters while the encoder is frozen; unfreezing it later
does not add it. An expert would call add_param_group. Class: parameters that no optimizer steps."""

# ranks: 1
# expect: gradient-without-optimizer
# words: optimizer

import torch
from torch import nn

from tests.silent import toy

encoder, head = nn.Linear(8, 32), nn.Linear(32, 4)
classifier = nn.Sequential(encoder, nn.ReLU(), head)
encoder.requires_grad_(False)
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, classifier.parameters()), lr=1e-3)
for epoch in range(5):
    if epoch == 2:
        print("unfreezing the encoder")
        encoder.requires_grad_(True)
    for x, y in toy.batches(16, toy.class_data()):
        classifier.zero_grad()
        nn.functional.cross_entropy(classifier(x), y).backward()
        optimizer.step()
