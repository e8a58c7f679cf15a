"""Idioms of public training scripts. Each kind is the function of that name."""

# ranks: 1
# args: --kind fetched-without-gradients
# args: --kind mean-teacher
# args: --kind step-in-backward
# args: --kind cancelled-gradients
# args: --kind lookahead
# args: --kind two-scalers
# args: --kind gradient-penalty-hook
# args: --kind trainer-class
# args: --kind stateful-recurrence
# args: --kind snapshot-ensemble

import argparse
import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


def make_model():
    return nn.Sequential(toy.norm_net(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Prefetcher:
    """Reads the next batch ahead; its copies need no gradients."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.load()

    @torch.no_grad()
    def load(self):
        self.next = next(self.batches, None)
        if self.next is not None:
            x, y = self.next
            self.next = (x - x.mean(0)) / x.std(0), y

    def take(self):
        batch = self.next
        self.load()
        return batch


def fetched_without_gradients():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(toy.class_data(), 16, shuffle=True)
    for _ in range(8):
        prefetcher = Prefetcher(loader)
        while (batch := prefetcher.take()) is not None:
            update(optimizer, cross_entropy(model(batch[0]), batch[1]))


def mean_teacher():
    """The teacher stays in training mode, as in the original."""
    model = make_model()
    teacher = copy.deepcopy(model)
    for p in teacher.parameters():
        p.detach_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, y) in enumerate(toy.batches(120, toy.class_data())):
        logits = model(x + 0.1 * torch.randn_like(x))
        goal = teacher(x + 0.1 * torch.randn_like(x))
        consistency = mse_loss(logits.softmax(1), goal.softmax(1).detach())
        update(optimizer, cross_entropy(logits[:4], y[:4]) + consistency)
        decay = min(1 - 1 / (step + 1), 0.97)
        for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
            slow.data.mul_(decay).add_(fast.data, alpha=1 - decay)


def step_in_backward():
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is complete."""
    model = make_model()
    optimizers = {p: torch.optim.AdamW([p], lr=2e-3) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in toy.batches(120, toy.class_data()):
        cross_entropy(model(x), y).backward()


def cancelled_gradients():
    """The last layer is not trained in the first epochs, as in DINO: its gradients are set to None."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, y) in enumerate(toy.batches(120, toy.class_data())):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if step < 40:
            for p in model[3].parameters():
                p.grad = None
        optimizer.step()


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, which shares its groups."""

    def __init__(self, optimizer, every=5, share=0.5):
        self.optimizer, self.every, self.share, self.num = optimizer, every, share, 0
        super().__init__(optimizer.param_groups, {})
        self.param_groups = optimizer.param_groups
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.num += 1
        if self.num % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, old in zip(group["params"], slow, strict=True):
                    old.lerp_(p, self.share)
                    p.copy_(old)
        return loss


def lookahead():
    model = make_model()
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=2e-3))
    for x, y in toy.batches(120, toy.class_data()):
        update(optimizer, cross_entropy(model(x), y))


def two_scalers():
    generator, critic = toy.mlp(4, 8), toy.mlp(8, 1)
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3) for net in (generator, critic)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in optimizers]
    for real, _ in toy.batches(100):
        fake = generator(torch.randn(len(real), 4))
        losses = (
            -critic(fake).mean(),
            (1 - critic(real)).relu().mean() + (1 + critic(fake.detach())).relu().mean(),
        )
        for number in (1, 0):
            optimizers[number].zero_grad()
            loss = losses[number] if number else -critic(fake).mean()
            scalers[number].scale(loss).backward()
            scalers[number].unscale_(optimizers[number])
            nn.utils.clip_grad_norm_((generator, critic)[number].parameters(), 1.0)
            scalers[number].step(optimizers[number])
            scalers[number].update()


def gradient_penalty_hook():
    """Gradients are clipped by hooks of the parameters, which are registered once."""
    model = make_model()
    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in toy.batches(120, toy.class_data()):
        update(optimizer, cross_entropy(model(x), y))


class Trainer:
    """A small trainer with callbacks, a history and the best weights."""

    def __init__(self, model):
        self.model, self.history, self.best, self.best_loss = model, [], None, float("inf")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.train_loader = DataLoader(toy.class_data(), 16, shuffle=True, drop_last=True)
        self.test_loader = DataLoader(toy.class_data(96, seed=9), 32)

    def run_epoch(self, loader, is_training):
        self.model.train(is_training)
        total = 0.0
        with torch.set_grad_enabled(is_training):
            for x, y in loader:
                loss = cross_entropy(self.model(x), y)
                if is_training:
                    update(self.optimizer, loss)
                total += loss.item()
        return total / len(loader)

    def fit(self, epochs):
        for _ in range(epochs):
            losses = self.run_epoch(self.train_loader, True), self.run_epoch(self.test_loader, False)
            self.history.append(losses)
            if losses[1] < self.best_loss:
                self.best, self.best_loss = copy.deepcopy(self.model.state_dict()), losses[1]
        self.model.load_state_dict(self.best)
        self.run_epoch(self.test_loader, False)


def trainer_class():
    Trainer(make_model()).fit(8)


def stateful_recurrence():
    """The hidden state goes from one batch of a text to the next, detached in place."""
    cell, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 20)
    embed = nn.Embedding(20, 8)
    modules = nn.ModuleList([cell, head, embed])
    optimizer = torch.optim.SGD(modules.parameters(), lr=1.0)
    tokens = toy.token_data(16, 1201)
    state = None
    for start in range(0, 1200, 10):
        part, goal = tokens[:, start : start + 10], tokens[:, start + 1 : start + 11]
        state = None if state is None else tuple(each.detach_() for each in state)
        out, state = cell(embed(part), state)
        optimizer.zero_grad()
        cross_entropy(head(out).flatten(0, 1), goal.flatten()).backward()
        nn.utils.clip_grad_norm_(modules.parameters(), 0.25)
        optimizer.step()


def snapshot_ensemble():
    """The rate restarts, and at the end of each cycle a copy joins the ensemble that is evaluated."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(toy.class_data(), 16, shuffle=True)
    members = []
    for _ in range(4):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(loader))
        for _ in range(3):
            for x, y in loader:
                update(optimizer, cross_entropy(model(x), y))
                scheduler.step()
        members.append(copy.deepcopy(model).eval())
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        with torch.no_grad():
            for x, _ in DataLoader(toy.class_data(96, seed=9), 32):
                sum(member(x).softmax(1) for member in members)


globals()[kind.replace("-", "_")]()
