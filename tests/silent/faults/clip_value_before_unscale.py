"""clip_grad_value_ at 0.5 on gradients that are 1024 times too large: every gradient becomes its sign. An
expert would unscale before. Class: order in a step, mixed precision."""

# ranks: 1
# expect: clip-before-unscale
# words: unscale_

import torch
from torch.nn.utils import clip_grad_value_

from tests.silent import toy

net = toy.mlp(out=4)
adam = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
for x, y in toy.batches(50, toy.class_data()):
    adam.zero_grad(set_to_none=True)
    scaled = scaler.scale(torch.nn.functional.cross_entropy(net(x), y))
    scaled.backward()
    clip_grad_value_(net.parameters(), clip_value=0.5)
    scaler.step(adam)
    scaler.update()
