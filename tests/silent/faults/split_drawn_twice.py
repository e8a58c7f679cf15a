"""Training and validation sets come from two calls of random_split, each with its own draw: they overlap. An
expert would use both halves of one split. Class: samples, evaluation on training samples."""

# ranks: 1
# expect: evaluation-on-training-samples
# words: split|overlap|subset

import torch
from torch.utils.data import DataLoader, random_split

from tests.silent import toy

data = toy.class_data(320)
train, _ = random_split(data, [256, 64])
_, held_out = random_split(data, [256, 64])
model = toy.mlp(out=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(4):
    for x, y in DataLoader(train, 16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(held_out, 16))
    print(epoch, right / 64)
