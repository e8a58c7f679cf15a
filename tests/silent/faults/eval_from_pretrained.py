"""from_pretrained returns a model in evaluation mode, and a plain loop fine-tunes it as it is. An expert
would call model.train() (Trainer does). Class: mode, Hugging Face."""

# ranks: 1
# expect: eval-while-training
# words: model\.train\(\)

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.silent import toy

config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2)
with tempfile.TemporaryDirectory() as folder:
    GPT2LMHeadModel(config).save_pretrained(folder)
    model = GPT2LMHeadModel.from_pretrained(folder)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = toy.token_data()
for _ in range(60):
    rows = tokens[torch.randint(len(tokens), (8,))]
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
