"""The dataset is sorted by class, as a folder of images is, and is not shuffled: each batch has one class. An
expert would shuffle. Class: samples, order."""

# ranks: 1
# expect: batches-of-one-class
# words: shuffle

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.silent import toy

x, y = toy.class_data(512).tensors
order = y.argsort(stable=True)
folder = TensorDataset(x[order], y[order])
model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(4):
    for images, labels in DataLoader(folder, batch_size=16):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
