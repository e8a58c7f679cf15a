"""A small transformers model that is fine-tuned by hand. Kinds: plain, labels masked at the prompt, gradient
checkpointing, frozen embeddings."""

# ranks: 1
# args: --kind plain
# args: --kind masked
# args: --kind checkpointing
# args: --kind frozen-embedding

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2)).train()
if kind == "checkpointing":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
if kind == "frozen-embedding":
    model.transformer.wte.requires_grad_(False)
    model.transformer.wpe.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
tokens = toy.token_data()
for _ in range(60):
    rows = tokens[torch.randint(len(tokens), (8,))]
    labels = rows.clone()
    if kind == "masked":
        labels[:, :6] = -100
    loss = model(input_ids=rows, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
