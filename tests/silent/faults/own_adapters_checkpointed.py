"""The script's own adapters around frozen layers, in re-entrant checkpoints after a frozen embedding: only
the head trains. An expert would pass use_reentrant=False. Class: trainable, without a gradient."""

# ranks: 1
# expect: no-parameter-gradient
# words: use_reentrant=False

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.silent import toy


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


embedding = nn.Embedding(20, 16).requires_grad_(False)
blocks = nn.ModuleList(nn.Sequential(Adapted(nn.Linear(16, 16)), nn.GELU()) for _ in range(3))
head = nn.Linear(16, 20)
model = nn.ModuleList([embedding, blocks, head])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
tokens = toy.token_data()
for step in range(80):
    batch = tokens[torch.randint(len(tokens), (16,))]
    hidden = embedding(batch[:, :-1])
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=True)
    optimizer.zero_grad()
    cross_entropy(head(hidden).flatten(0, 1), batch[:, 1:].flatten()).backward()
    optimizer.step()
