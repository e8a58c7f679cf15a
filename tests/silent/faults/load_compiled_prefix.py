"""The file was saved from a compiled model, its keys begin with _orig_mod., and strict=False hides it. An
expert would strip the prefix. Class: loading."""

# ranks: 1
# expect: nothing-loaded
# words: _orig_mod

import io

import torch

from tests.silent import toy

file = io.BytesIO()
torch.save({f"_orig_mod.{key}": value for key, value in toy.norm_net().state_dict().items()}, file)
file.seek(0)
net = toy.norm_net()
missing, unexpected = net.load_state_dict(torch.load(file, weights_only=True), strict=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in toy.batches(50):
    loss = torch.nn.functional.l1_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
