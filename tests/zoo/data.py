"""Data sets: small, always the same, read in their own order, with samples of many kinds.

Each is 48 samples, three steps of 16, where it does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.zoo.registry import dataset

SAMPLES = 48
CLASSES = 5
FEATURES = 12
WORDS = 20
IGNORE_INDEX = -100


class Rows(Dataset[Any]):
    """Samples in a list."""

    def __init__(
        self, make: Callable[[torch.Generator, int], Any], num: int = SAMPLES, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = [make(generator, index) for index in range(num)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Joined(Rows):
    """Samples that become a batch by a function of their own."""

    def __init__(self, make: Any, join: Callable[[list[Any]], Any], num: int = SAMPLES) -> None:
        super().__init__(make, num)
        self._join = join

    def read_batch(self, indices: Sequence[int]) -> Any:
        return self._join([self.rows[index] for index in indices])


def numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def below(generator: torch.Generator, most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=generator)


@dataset("mlp_deep")
def classes() -> Rows:
    """Numbers with a class each."""
    return Rows(lambda g, i: (numbers(g, FEATURES), i * 7 % CLASSES))


@dataset("mlp_regression", "mse")
def regression() -> Rows:
    return Rows(lambda g, i: (numbers(g, FEATURES), numbers(g, 3)))


@dataset("mlp_regression", "mse")
def arrays() -> Rows:
    """Samples of numpy's."""
    return Rows(lambda g, i: (numbers(g, FEATURES).numpy(), np.float32(i % 3) * np.ones(3, np.float32)))


@dataset("line", "mse")
def scalars() -> Rows:
    """Python's own numbers."""
    return Rows(lambda g, i: (float(i) / SAMPLES, float(i % 5)))


@dataset("mlp_deep", last="keep", steps=5)
def uneven_tail() -> Rows:
    """Steps of 16, 16 and 9 samples."""
    return Rows(lambda g, i: (numbers(g, FEATURES), i * 7 % CLASSES), 41)


@dataset("mlp_deep", last="keep", steps=4)
def tail_of_one() -> Rows:
    """Steps of 16, 16 and 1 sample."""
    return Rows(lambda g, i: (numbers(g, FEATURES), i * 7 % CLASSES), 33)


@dataset("mlp_deep", accumulate=2, last="keep", steps=4)
def tail_in_parts() -> Rows:
    """Steps of 16, 16 and 3 samples, each in two parts."""
    return Rows(lambda g, i: (numbers(g, FEATURES), i * 7 % CLASSES), 35)


@dataset("lm_small")
def tokens() -> Rows:
    """Words with the next one at each place."""
    return Rows(lambda g, i: _next_words(below(g, WORDS, 9)))


def _next_words(words: Tensor) -> tuple[Tensor, Tensor]:
    return words[:-1], words[1:]


@dataset("lm_small")
def ragged() -> Rows:
    """Sentences of 2 to 8 words, filled up; what was filled up counts nothing."""
    return Rows(_make_ragged_sentence)


