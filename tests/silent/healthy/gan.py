"""Two networks trained against each other: the generator's backward pass leaves gradients in the critic too,
which are cleared before the critic's own. Kinds: standard, WGAN with clipped weights, WGAN with a gradient
penalty, hinge loss with five critic steps, R1, an average of the generator."""

# ranks: 1
# args: --kind standard
# args: --kind wgan
# args: --kind penalty
# args: --kind hinge
# args: --kind r1
# args: --kind ema

import argparse
import copy

import torch
from torch.nn import functional as F

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
generator, critic = toy.mlp(4, 8), toy.mlp(8, 1)
average = copy.deepcopy(generator).requires_grad_(False)
rate = 5e-5 if kind == "wgan" else 1e-3
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=rate)
optimizer_d = torch.optim.RMSprop(critic.parameters(), lr=rate)


def critic_loss(real, fake):
    if kind in ("standard", "r1", "ema"):
        return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
    if kind == "hinge":
        return (1 - critic(real)).relu().mean() + (1 + critic(fake)).relu().mean()
    return critic(fake).mean() - critic(real).mean()


def penalty(points):
    points = points.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean() if kind == "penalty" else slope.square().sum(1).mean()


def train_critic(real):
    fake = generator(torch.randn(len(real), 4)).detach()
    loss = critic_loss(real, fake)
    if kind in ("penalty", "r1"):
        loss = loss + 10 * penalty(torch.lerp(real, fake, torch.rand(len(real), 1)))
    optimizer_d.zero_grad()
    loss.backward()
    optimizer_d.step()
    if kind == "wgan":
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)


for step, (real, _) in enumerate(toy.batches(100)):
    train_critic(real)
    if kind in ("wgan", "hinge") and step % 5:
        continue
    optimizer_g.zero_grad()
    F.softplus(-critic(generator(torch.randn(len(real), 4)))).mean().backward()
    optimizer_g.step()
    if kind == "ema":
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), generator.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
