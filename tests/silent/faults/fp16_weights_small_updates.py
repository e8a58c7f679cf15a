"""Weights in float16 with SGD at a small rate: updates below half a unit in the last place change nothing. An
expert would keep float32 master weights. Class: updates lost to rounding."""

# ranks: 1
# expect: weights-unchanged
# words: float32

import torch

from tests.silent import toy

half = toy.mlp(out=4).half()
sgd = torch.optim.SGD(half.parameters(), lr=1e-5)
for x, y in toy.batches(80, toy.class_data()):
    loss = torch.nn.functional.cross_entropy(half(x.half()).float(), y)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
