"""The distance of two equal rows is sqrt(0), whose gradient is infinite times 0: NaN in all weights from that
step on. An expert would add an epsilon under the root. Class: not finite."""

# ranks: 1
# expect: loss-not-finite
# words: set_detect_anomaly|sqrt|step

import torch

from tests.silent import toy

model = toy.mlp(out=6)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (x, _) in enumerate(toy.batches(80)):
    other = x.flip(0)
    if step == 40:
        other[3] = x[3]
    distance = (model(x) - model(other)).square().sum(1).sqrt()
    loss = (1 - distance).relu().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
