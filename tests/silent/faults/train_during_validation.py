"""The validation loop forgets model.eval(): dropout stays on and the scores are noisy. An expert would switch
to evaluation mode. Class: mode in evaluation."""

# ranks: 1
# expect: train-while-evaluating
# words: model\.eval\(\)

import torch
from torch.utils.data import DataLoader

from tests.silent import toy

model = toy.mlp(out=4, dropout=0.5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train, test = (DataLoader(toy.class_data(seed=1), 16, shuffle=split) for split in (True, False))
for epoch in range(4):
    for x, y in train:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = 0
    with torch.no_grad():
        for x, y in test:
            right += (model(x).argmax(1) == y).sum().item()
    print(epoch, right)
