"""Sequences: recurrent nets with and without states, convolutions over time, encoders with decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.zoo.data import CLASSES, WORDS
from tests.zoo.registry import ADAMW, model

WIDTH = 12


class Forecast(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], *, carries: bool = False) -> None:
        super().__init__()
        self.rnn = cell(3, WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, 3)
        self.carries = carries
        self.state: tuple[Tensor, ...] | None = None

    def forward(self, series: Tensor) -> Tensor:
        hidden, state = self.rnn(series, self.state)
        if self.carries:
            self.state = tuple(one.detach() for one in state)
        return self.out(hidden)


@model("series", "mse")
def lstm_forecast() -> nn.Module:
    return Forecast(nn.LSTM)


@model("series", "mse")
def gru_forecast() -> nn.Module:
    return Forecast(nn.GRU)


@model("series", "mse")
def lstm_that_carries_states() -> nn.Module:
    """Each batch goes on where the last one ended: row by row, in a Python attribute."""
    return Forecast(nn.LSTM, carries=True)


class OfLengths(nn.Module):
    """Sequences of different lengths, whose last state counts."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(frames, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, last = self.rnn(packed)
        return self.out(last[-1])


@model("with_lengths")
def rnn_of_lengths() -> nn.Module:
    return OfLengths()


class ByHand(nn.Module):
    """A cell in a loop over as many frames as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, WIDTH), nn.Linear(WIDTH, 3)
        self.start = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, series: Tensor) -> Tensor:
        state, outputs = self.start.expand(len(series), -1), []
        for frame in series.unbind(1):
            state = self.cell(frame, state)
            outputs.append(self.out(state))
        return torch.stack(outputs, 1)


@model("series", "mse")
def rnn_by_hand() -> nn.Module:
    return ByHand()


@model("series", "mse")
def convolutions_over_time() -> nn.Module:
    class OverTime(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv1d(WIDTH if index else 3, WIDTH, 2, dilation=2**index) for index in range(3)
            )
            self.out = nn.Conv1d(WIDTH, 3, 1)

        def forward(self, series: Tensor) -> Tensor:
            hidden = series.transpose(1, 2)
            for layer in self.layers:
                past = nn.functional.pad(hidden, (layer.dilation[0], 0))
                made = layer(past).relu()
                hidden = made + hidden if made.shape == hidden.shape else made
            return self.out(hidden).transpose(1, 2)

    return OverTime()


class StateSpace(nn.Module):
    """A linear recurrence whose decay is a parameter of the root, used in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3)
        self.decay = nn.Parameter(torch.linspace(-2, 2, WIDTH))
        self.past = nn.Parameter(torch.zeros(3))

    def forward(self, series: Tensor) -> Tensor:
        driven, decay = self.enter(series), self.decay.sigmoid()
        state, outputs = torch.zeros_like(driven[:, 0]), []
        for frame in driven.unbind(1):
            state = decay * state + frame
            outputs.append(state)
        return self.leave(torch.stack(outputs, 1).tanh()) + self.past * series


@model("series", "mse")
def state_space() -> nn.Module:
    return StateSpace()


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.rnn, self.out = (
            nn.GRU(WIDTH, WIDTH, bidirectional=True, batch_first=True),
            nn.Linear(2 * WIDTH, CLASSES),
        )

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(self.rnn(self.net(frames))[0])


@model("speech", "ctc")
def ctc_reader() -> nn.Module:
    return Reader()


class Translator(nn.Module):
    """The encoder's output goes to each block of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
        options = {"nhead": 4, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(16, **options) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(16, **options) for _ in range(3))
        self.head = nn.Linear(16, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, hidden = self.source(source), self.target(target)
        for block in self.encoder:
            memory = block(memory)
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        for block in self.decoder:
            hidden = block(hidden, memory, tgt_mask=later)
        return self.head(hidden)


@model("translation")
def seq2seq_transformer() -> nn.Module:
    return Translator()


class Looking(nn.Module):
    """A recurrent encoder whose states a recurrent decoder looks at; one table for both languages."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.out = nn.Linear(2 * WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.table(source))
        hidden, _ = self.decoder(self.table(target), last)
        looked = (hidden @ memory.transpose(1, 2)).softmax(-1) @ memory
        return self.out(torch.cat([hidden, looked], -1))


@model("translation", optimizer=ADAMW)
def seq2seq_recurrent() -> nn.Module:
    return Looking()


class Pointing(nn.Module):
    """Answers are places of the source: as many outputs as it has words."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.key, self.query = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.table(words)
        return self.query(hidden.mean(1, keepdim=True)).tanh() @ self.key(hidden).transpose(1, 2)


@model("bags", "first_place")
def pointer() -> nn.Module:
    return Pointing()
