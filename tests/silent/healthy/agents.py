"""Reinforcement learning as the common implementations have it. Each kind is the function of that name."""

# ranks: 1
# args: --kind growing-values
# args: --kind rollout-epochs
# args: --kind deterministic
# args: --kind episodes
# args: --kind novelty
# args: --kind shared-encoder
# args: --kind aggregation
# args: --kind target-inside
# args: --kind evolution
# args: --kind preferences

import argparse
import copy
import random
from collections import deque

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy, logsigmoid, mse_loss, smooth_l1_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
random.seed(0)


class Balance:
    """A point that must be held near 0: the reward is 1 per step."""

    def reset(self):
        self.x, self.v, self.t = 0.1 * torch.randn(()).item(), 0.0, 0
        return self.observe()

    def observe(self):
        return torch.tensor([self.x, self.v])

    def step(self, action):
        self.v += 0.1 * (2 * action - 1) + 0.02 * torch.randn(()).item() + 0.02 * self.x
        self.x += 0.1 * self.v
        self.t += 1
        return self.observe(), 1.0, abs(self.x) > 1 or self.t >= 100


def adam(*modules, rate=3e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=rate)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def growing_values():
    """Q-learning with one optimizer: values start near 0 and grow, and the errors with them."""
    net = toy.mlp(2, 2, hidden=32)
    target = copy.deepcopy(net)
    optimizer = adam(net, rate=1e-3)
    replay = deque(maxlen=2000)
    environment = Balance()
    state = environment.reset()
    for step in range(1200):
        epsilon = max(0.05, 1 - step / 400)
        with torch.no_grad():
            action = random.randrange(2) if random.random() < epsilon else int(net(state).argmax())
        after, reward, is_over = environment.step(action)
        replay.append((state, action, reward, after, float(is_over)))
        state = environment.reset() if is_over else after
        if len(replay) < 64:
            continue
        columns = list(zip(*random.sample(replay, 32), strict=True))
        states, nexts = torch.stack(columns[0]), torch.stack(columns[3])
        actions, rewards, ends = (torch.tensor(columns[n]) for n in (1, 2, 4))
        with torch.no_grad():
            goal = rewards + 0.99 * (1 - ends) * target(nexts).max(1).values
        update(optimizer, smooth_l1_loss(net(states).gather(1, actions[:, None]).squeeze(1), goal))
        if step % 100 == 0:
            target.load_state_dict(net.state_dict())


def rollout_epochs():
    """PPO: several shuffled passes over each rollout with a DataLoader, the rate falls to 0."""
    body, policy, value = toy.mlp(2, 16), nn.Linear(16, 2), nn.Linear(16, 1)
    optimizer = adam(body, policy, value)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / 6)
    environment = Balance()
    state = environment.reset()
    for _ in range(6):
        rows = []
        with torch.no_grad():
            for _ in range(128):
                chosen = Categorical(logits=policy(body(state).relu()))
                action = chosen.sample()
                after, reward, is_over = environment.step(int(action))
                rows.append(
                    torch.cat([state, action[None], chosen.log_prob(action)[None], torch.tensor([reward])])
                )
                state = environment.reset() if is_over else after
        data = torch.stack(rows)
        returns = data[:, 4].flip(0).cumsum(0).flip(0) / 30
        for _ in range(4):
            for part, goal in DataLoader(TensorDataset(data, returns), 32, shuffle=True):
                hidden = body(part[:, :2]).relu()
                chosen = Categorical(logits=policy(hidden))
                estimate = value(hidden).squeeze(1)
                gain = (goal - estimate).detach()
                gain = (gain - gain.mean()) / (gain.std() + 1e-6)
                ratio = (chosen.log_prob(part[:, 2]) - part[:, 3]).exp()
                loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * mse_loss(estimate, goal) - 0.01 * chosen.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.5)
                optimizer.step()
        scheduler.step()


def deterministic():
    """DDPG: the actor's loss goes through the critic, whose gradients from it are cleared later."""
    actor, critic = toy.mlp(4, 1), toy.mlp(5, 1)
    actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer, critic_optimizer = adam(actor, rate=1e-3), adam(critic)
    for _ in range(150):
        states = torch.randn(64, 4)
        with torch.no_grad():
            actions = actor(states).tanh() + 0.3 * torch.randn(64, 1)
            rewards = -(actions - states[:, :1].tanh()).square()
            goal = rewards + 0.5 * critic_target(torch.cat([states, actor_target(states).tanh()], 1))
        update(critic_optimizer, mse_loss(critic(torch.cat([states, actions], 1)), goal))
        update(actor_optimizer, -critic(torch.cat([states, actor(states).tanh()], 1)).mean())
        for net, slow in ((actor, actor_target), (critic, critic_target)):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data.copy_(0.995 * old.data + 0.005 * p.data)


