"""Two wrapped networks trained against each other by two ranks. Kinds: gradients of the critic switched off
while the generator trains, as in CycleGAN; both switched in turn, as in StyleGAN; five critic steps per step
of the generator; no switches, but detached samples."""

# ranks: 2
# args: --kind switched
# args: --kind both-switched
# args: --kind critic-steps
# args: --kind detached

import argparse

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
toy.init_group()
generator = DistributedDataParallel(toy.mlp(4, 8))
critic = DistributedDataParallel(toy.mlp(8, 1), broadcast_buffers=False)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
torch.manual_seed(toy.RANK)


def switch(model, on):
    for p in model.parameters():
        p.requires_grad = on


def train_critic(real):
    if kind in ("switched", "both-switched"):
        switch(critic, True)
    if kind == "both-switched":
        switch(generator, False)
    with torch.no_grad() if kind == "critic-steps" else torch.enable_grad():
        fake = generator(torch.randn(len(real), 4))
    fake = fake.detach()
    scores = critic(torch.cat([real, fake]))
    loss = F.softplus(-scores[: len(real)]).mean() + F.softplus(scores[len(real) :]).mean()
    optimizer_d.zero_grad()
    loss.backward()
    optimizer_d.step()


def train_generator(num):
    if kind in ("switched", "both-switched"):
        switch(critic, False)
    if kind == "both-switched":
        switch(generator, True)
    optimizer_g.zero_grad()
    loss = F.softplus(-critic(generator(torch.randn(num, 4)))).mean()
    loss.backward()
    optimizer_g.step()


for step in range(120):
    real, _ = toy.rank_batch(step)
    train_critic(real)
    if kind == "critic-steps" and step % 5:
        continue
    train_generator(len(real))
toy.end_group()
