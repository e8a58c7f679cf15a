"""A checkpoint of a wrapped model is loaded with strict=False into a plain one: every key has the prefix
module. and none matches. An expert would strip it. Class: loading."""

# ranks: 1
# expect: nothing-loaded
# words: module\.

import torch

from tests.silent import toy

wrapped = torch.nn.DataParallel(toy.mlp())
model = toy.mlp()
model.load_state_dict(wrapped.state_dict(), strict=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for x, y in toy.batches(50):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
