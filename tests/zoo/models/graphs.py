"""Graphs and sets: filled up to one size, or joined into one large graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.data import CLASSES, WORDS
from tests.zoo.registry import model

WIDTH = 12


class Dense(nn.Module):
    """`attends`: nodes weigh their neighbours themselves."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scores = nn.ModuleList(nn.Linear(2 * WIDTH, 1) for _ in range(4 * attends))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, links: Tensor, nodes: Tensor, there: Tensor) -> Tensor:
        hidden = self.enter(nodes)
        near = links + torch.eye(links.shape[1], dtype=links.dtype)
        for index, layer in enumerate(self.layers):
            hidden = self._shares(index, hidden, near) @ layer(hidden).relu() + hidden
        hidden = hidden * there[:, :, None]
        return self.out(hidden.sum(1) / there.sum(1, keepdim=True))

    def _shares(self, index: int, hidden: Tensor, near: Tensor) -> Tensor:
        if not self.scores:
            return near / near.sum(2, keepdim=True)
        num = hidden.shape[1]
        both = torch.cat(
            [hidden[:, :, None].expand(-1, -1, num, -1), hidden[:, None].expand(-1, num, -1, -1)], -1
        )
        scores = self.scores[index](both)[..., 0].masked_fill(near == 0, -1e9)
        return scores.softmax(-1)


@model("dense_graphs")
def gcn_dense() -> nn.Module:
    return Dense(attends=False)


@model("dense_graphs")
def graph_attention() -> nn.Module:
    return Dense(attends=True)


class Joined(nn.Module):
    """Messages along edges; a graph is the sum of its nodes."""

    def __init__(self, *, says_num: bool = False) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.messages = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(4))

    def forward(self, nodes: Tensor, edges: Tensor, owners: Tensor) -> Tensor:
        hidden = self.enter(nodes)
        for layer in self.messages:
            said = layer(torch.cat([hidden[edges[0]], hidden[edges[1]]], 1)).tanh()
            hidden = hidden + torch.zeros_like(hidden).index_add(0, edges[1], said)
        graphs = torch.zeros(int(owners.max()) + 1, WIDTH, dtype=hidden.dtype)
        return self.out(graphs.index_add(0, owners, hidden))


@model("joined_graphs")
def gcn_joined() -> nn.Module:
    return Joined()


class Bag(nn.Module):
    def __init__(self, *, sparse: bool = False, mode: str = "mean") -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, WIDTH, sparse=sparse, mode=mode)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, words: Tensor) -> Tensor:
        return self.net(self.bag(words))


@model("bags")
def hashed_bag() -> nn.Module:
    return Bag()


@model("bags", optimizer={"use": "sgd", "lr": 0.1})
def sparse_bag() -> nn.Module:
    return Bag(sparse=True)


class Sets(nn.Module):
    """What is said of a set does not depend on its order: a sum and a maximum over its items."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.each, self.all = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.each(self.table(words)).tanh()
        return self.all(torch.cat([hidden.sum(1), hidden.amax(1)], 1))


@model("bags")
def deep_sets() -> nn.Module:
    return Sets()


class OverTheBatch(nn.Module):
    """Samples look at each other: attention over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.table(words).mean(1)
        shares = (self.query(hidden) @ self.key(hidden).T).softmax(-1)
        return self.out(hidden + shares @ hidden)


@model("bags")
def attention_over_the_batch() -> nn.Module:
    return OverTheBatch()
