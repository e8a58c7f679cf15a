"""The hand-written all-reduce comes after optimizer.step and zero_grad clears what it averaged. An expert
would average between backward and step. Class: weights drift, own averaging too late."""

# ranks: 2
# expect: ranks-drifted
# words: averag|all_reduce|before

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.silent import toy

toy.init_group()
net = toy.mlp(out=4)
for tensor in net.state_dict().values():
    dist.broadcast(tensor, src=0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for x, y in toy.batches(60, toy.class_data(seed=30 + toy.RANK)):
    optimizer.zero_grad()
    cross_entropy(net(x), y).backward()
    optimizer.step()
    for weight in net.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= toy.WORLD
toy.end_group()
