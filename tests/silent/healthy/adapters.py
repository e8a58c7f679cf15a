"""Small additions to a frozen model. Kinds: LoRA (whose A has no gradient in the first step), LoRA that is
merged for a validation and separated again, prompt tuning, a side network, biases of a bfloat16 model."""

# ranks: 1
# args: --kind lora
# args: --kind merged
# args: --kind prompt
# args: --kind side
# args: --kind bitfit-bf16

import argparse

import torch
from torch import nn

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class LowRank(nn.Module):
    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / 4)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T

    @torch.no_grad()
    def merge(self, sign):
        self.layer.weight += sign * self.b @ self.a


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = toy.mlp(8, 4).requires_grad_(False)
        if kind == "bitfit-bf16":
            self.base.bfloat16()
            self.base[0].bias.requires_grad_(True)
        if kind in ("lora", "merged"):
            self.base[0], self.base[2] = LowRank(self.base[0]), LowRank(self.base[2])
        self.prompt = nn.Parameter(torch.zeros(8), requires_grad=kind == "prompt")
        self.side = toy.mlp(8, 4) if kind == "side" else None

    def forward(self, x):
        if kind == "bitfit-bf16":
            return self.base(x.bfloat16()).float()
        out = self.base(x + self.prompt)
        return out if self.side is None else out + self.side(x)


model = Tuned()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-2)
for step, (x, y) in enumerate(toy.batches(90, toy.class_data())):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if kind == "merged" and step % 30 == 29:
        for sign in (1, -1):
            for layer in (model.base[0], model.base[2]):
                layer.merge(sign)
            with torch.no_grad():
                model(x)
