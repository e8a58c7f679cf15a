"""With accumulation over 4 micro-batches the scheduler is stepped in each of them, so a warm-up and decay of
100 updates is over after 25. An expert would step it beside the optimizer. Class: scheduler frequency."""

# ranks: 1
# expect: scheduler-steps-often
# words: scheduler

import torch

from tests.silent import toy

UPDATES, ACCUMULATE = 50, 4
net = toy.mlp(out=4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
linear = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=UPDATES)
for micro, (x, y) in enumerate(toy.batches(UPDATES * ACCUMULATE, toy.class_data(), size=4)):
    (torch.nn.functional.cross_entropy(net(x), y) / ACCUMULATE).backward()
    if micro % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
    linear.step()
