"""A helper for the accumulation is entered in every step, although the window has one micro-batch: no
gradient is ever averaged. An expert would enter no_sync() only before the last one. Class: weights drift."""

# ranks: 2
# expect: ranks-drifted
# words: no_sync

import contextlib

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy


@contextlib.contextmanager
def accumulating(net, every, number):
    with net.no_sync() if number % every == 0 else contextlib.nullcontext():
        yield


toy.init_group()
net = DistributedDataParallel(toy.norm_net())
optim = torch.optim.Adam(net.parameters(), lr=3e-3)
for number in range(80):
    with accumulating(net, 1, number):
        features, wanted_value = toy.rank_batch(number)
        F.smooth_l1_loss(net(features), wanted_value).backward()
    optim.step()
    optim.zero_grad()
toy.end_group()
