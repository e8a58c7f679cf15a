"""Two ranks that do not take the same steps, on purpose. Kinds: federated averaging, the same with different
numbers of local steps, with one class per rank, with an outer optimizer (DiLoCo), a learner that sends
weights to an actor, two experts of their own, a pipeline of two stages, elastic averaging, a population whose
weaker member copies the stronger, gossip averaging."""

# ranks: 2
# args: --kind averaging
# args: --kind uneven
# args: --kind one-class
# args: --kind outer
# args: --kind actor
# args: --kind experts
# args: --kind pipeline
# args: --kind elastic
# args: --kind population

import argparse
import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= toy.WORLD


def local_data():
    x, y = toy.class_data(512).tensors
    if kind == "one-class":
        return TensorDataset(x[y == toy.RANK][:96], y[y == toy.RANK][:96])
    num = 240 if kind == "uneven" and toy.RANK else 160
    return TensorDataset(x[toy.RANK :: 2][:num], y[toy.RANK :: 2][:num])


def train_clients():
    model = toy.mlp(8, 4)
    loader = DataLoader(local_data(), 16, shuffle=True)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(10):
        start = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            if kind == "outer":
                for p, old in zip(model.parameters(), start.parameters(), strict=True):
                    p.grad = old - p
                    p.copy_(old)
                average([p.grad for p in model.parameters()])
                outer.step()
            else:
                average([p.data for p in model.parameters()])


def learn_and_act():
    policy = toy.mlp(4, 3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(100):
        batch = torch.empty(32, 6)
        if toy.RANK == 1:
            states = torch.randn(32, 4)
            with torch.no_grad():
                actions = torch.distributions.Categorical(logits=policy(states)).sample()
            rewards = (actions == states[:, :3].argmax(1)).float() - 0.3
            batch = torch.cat([states, actions[:, None], rewards[:, None]], 1)
        dist.broadcast(batch, src=1)
        if toy.RANK == 0:
            chosen = torch.distributions.Categorical(logits=policy(batch[:, :4])).log_prob(batch[:, 4])
            optimizer.zero_grad()
            (-chosen * batch[:, 5]).mean().backward()
            optimizer.step()
        for p in policy.parameters():
            dist.broadcast(p.data, src=0)


def train_stages():
    stage = toy.mlp(8, 16) if toy.RANK == 0 else toy.mlp(16, 1)
    optimizer = torch.optim.Adam(stage.parameters(), lr=2e-3)
    for step in range(100):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        if toy.RANK == 0:
            hidden = stage(x)
            dist.send(hidden.detach(), 1)
            slope = torch.empty(16, 16)
            dist.recv(slope, 1)
            hidden.backward(slope)
        else:
            hidden = torch.empty(16, 16)
            dist.recv(hidden, 0)
            hidden.requires_grad_(True)
            mse_loss(stage(hidden), x.sum(1, keepdim=True) / 3).backward()
            dist.send(hidden.grad, 0)
        optimizer.step()


def train_alone():
    torch.manual_seed(toy.RANK)
    model = toy.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * (1 + toy.RANK))
    center = [p.detach().clone() for p in model.parameters()]
    for step in range(100):
        x, y = toy.rank_batch(step)
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind == "elastic" and step % 10 == 9:
            with torch.no_grad():
                mean = [p.detach().clone() for p in model.parameters()]
                average(mean)
                for p, slow, other in zip(model.parameters(), center, mean, strict=True):
                    slow.lerp_(other, 0.5)
                    p.lerp_(slow, 0.3)
        if kind == "population" and step % 25 == 24:
            losses = [torch.empty(()) for _ in range(toy.WORLD)]
            dist.all_gather(losses, loss.detach())
            best = int(torch.stack(losses).argmin())
            for p in model.parameters():
                dist.broadcast(p.data, src=best)
            for group in optimizer.param_groups:
                group["lr"] *= 1.2 if toy.RANK == 0 else 0.8


toy.init_group()
{"actor": learn_and_act, "pipeline": train_stages}.get(
    kind, train_alone if kind in ("experts", "elastic", "population") else train_clients
)()
toy.end_group()