def episodes():
    """REINFORCE: the log probabilities of an episode wait in a list of the policy until it is over."""
    policy = toy.mlp(2, 2)
    policy.saved, policy.rewards = [], []
    optimizer = adam(policy)
    environment = Balance()
    average = 10.0
    for _ in range(100):
        state, is_over = environment.reset(), False
        while not is_over:
            chosen = Categorical(logits=policy(state))
            action = chosen.sample()
            policy.saved.append(chosen.log_prob(action))
            state, reward, is_over = environment.step(int(action))
            policy.rewards.append(reward)
        average = 0.05 * len(policy.rewards) + 0.95 * average
        returns = torch.tensor(policy.rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = [-log_prob * value for log_prob, value in zip(policy.saved, returns, strict=True)]
        update(optimizer, torch.stack(loss).sum())
        del policy.saved[:], policy.rewards[:]


def novelty():
    """Random network distillation: the target is never trained, its output is detached."""
    model = nn.ModuleDict({"predictor": toy.mlp(4, 8), "target": toy.mlp(4, 8)})
    optimizer = adam(model["predictor"])
    policy = toy.mlp(4, 3)
    policy_optimizer = adam(policy)
    for _ in range(120):
        states = torch.randn(32, 4)
        error = (model["predictor"](states) - model["target"](states).detach()).square().mean(1)
        chosen = Categorical(logits=policy(states))
        gain = error.detach() - error.detach().mean()
        update(policy_optimizer, -(chosen.log_prob(chosen.sample()) * gain).mean())
        update(optimizer, error.mean())


def shared_encoder():
    """SAC from pixels: the critic's optimizer trains the encoder, the actor sees detached features."""
    encoder, actor, critic = toy.mlp(8, 8), toy.mlp(8, 3), toy.mlp(8, 3)
    temperature = torch.zeros((), requires_grad=True)
    critic_optimizer, actor_optimizer = adam(encoder, critic), adam(actor)
    temperature_optimizer = torch.optim.Adam([temperature], lr=1e-2)
    for step in range(150):
        states = torch.randn(32, 8)
        features = encoder(states)
        actions = torch.randint(3, (32,))
        rewards = (actions == states[:, :3].argmax(1)).float()
        update(critic_optimizer, mse_loss(critic(features).gather(1, actions[:, None]).squeeze(1), rewards))
        if step % 2:
            continue
        chosen = Categorical(logits=actor(encoder(states).detach()))
        values = critic(encoder(states).detach()).detach()
        alpha = temperature.exp().detach()
        update(actor_optimizer, (chosen.probs * (alpha * chosen.logits - values)).sum(1).mean())
        update(temperature_optimizer, temperature.exp() * (chosen.entropy().mean() - 0.5).detach())


def aggregation():
    """DAgger: the data set grows with each iteration, and training starts again on all of it."""
    model = toy.mlp(8, 3)
    states, actions = [], []
    optimizer = adam(model)
    for _ in range(8):
        for _ in range(4):
            batch = torch.randn(32, 8)
            states.append(batch)
            actions.append(batch[:, :3].argmax(1))
        data = TensorDataset(torch.cat(states), torch.cat(actions))
        for x, y in DataLoader(data, 32, shuffle=True):
            update(optimizer, cross_entropy(model(x), y))


class Agent(nn.Module):
    """The target network is a part of the model, and all parameters are in the optimizer."""

    def __init__(self):
        super().__init__()
        self.net = toy.mlp(4, 3)
        self.target = copy.deepcopy(self.net)

    def forward(self, states, actions, rewards):
        values = self.net(states).gather(1, actions[:, None]).squeeze(1)
        goal = rewards + 0.5 * self.target(states).max(1).values
        return smooth_l1_loss(values, goal.detach())


def target_inside():
    agent = Agent()
    optimizer = adam(agent)
    for step in range(150):
        states, actions = torch.randn(32, 4), torch.randint(3, (32,))
        update(optimizer, agent(states, actions, (actions == states[:, :3].argmax(1)).float()))
        if step % 10 == 9:
            agent.target.load_state_dict(agent.net.state_dict())


def evolution():
    """Evolution strategies: gradients are estimated from returns and written into `grad`."""
    policy = toy.mlp(4, 1)
    optimizer = adam(policy, rate=1e-2)
    x = torch.randn(64, 4)
    params = list(policy.parameters())
    for _ in range(120):
        before = [p.detach().clone() for p in params]
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(4):
                noise = [torch.randn_like(p) for p in params]
                scores = []
                for sign in (1, -1):
                    for p, old, n in zip(params, before, noise, strict=True):
                        p.copy_(old + 0.05 * sign * n)
                    scores.append(-mse_loss(policy(x), x.sum(1, keepdim=True)))
                for p, n in zip(params, noise, strict=True):
                    grad = -(scores[0] - scores[1]) / 0.1 * n / 4
                    p.grad = grad if p.grad is None else p.grad + grad
            for p, old in zip(params, before, strict=True):
                p.copy_(old)
        optimizer.step()


def preferences():
    """DPO: a frozen reference in evaluation mode, its log probabilities computed once per batch."""
    policy = nn.Sequential(toy.mlp(8, 16, dropout=0.1), nn.Linear(16, 4))
    reference = copy.deepcopy(policy).eval()
    optimizer = adam(policy, rate=1e-3)
    for x, y in toy.batches(120, toy.class_data()):
        worse = (y + torch.randint(1, 4, y.shape)) % 4
        rows = torch.arange(len(y))
        with torch.no_grad():
            base = reference(x).log_softmax(1)
        now = policy(x).log_softmax(1)
        margin = (now[rows, y] - now[rows, worse]) - (base[rows, y] - base[rows, worse])
        update(optimizer, -logsigmoid(0.5 * margin).mean())


globals()[kind.replace("-", "_")]()
