"""load_state_dict(assign=True) puts the file's tensors in place of the parameters, which the optimizer still
has. An expert would load first. Class: optimizer of other weights."""

# ranks: 1
# expect: optimizer-without-gradients
# words: create the optimizer|loading

import torch

from tests.silent import toy

with torch.device("cpu"):
    source, model = toy.mlp(out=4), toy.mlp(out=4)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
model.load_state_dict(source.state_dict(), assign=True)
for x, y in toy.batches(64, toy.class_data()):
    model.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