def _make_ragged_sentence(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
    words, targets = _next_words(below(generator, WORDS, 9))
    length = 2 + index * 5 % 7
    past = torch.arange(8) >= length
    return words.masked_fill(past, 0), targets.masked_fill(past, IGNORE_INDEX)


@dataset("lm_small")
def ragged_batches() -> Joined:
    """As above, where each batch is as long as its own longest sentence."""
    return Joined(_make_ragged_sentence, _pad_to_longest)


def _pad_to_longest(rows: list[Any]) -> tuple[Tensor, Tensor]:
    words, targets = (torch.stack([row[part] for row in rows]) for part in (0, 1))
    longest = int((targets != IGNORE_INDEX).sum(1).max())
    return words[:, :longest], targets[:, :longest]


@dataset("lm_small")
def masked() -> Rows:
    """Most targets count nothing; of some samples none counts."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        words, targets = _next_words(below(generator, WORDS, 9))
        hidden = torch.rand(8, generator=generator) < (1.0 if index % 3 == 0 else 0.6)
        return words, targets.masked_fill(hidden, IGNORE_INDEX)

    return Rows(sample)


@dataset("lm_small", steps=4)
def wholly_masked_step() -> Rows:
    """No target of the second step counts."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        words, targets = _next_words(below(generator, WORDS, 9))
        return words, torch.full_like(targets, IGNORE_INDEX) if 16 <= index < 32 else targets

    return Rows(sample)


@dataset("lm_masked", "model")
def dict_with_labels() -> Rows:
    """A dict of the model's arguments, labels among them."""

    def sample(generator: torch.Generator, index: int) -> dict[str, Any]:
        words, targets = _make_ragged_sentence(generator, index)
        return {"ids": words, "mask": targets != IGNORE_INDEX, "labels": targets}

    return Rows(sample)


@dataset("weighted_dict", "of_weighted_dict")
def dict_without_labels() -> Rows:
    """A dict that is inputs and targets at once, with a weight for each sample."""
    return Rows(lambda g, i: {"x": numbers(g, FEATURES), "y": i % CLASSES, "weight": 0.1 + i % 4})


@dataset("two_inputs")
def tuples() -> Rows:
    """Two inputs."""
    return Rows(lambda g, i: ((numbers(g, 6), numbers(g, 4)), i * 3 % CLASSES))


@dataset("flags")
def flags_and_counts() -> Rows:
    """Inputs that are no floating numbers."""
    return Rows(lambda g, i: ((below(g, 2, 6).bool(), below(g, 7, 4).to(torch.int16)), i * 3 % CLASSES))


@dataset("rnn_of_lengths")
def with_lengths() -> Rows:
    """Sequences of numbers with their lengths, which are scalars."""
    return Rows(lambda g, i: ((numbers(g, 7, 4), 1 + i * 3 % 7), i % CLASSES))


@dataset("siamese", "contrastive_margin")
def pairs() -> Rows:
    """Two inputs that belong together (1) or not (-1)."""
    return Rows(lambda g, i: ((numbers(g, FEATURES), numbers(g, FEATURES)), 1 if i % 3 else -1))


@dataset("triplet_net", "triplet_margin")
def triplets() -> Rows:
    return Rows(lambda g, i: (tuple(numbers(g, FEATURES) for _ in range(3)), 0))


@dataset("conv")
def images() -> Rows:
    return Rows(lambda g, i: (numbers(g, 2, 8, 8), i * 7 % CLASSES))


@dataset("conv_bytes")
def byte_images() -> Rows:
    return Rows(lambda g, i: (below(g, 256, 2, 8, 8).to(torch.uint8), i * 7 % CLASSES))


@dataset("unet", "pixels")
def segmentation() -> Rows:
    """A class for each pixel; 255 counts nothing."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        pixels = below(generator, 3, 8, 8)
        return numbers(generator, 2, 8, 8), pixels.masked_fill(below(generator, 4, 8, 8) < index % 4, 255)

    return Rows(sample)


@dataset("detector", "boxes_and_classes")
def detection() -> Rows:
    """Up to three objects in a picture, filled up with the class -1."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        kinds = below(generator, CLASSES, 3).masked_fill(torch.arange(3) >= index % 4, -1)
        return numbers(generator, 2, 8, 8), {"boxes": torch.rand(3, 4, generator=generator), "classes": kinds}

    return Rows(sample)


@dataset("gcn_dense")
def dense_graphs() -> Rows:
    """Graphs of up to 6 nodes, filled up: links, features, which nodes there are."""

    def sample(generator: torch.Generator, index: int) -> tuple[tuple[Tensor, ...], int]:
        there = torch.arange(6) < 2 + index % 5
        links = (below(generator, 2, 6, 6).bool() & there & there[:, None]).float()
        return (links, numbers(generator, 6, 4) * there[:, None], there), index % CLASSES

    return Rows(sample)


@dataset("gcn_joined")
def joined_graphs() -> Joined:
    """Graphs that lie behind each other in one: the first dim counts nodes and edges, not samples."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor, int]:
        num = 2 + index % 5
        return numbers(generator, num, 4), below(generator, num, 2, 2 * num), index % CLASSES

    def join(rows: list[Any]) -> tuple[dict[str, Tensor], Tensor]:
        sizes = [len(nodes) for nodes, _, _ in rows]
        starts = torch.tensor([0, *sizes]).cumsum(0)[:-1]
        edges = torch.cat([links + start for (_, links, _), start in zip(rows, starts, strict=True)], 1)
        owners = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(sizes))
        inputs = {"nodes": torch.cat([nodes for nodes, _, _ in rows]), "edges": edges, "owners": owners}
        return inputs, torch.tensor([label for _, _, label in rows])

    return Joined(sample, join)


@dataset("packed_lm")
def packed_sentences() -> Joined:
    """Sentences behind each other without padding: words, and the place of each in its sentence."""

    def join(rows: list[Any]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        lengths = [int((targets != IGNORE_INDEX).sum()) for _, targets in rows]
        words = torch.cat([row[0][:length] for row, length in zip(rows, lengths, strict=True)])
        targets = torch.cat([row[1][:length] for row, length in zip(rows, lengths, strict=True)])
        return (words, torch.cat([torch.arange(length) for length in lengths])), targets

    return Joined(_make_ragged_sentence, join)


@dataset("complex_net", "complex_squares")
def signals() -> Rows:
    """Numbers of two parts, in and out."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        parts = numbers(generator, 4, 8)
        return torch.complex(parts[0], parts[1]), torch.complex(parts[2], parts[3])

    return Rows(sample)


@dataset("mlp_deep", "several_labels")
def multi_label() -> Rows:
    return Rows(lambda g, i: (numbers(g, FEATURES), below(g, 2, CLASSES).float()))


@dataset("mlp_deep", "weighted_samples")
def weighted() -> Rows:
    """Targets that are a dict."""
    return Rows(lambda g, i: (numbers(g, FEATURES), {"y": i % CLASSES, "weight": 0.05 + i % 3}))


@dataset("seq2seq_transformer")
def translation() -> Rows:
    """Two sentences, the second one up to each word that is wanted."""

    def sample(generator: torch.Generator, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        words, targets = _make_ragged_sentence(generator, index)
        return (below(generator, WORDS, 6), words), targets

    return Rows(sample)


@dataset("factors", "mse")
def ratings() -> Rows:
    """Who rated what."""
    return Rows(lambda g, i: ((i * 5 % 11, i * 7 % 13), float(i % 5)))


@dataset("lstm_forecast", "mse")
def series() -> Rows:
    return Rows(lambda g, i: _next_words(numbers(g, 9, 3)))


@dataset("denoiser", "mse")
def noises() -> Rows:
    """A point, noise, and how much of it is added; the noise is to be found."""

    def sample(generator: torch.Generator, index: int) -> tuple[tuple[Tensor, Tensor, int], Tensor]:
        noise = numbers(generator, FEATURES)
        return (numbers(generator, FEATURES), noise, index * 3 % 10), noise

    return Rows(sample)


@dataset("vae", "evidence_bound")
def points_with_noise() -> Rows:
    """A point and the noise that its code is drawn with; the point is to be found again."""

    def sample(generator: torch.Generator, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        point = numbers(generator, FEATURES)
        return (point, numbers(generator, 4)), point

    return Rows(sample)


@dataset("flow", "negative_likelihood")
def points() -> Rows:
    """Nothing is to be found."""
    return Rows(lambda g, i: (numbers(g, FEATURES), 0))


@dataset("actor_critic", "clipped_policy")
def episodes() -> Rows:
    """What was observed, what was done, how likely and how good it was."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, dict[str, Any]]:
        told = {"action": index % CLASSES, "log_chance": -1.5, "advantage": float(numbers(generator))}
        return numbers(generator, FEATURES), told

    return Rows(sample)


@dataset("ctc_reader", "ctc")
def speech() -> Rows:
    """Frames with a shorter row of letters; 0 fills up."""

    def sample(generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        letters = 1 + below(generator, CLASSES - 1, 3)
        return numbers(generator, 9, 4), letters.masked_fill(torch.arange(3) >= 1 + index % 3, 0)

    return Rows(sample)


@dataset("hashed_bag")
def bags() -> Rows:
    """Words in any order."""
    return Rows(lambda g, i: (below(g, WORDS, 6), i % CLASSES))
