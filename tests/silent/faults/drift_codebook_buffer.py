"""A vector quantizer's codebook is a buffer that each rank updates with its own batch, and
broadcast_buffers=False leaves it so. An expert would average the update. Class: weights drift, buffers."""

# ranks: 2
# expect-check: ranks-drifted
# words: buffer|codes

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.register_buffer("codes", torch.randn(16, 4))

    def forward(self, x):
        latent = self.encoder(x)
        index = torch.cdist(latent, self.codes).argmin(1)
        with torch.no_grad():
            self.codes[index] = torch.lerp(self.codes[index], latent, 0.05)
        code = latent + (self.codes[index] - latent).detach()
        return self.decoder(code), latent, self.codes[index]


toy.init_group()
model = DistributedDataParallel(Quantizer(), broadcast_buffers=False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    x, _ = toy.rank_batch(step)
    decoded, latent, code = model(x)
    loss = (decoded - x).square().mean() + 0.2 * (latent - code).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
toy.end_group()
