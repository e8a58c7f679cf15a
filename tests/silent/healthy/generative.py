"""Generative models and optimised inputs. Each kind is the function of that name."""

# ranks: 1
# args: --kind vae-annealed
# args: --kind codebook-averaged
# args: --kind codebook-module
# args: --kind critic-in-one-module
# args: --kind diffusion-average
# args: --kind flow
# args: --kind energy
# args: --kind style
# args: --kind cycle
# args: --kind inversion
# args: --kind perceptual
# args: --kind beta-large

import argparse
import copy
import itertools
import random

import torch
from torch import nn
from torch.nn.functional import mse_loss, softplus

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
random.seed(0)


def adam(*modules, rate=2e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=rate)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def vae_annealed(num=500, largest=1.0):
    """The weight of the divergence rises from 0, and the loss with it."""
    encoder, decoder = toy.mlp(8, 8), toy.mlp(4, 8)
    optimizer = adam(encoder, decoder, rate=3e-3)
    for step, (x, _) in enumerate(toy.batches(num, size=64)):
        mean, logvar = encoder(x).chunk(2, 1)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        reconstruction = (decoder(z) - x).square().sum(1).mean() / 2
        divergence = 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(1).mean()
        update(optimizer, reconstruction + largest * min(1.0, step / (0.6 * num)) * divergence)


def beta_large():
    vae_annealed(400, 20.0)


class AveragedCodebook(nn.Module):
    """As in the common implementations: the codes are moving averages, written with `.data`."""

    def __init__(self, num=12, width=16):
        super().__init__()
        self.codes = nn.Embedding(num, width)
        self.register_buffer("sizes", torch.ones(num))
        self.sums = nn.Parameter(self.codes.weight.detach().clone())
        self.looked_up = kind == "codebook-module"

    def forward(self, x):
        index = torch.cdist(x, self.codes.weight).argmin(1)
        picked = nn.functional.one_hot(index, len(self.sizes)).float()
        code = self.codes(index) if self.looked_up else picked @ self.codes.weight
        if self.training:
            self.sizes.mul_(0.95).add_(picked.sum(0), alpha=0.05)
            self.sums.data.mul_(0.95).add_(picked.T @ x.detach(), alpha=0.05)
            self.codes.weight.data.copy_(self.sums.data / self.sizes.clamp_min(1e-3)[:, None])
        return x + (code - x).detach(), (code.detach() - x).square().mean()


def codebook_averaged():
    encoder, codebook, decoder = toy.mlp(8, 16), AveragedCodebook(), toy.mlp(16, 8)
    model = nn.ModuleList([encoder, codebook, decoder])
    optimizer = adam(model)
    for x, _ in toy.batches(120):
        code, commitment = codebook(encoder(x))
        update(optimizer, mse_loss(decoder(code), x) + 0.25 * commitment)


codebook_module = codebook_averaged


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.generator = toy.mlp(8, 1), toy.mlp(4, 8)


def critic_in_one_module():
    """WGAN: the critic's samples are not detached, so the generator gets gradients, and clears them."""
    pair = Pair()
    optimizer_d = torch.optim.RMSprop(pair.critic.parameters(), lr=2e-4)
    optimizer_g = torch.optim.RMSprop(pair.generator.parameters(), lr=2e-4)
    for step, (real, _) in enumerate(toy.batches(120)):
        fake = pair.generator(torch.randn(len(real), 4))
        update(optimizer_d, pair.critic(fake).mean() - pair.critic(real).mean())
        for p in pair.critic.parameters():
            p.data.clamp_(-0.1, 0.1)
        if step % 5 == 4:
            update(optimizer_g, -pair.critic(pair.generator(torch.randn(len(real), 4))).mean())


def diffusion_average():
    model = toy.mlp(9, 8, hidden=64)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = adam(model)
    levels = torch.linspace(0.99, 0.01, 50)
    for step, (x, _) in enumerate(toy.batches(150)):
        t = torch.randint(50, (len(x),))
        noise, level = torch.randn_like(x), levels[t][:, None]
        noisy = level.sqrt() * x + (1 - level).sqrt() * noise
        loss = (model(torch.cat([noisy, t[:, None] / 50], 1)) - noise).square().mean()
        if random.random() < 0.1:
            loss = loss * 0.5
        update(optimizer, loss)
        decay = min(0.99, (1 + step) / (10 + step))
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(decay).add_(fast, alpha=1 - decay)
        if step % 50 == 49:
            with torch.no_grad():
                sample = torch.randn(4, 8)
                for n in reversed(range(50)):
                    sample = sample - 0.02 * average(torch.cat([sample, torch.full((4, 1), n / 50)], 1))


