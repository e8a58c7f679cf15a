"""Learning from rewards: the loss is noisy and need not fall, networks are evaluated between updates, and
target networks are copied. Kinds: policy gradient, actor and critic with one loss, Q-learning with a
target network and a replay memory, the same with a soft target, PPO epochs on one rollout, SAC-like with
three optimizers."""

# ranks: 1
# args: --kind policy
# args: --kind actor-critic
# args: --kind dqn
# args: --kind soft-target
# args: --kind ppo
# args: --kind sac

import argparse
import copy
import random

import torch
from torch.nn import functional as F

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
random.seed(0)
actor, critic = toy.mlp(4, 3), toy.mlp(4, 1 if kind in ("actor-critic", "ppo") else 3)
target = copy.deepcopy(critic).eval()
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
memory = []


def rollout(num=32):
    states = torch.randn(num, 4)
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=actor(states)).sample()
    rewards = (actions == states[:, :3].argmax(1)).float() + 0.1 * torch.randn(num)
    return states, actions, rewards


def log_probabilities(states, actions):
    return torch.distributions.Categorical(logits=actor(states)).log_prob(actions)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def q_step(states, actions, rewards):
    with torch.no_grad():
        goal = rewards + 0.5 * target(states).max(1).values
    values = critic(states).gather(1, actions[:, None]).squeeze(1)
    update(critic_optimizer, F.smooth_l1_loss(values, goal))


for step in range(80):
    states, actions, rewards = rollout()
    if kind == "policy":
        gain = rewards - rewards.mean()
        update(actor_optimizer, -(log_probabilities(states, actions) * gain).mean())
    elif kind == "actor-critic":
        value = critic(states).squeeze(1)
        gain = (rewards - value).detach()
        loss = -(log_probabilities(states, actions) * gain).mean() + (value - rewards).square().mean()
        critic_optimizer.zero_grad()
        update(actor_optimizer, loss)
        critic_optimizer.step()
    elif kind == "ppo":
        old = log_probabilities(states, actions).detach()
        for _ in range(4):
            ratio = (log_probabilities(states, actions) - old).exp()
            gain = rewards - critic(states).squeeze(1).detach()
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            update(actor_optimizer, loss)
            update(critic_optimizer, F.mse_loss(critic(states).squeeze(1), rewards))
    else:
        memory.extend(zip(states, actions, rewards, strict=True))
        q_step(*(torch.stack(items) for items in zip(*random.sample(memory, 32), strict=True)))
        if kind == "dqn" and step % 10 == 0:
            target.load_state_dict(critic.state_dict())
        elif kind != "dqn":
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.data.lerp_(fast.data, 0.02)
        if kind == "sac":
            choice = F.softmax(actor(states), 1)
            update(actor_optimizer, (choice * (0.1 * choice.log() - critic(states).detach())).sum(1).mean())
