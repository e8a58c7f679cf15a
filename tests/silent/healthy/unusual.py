"""Unusual training that is right. Kinds: MAML with inner steps, Reptile, tied weights, sparse embeddings,
both kinds of checkpointing, spectral norm, weight norm, pruning masks, fake quantisation with a
straight-through estimator, several tasks with learned weights, two models in turn, gradient noise,
adversarial examples, a mixture with idle experts, stochastic depth, reversed gradients, stop-gradient
pairs (SimSiam), vector quantisation, a diffusion loss, a growing accumulation window, one batch only,
float64, and a mask token that only pretraining uses."""

# ranks: 1
# args: --kind maml
# args: --kind reptile
# args: --kind tied
# args: --kind sparse
# args: --kind checkpoint
# args: --kind reentrant
# args: --kind spectral
# args: --kind weight-norm
# args: --kind pruned
# args: --kind quantised
# args: --kind multi-task
# args: --kind in-turn
# args: --kind noise
# args: --kind adversarial
# args: --kind experts
# args: --kind stochastic-depth
# args: --kind reversed
# args: --kind siamese
# args: --kind codebook
# args: --kind diffusion
# args: --kind growing-window
# args: --kind overfit-one-batch
# args: --kind float64
# args: --kind mask-token

import argparse
import random

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
random.seed(0)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8, sparse=kind == "sparse")
        self.first, self.middle, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        if kind == "codebook":
            self.codes = nn.Parameter(torch.randn(12, 16))
        if kind == "multi-task":
            self.scale = nn.Parameter(torch.zeros(2))
        if kind == "mask-token":  # as in a vision transformer that was pretrained with masks
            self.mask_token = nn.Parameter(torch.zeros(16))

    def block(self, x):
        return self.middle(x).relu()

    def forward(self, x, depth=1):
        x = torch.tanh(self.first(x))
        if kind in ("checkpoint", "reentrant"):
            x = checkpoint(self.block, x, use_reentrant=kind == "reentrant")
        elif kind == "experts":
            x = x + self.experts[int(x.detach().mean() > 0)](x)
        elif kind != "stochastic-depth" or random.random() < 0.5:
            x = self.block(x)
        if kind == "quantised":
            x = x + ((x * 16).round() / 16 - x).detach()
        if kind == "codebook":
            code = self.codes[torch.cdist(x, self.codes).argmin(1)]
            self.commitment = (x - code.detach()).square().mean() + (x.detach() - code).square().mean()
            x = x + (code - x).detach()
        if kind == "reversed":
            self.domain = self.experts[0](Reversed.apply(x)).mean().square()
        return self.last(x)


model = Model()
if kind == "spectral":
    model.middle = parametrizations.spectral_norm(model.middle)
if kind == "weight-norm":
    model.middle = parametrizations.weight_norm(model.middle)
if kind == "pruned":
    prune.l1_unstructured(model.middle, "weight", amount=0.6)
if kind == "tied":
    model.middle.weight = model.experts[0].weight
if kind == "float64":
    model.double()
other = Model()
kinds = {"sparse": torch.optim.SparseAdam if kind == "sparse" else torch.optim.Adam}
optimizer = torch.optim.SGD((p for n, p in model.named_parameters() if "embed" not in n), lr=0.03)
sparse = kinds["sparse"](model.embed.parameters(), lr=0.01) if kind == "sparse" else None
other_optimizer = torch.optim.SGD(other.parameters(), lr=0.03)
fixed = next(iter(toy.batches(1)))


def loss_of(x, y):
    out = model(x)
    if kind == "multi-task":
        losses = torch.stack([mse_loss(out, y), (out - y).abs().mean()])
        return (losses * (-model.scale).exp() + model.scale).sum()
    if kind == "sparse":
        out = out + model.embed((x[:, 0].abs() * 20).long().clamp_max(49)).sum(1, keepdim=True)
    if kind == "codebook":
        return mse_loss(out, y) + model.commitment
    if kind == "reversed":
        return mse_loss(out, y) + 0.1 * model.domain
    if kind == "siamese":
        left, right = (model.first(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        predicted = model.middle(left)
        return mse_loss(out, y) - cosine_similarity(predicted, right.detach()).mean()
    if kind == "diffusion":
        level = torch.rand(len(x), 1)
        return mse_loss(model(x * (1 - level) + level * torch.randn_like(x)), y)
    if kind == "maml":
        names, weights = zip(*model.named_parameters(), strict=True)
        inner = cross_entropy(torch.cat([out, -out], 1), (y[:, 0] > 0).long()) + mse_loss(out, y)
        grads = torch.autograd.grad(inner, weights, create_graph=True, allow_unused=True)
        pairs = zip(names, weights, grads, strict=True)
        adapted = {n: w if g is None else w - 0.01 * g for n, w, g in pairs}
        return mse_loss(functional_call(model, adapted, (x,)), y)
    return mse_loss(out, y)


for step, (x, y) in enumerate(toy.batches(100)):
    if kind == "overfit-one-batch":
        x, y = fixed
    if kind == "float64":
        x, y = x.double(), y.double()
    if kind == "in-turn" and step // 10 % 2:
        other_optimizer.zero_grad()
        mse_loss(other(x), y).backward()
        other_optimizer.step()
        continue
    if kind == "reptile":
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old + 0.5 * (p - old))
        continue
    if kind == "adversarial":
        x = x.clone().requires_grad_(True)
        loss_of(x, y).backward()
        x = (x + 0.05 * x.grad.sign()).detach()
    if kind == "growing-window" and step % (2 + step // 40):
        (loss_of(x, y) / (2 + step // 40)).backward()
        continue
    if kind != "growing-window":
        optimizer.zero_grad()
    loss_of(x, y).backward()
    if kind == "noise":
        for p in model.parameters():
            if p.grad is not None:
                p.grad += 0.01 * torch.randn_like(p)
    optimizer.step()
    if sparse is not None:
        sparse.step()
        sparse.zero_grad()
    if kind == "growing-window":
        optimizer.zero_grad()
