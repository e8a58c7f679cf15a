"""The collate function masks the whole sequence with -100, prompt and answer: no token has a label. An expert
would look at the labels of a batch. Class: samples, constant labels, fine-tuning."""

# ranks: 1
# expect: loss-not-finite|labels-constant
# words: label|batch

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.silent import toy


def collate(rows):
    tokens = torch.stack(rows)
    labels = tokens.clone()
    labels[:, : tokens.shape[1]] = -100
    return {"input_ids": tokens, "labels": labels}


model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    for batch in DataLoader(toy.token_data(), batch_size=8, shuffle=True, collate_fn=collate):
        logits = model(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