def flow():
    layers = nn.ModuleList([toy.mlp(4, 8) for _ in range(4)])
    optimizer = adam(layers)
    for x, _ in toy.batches(120):
        total = torch.zeros(len(x))
        for number, layer in enumerate(layers):
            left, right = x.chunk(2, 1) if number % 2 else x.chunk(2, 1)[::-1]
            shift, scale = layer(left).chunk(2, 1)
            right = right * scale.tanh().exp() + shift
            total, x = total + scale.tanh().sum(1), torch.cat([left, right], 1)
        update(optimizer, (0.5 * x.square().sum(1) - total).mean())


def energy():
    """Contrastive divergence: Langevin steps with respect to the input, from a buffer of earlier samples."""
    model = toy.mlp(8, 1, hidden=32)
    optimizer = adam(model, rate=5e-4)
    samples = torch.randn(256, 8)
    for x, _ in toy.batches(100):
        index = torch.randint(256, (len(x),))
        fake = samples[index]
        for p in model.parameters():
            p.requires_grad = False
        for _ in range(5):
            fake.requires_grad_(True)
            (slope,) = torch.autograd.grad(model(fake).sum(), fake)
            fake = (fake - 0.1 * slope + 0.05 * torch.randn_like(fake)).detach()
        for p in model.parameters():
            p.requires_grad = True
        samples[index] = fake
        energies = model(x), model(fake)
        size = sum(e.square().mean() for e in energies)
        update(optimizer, energies[0].mean() - energies[1].mean() + 0.1 * size)


def style():
    """An image is optimised through a network in evaluation mode, whose weights stay trainable."""
    net = toy.norm_net(8, 16).eval()
    goal = net(torch.randn(32, 8)).detach()
    image = nn.Parameter(torch.randn(32, 8))
    optimizer = torch.optim.Adam([image], lr=0.02)
    for _ in range(120):
        update(optimizer, mse_loss(net(image), goal) + 1e-3 * image.abs().mean())


def inversion():
    """Pivotal tuning: first a code is optimised, then the generator around it."""
    generator = toy.mlp(4, 8)
    goal = torch.randn(1, 8)
    code = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([code], lr=0.05)
    for _ in range(60):
        update(optimizer, mse_loss(generator(code), goal))
    code = code.detach()
    optimizer = adam(generator, rate=5e-4)
    for _ in range(60):
        update(optimizer, mse_loss(generator(code), goal))


def perceptual():
    """A critic network of features that is fixed without requires_grad_(False), after the trained one."""
    model = nn.ModuleDict({"net": toy.norm_net(8, 8), "features": toy.mlp(8, 16)})
    model["features"].eval()
    optimizer = adam(model["net"])
    for x, _ in toy.batches(120):
        update(optimizer, mse_loss(model["features"](model["net"](x)), model["features"](x).detach()))


def cycle():
    forth, back, critic_a, critic_b = toy.mlp(8, 8), toy.mlp(8, 8), toy.mlp(8, 1), toy.mlp(8, 1)
    optimizer_g = torch.optim.Adam(itertools.chain(forth.parameters(), back.parameters()), lr=1e-3)
    optimizer_d = torch.optim.Adam(itertools.chain(critic_a.parameters(), critic_b.parameters()), lr=1e-3)
    pool = []
    for a, _ in toy.batches(120):
        b = torch.randn(len(a), 8) * 0.5 + 1
        for p in itertools.chain(critic_a.parameters(), critic_b.parameters()):
            p.requires_grad_(False)
        fake_b, fake_a = forth(a), back(b)
        loss = softplus(-critic_b(fake_b)).mean() + softplus(-critic_a(fake_a)).mean()
        update(optimizer_g, loss + 10 * (mse_loss(back(fake_b), a) + mse_loss(forth(fake_a), b)))
        for p in itertools.chain(critic_a.parameters(), critic_b.parameters()):
            p.requires_grad_(True)
        pool = [*pool[-49:], (fake_a.detach(), fake_b.detach())]
        old_a, old_b = random.choice(pool)
        optimizer_d.zero_grad()
        for critic, real, fake in ((critic_a, a, old_a), (critic_b, b, old_b)):
            (0.5 * (softplus(-critic(real)).mean() + softplus(critic(fake)).mean())).backward()
        optimizer_d.step()


globals()[kind.replace("-", "_")]()
