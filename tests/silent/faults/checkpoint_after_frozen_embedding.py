"""Re-entrant checkpointing of blocks after a frozen embedding: no input requires a gradient, so the first
block is cut off. An expert would pass use_reentrant=False. Class: cut graph, checkpointing."""

# ranks: 1
# expect: no-parameter-gradient
# words: use_reentrant

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.silent import toy


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16).requires_grad_(False)
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(checkpoint(self.block, self.embed(tokens), use_reentrant=True))


model = Decoder()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
tokens = toy.token_data()
for step in range(60):
    rows = tokens[torch.randint(len(tokens), (8,))]
    logits = model(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
