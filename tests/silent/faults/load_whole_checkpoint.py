"""The checkpoint is a dictionary with "model", "epoch" and more, and is itself passed to
load_state_dict(strict=False). An expert would pass checkpoint["model"]. Class: loading."""

# ranks: 1
# expect: nothing-loaded
# words: keys|model

import torch

from tests.silent import toy

source = toy.mlp(out=4)
checkpoint = {"model": source.state_dict(), "epoch": 7, "best": 0.91}
model = toy.mlp(out=4)
model.load_state_dict(checkpoint, strict=False)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for x, y in toy.batches(50, toy.class_data()):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
