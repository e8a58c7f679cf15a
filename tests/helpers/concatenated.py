"""A person's own data whose batches lay their samples end to end, and models for it: graphs with the number
of the graph beside each node, packed sequences with their offsets, and what follows no rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 16


class Graphs:
    """Graphs of 4 to `max_nodes` nodes with some edges to each, all of one batch in one."""

    def __init__(self, samples: int = 256, max_nodes: int = 64) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.nodes = (4 + (max_nodes - 4) * torch.rand(samples, generator=drawn) ** 2).long().tolist()
        self.edges = [
            int(num * factor)
            for num, factor in zip(
                self.nodes, (2 + 3 * torch.rand(samples, generator=drawn)).tolist(), strict=True
            )
        ]

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> Any:
        return self.read_batch([index])

    def read_batch(self, indices: Sequence[int]) -> Any:
        starts = torch.tensor([0, *(self.nodes[index] for index in indices)]).cumsum(0)
        links = []
        for start, index in zip(starts.tolist(), indices, strict=False):
            drawn = torch.Generator().manual_seed(index)
            links.append(start + torch.randint(self.nodes[index], (2, self.edges[index]), generator=drawn))
        graph_of = torch.repeat_interleave(
            torch.arange(len(indices)), torch.tensor([self.nodes[index] for index in indices])
        )
        inputs = {
            "nodes": torch.ones(int(starts[-1]), FEATURES),
            "edges": torch.cat(links, dim=1),
            "graph_of": graph_of,
            "num_graphs": len(indices),
        }
        return inputs, torch.tensor([index % 4 for index in indices])


class GraphNet(nn.Module):
    """Sums over the edges of each node, and over the nodes of each graph (num_graphs, 4)."""

    def __init__(self, width: int = 64, *, reads_values: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, 4)
        self.reads_values = reads_values

    def forward(self, nodes: Tensor, edges: Tensor, graph_of: Tensor, num_graphs: int) -> Tensor:
        hidden = self.enter(nodes)
        for layer in self.layers:
            sent = F.relu(layer(hidden))[edges[0]]
            hidden = hidden + torch.zeros_like(hidden).index_add(0, edges[1], sent)
        if self.reads_values:
            num_graphs = int(graph_of.max()) + 1
        pooled = hidden.new_zeros(num_graphs, hidden.shape[1]).index_add(0, graph_of, hidden)
        logits: Tensor = self.leave(pooled)
        return logits


class Packed:
    """Sequences of 4 to `max_length` tokens, a batch in one row, with offsets and the longest length."""

    def __init__(self, samples: int = 256, max_length: int = 64) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.lengths = (4 + (max_length - 4) * torch.rand(samples, generator=drawn) ** 3).long().tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return self.read_batch([index])

    def read_batch(self, indices: Sequence[int]) -> Any:
        lengths = [self.lengths[index] for index in indices]
        tokens = torch.arange(sum(lengths)) % 50
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return {"tokens": tokens, "offsets": offsets, "longest": max(lengths)}, tokens


class PackedNet(nn.Module):
    """Tokens (N) -> logits (N, 50), with attention inside each sequence, padded for it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter, self.leave = nn.Embedding(50, width), nn.Linear(width, 50)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor, offsets: Tensor, longest: int) -> Tensor:
        hidden = self.enter(tokens)
        padded = hidden.new_zeros(len(offsets) - 1, longest, hidden.shape[1])
        scores = (padded @ self.mix(padded).transpose(1, 2)).softmax(-1)
        logits: Tensor = self.leave(hidden + F.gelu(self.mix(hidden)) + scores.sum() * 0)
        return logits


class Lists(Packed):
    """As sequences of their own in a list: what a batch is made of depends on its samples."""

    def read_batch(self, indices: Sequence[int]) -> Any:
        rows = [torch.ones(self.lengths[index], FEATURES) for index in indices]
        return (rows,), torch.tensor([index % 4 for index in indices])


class ListNet(GraphNet):
    def forward(self, rows: list[Tensor]) -> Tensor:  # type: ignore[override]
        hidden = [F.relu(self.layers[0](self.enter(row))).sum(dim=0) for row in rows]
        logits: Tensor = self.leave(torch.stack(hidden))
        return logits


class InPairs(Packed):
    """Every sample beside every other: more than as many times as many."""

    def read_batch(self, indices: Sequence[int]) -> Any:
        num = len(indices)
        return torch.ones(num * num, FEATURES), torch.zeros(num * num, dtype=torch.int64)


def pair_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 4))


def graphs(**sizes: int) -> tuple[Graphs, None]:
    return Graphs(**sizes), None


def packed(**sizes: int) -> tuple[Packed, None]:
    return Packed(**sizes), None


def lists() -> tuple[Lists, None]:
    return Lists(), None


def in_pairs() -> tuple[InPairs, None]:
    return InPairs(), None
