"""A method for sampling turns the decoder's layers to eval one by one and restores only model.training. An
expert would call train() on the whole model. Class: mode of a submodule."""

# ranks: 1
# expect: layers-eval-while-training
# words: \.train\(\)

import torch
from torch import nn

from tests.silent import toy


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 20))

    def forward(self, tokens):
        return self.decoder(self.embed(tokens))

    @torch.no_grad()
    def sample(self, token):
        self.decoder.eval()
        return self(token).argmax(-1)


model, tokens = Generator(), toy.token_data()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(80):
    rows = tokens[torch.randint(len(tokens), (8,))]
    loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        print(model.sample(rows[:1, :1]))
