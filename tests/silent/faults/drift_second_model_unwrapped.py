"""The encoder is wrapped and the decoder is not, though one optimizer trains both: the decoders go their own
ways. An expert would wrap both, or one module with both. Class: weights drift, a part is not averaged."""

# ranks: 2
# expect: ranks-drifted
# words: wrap|DistributedDataParallel|averag

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
encoder = DistributedDataParallel(toy.mlp(out=6))
decoder = toy.mlp(width=6, out=8)
params = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-3)
for step in range(64):
    x, _ = toy.rank_batch(step)
    loss = (decoder(encoder(x)) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
toy.end_group()
