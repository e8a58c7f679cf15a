"""Models of data itself: autoencoders, flows, diffusion, code books."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.data import FEATURES
from tests.zoo.models.plain import WIDTH, layers
from tests.zoo.registry import model


class Variational(nn.Module):
    """The noise comes with the data, or is drawn in the forward."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.encoder = nn.Sequential(*layers(3, last=WIDTH), nn.GELU())
        self.mean, self.spread = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.decoder = nn.Sequential(*layers(3, first=4, last=FEATURES))

    def forward(self, point: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(point)
        mean, log_variance = self.mean(hidden), self.spread(hidden)
        if self.draws:
            noise = torch.randn_like(mean)
        return self.decoder(mean + noise * (log_variance / 2).exp()), mean, log_variance


@model("points_with_noise", "evidence_bound")
def vae() -> nn.Module:
    return Variational(draws=False)


@model("points_with_noise", "evidence_bound", draws=True)
def vae_that_draws() -> nn.Module:
    return Variational(draws=True)


class TiedAutoencoder(nn.Module):
    """The decoder's weights are the encoder's, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 6)
        self.bias_one, self.bias_two = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(FEATURES))

    def forward(self, point: Tensor, noise: Tensor) -> Tensor:
        code = self.two(self.one(point).tanh())
        again = F.linear(code, self.two.weight.t(), self.bias_one).tanh()
        return F.linear(again, self.one.weight.t(), self.bias_two)


@model("points_with_noise", "mse")
def tied_autoencoder() -> nn.Module:
    return TiedAutoencoder()


class ActNorm(nn.Module):
    """Takes its scale and its shift from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(FEATURES)), nn.Parameter(torch.zeros(FEATURES))
        self.register_buffer("is_ready", torch.tensor(False))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_ready:
            with torch.no_grad():
                self.shift.copy_(-inputs.mean(0))
                self.scale.copy_(1 / (inputs.std(0, correction=0) + 1e-3))
                self.is_ready.fill_(True)
        return (inputs + self.shift) * self.scale, self.scale.abs().log().sum()


class Coupling(nn.Module):
    def __init__(self, *, flips: bool) -> None:
        super().__init__()
        self.flips, half = flips, FEATURES // 2
        self.net = nn.Sequential(nn.Linear(half, WIDTH), nn.Tanh(), nn.Linear(WIDTH, FEATURES))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        left, right = inputs.chunk(2, 1)
        left, right = (right, left) if self.flips else (left, right)
        scale, shift = self.net(left).chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([left, right * scale.exp() + shift], 1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self, *, norms: bool) -> None:
        super().__init__()
        self.steps = nn.ModuleList()
        for index in range(4):
            self.steps.extend([ActNorm()] * norms)
            self.steps.append(Coupling(flips=index % 2 == 1))

    def forward(self, point: Tensor) -> tuple[Tensor, Tensor]:
        volume = point.new_zeros(len(point))
        for step in self.steps:
            point, grown = step(point)
            volume = volume + grown
        return point, volume


@model("points", "negative_likelihood")
def flow() -> nn.Module:
    return Flow(norms=False)


@model("points", "negative_likelihood")
def flow_with_act_norm() -> nn.Module:
    return Flow(norms=True)


class Made(nn.Module):
    """Each output depends on the inputs before it: by masks that are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, 24), nn.Linear(24, FEATURES)
        hidden, own = torch.arange(24) % (FEATURES - 1), torch.arange(FEATURES)
        self.register_buffer("mask_one", (hidden[:, None] >= own).float())
        self.register_buffer("mask_two", (own[:, None] > hidden).float(), persistent=False)

    def forward(self, point: Tensor, noise: Tensor) -> Tensor:
        hidden = F.linear(point, self.one.weight * self.mask_one, self.one.bias).relu()
        return F.linear(hidden, self.two.weight * self.mask_two, self.two.bias)


@model("points_with_noise", "mse")
def masked_autoregressive() -> nn.Module:
    return Made()


class Denoiser(nn.Module):
    """Noise is added by a schedule that is a buffer, or a list; when it is drawn inside, so is its amount."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.register_buffer("kept", torch.linspace(0.99, 0.05, 10))
        self.when = nn.Embedding(10, WIDTH)
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.leave = nn.Linear(WIDTH, FEATURES)
        nn.init.zeros_(self.leave.weight)

    def forward(self, point: Tensor, noise: Tensor, when: Tensor) -> Tensor:
        if self.draws:
            when = torch.randint(10, when.shape)
        kept = self.kept[when][:, None]
        hidden = self.enter(kept.sqrt() * point + (1 - kept).sqrt() * noise)
        for block in self.blocks:
            hidden = hidden + block(F.silu(hidden + self.when(when)))
        return self.leave(hidden)


@model("noises", "mse")
def denoiser() -> nn.Module:
    return Denoiser(draws=False)


@model("noises", "mse", draws=True)
def denoiser_that_draws() -> nn.Module:
    return Denoiser(draws=True)


class CodeBook(nn.Module):
    """The nearest code stands for a point: gradients go past it (straight through). Codes learn by gradient,
    or are running means of what they stood for."""

    def __init__(self, *, averages: bool) -> None:
        super().__init__()
        self.averages = averages
        self.encoder = nn.Sequential(*layers(3, last=4))
        self.decoder = nn.Sequential(*layers(3, first=4, last=FEATURES))
        codes = torch.randn(6, 4)
        if averages:
            self.register_buffer("codes", codes)
            self.register_buffer("sizes", torch.ones(6))
            self.register_buffer("sums", codes.clone())
        else:
            self.codes = nn.Parameter(codes)

    def forward(self, point: Tensor, noise: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(point)
        chosen = torch.cdist(hidden, self.codes).argmin(1)
        code = self.codes[chosen]
        near = (hidden - code.detach()).square().mean()
        if self.averages:
            self._learn(hidden.detach(), chosen)
        else:
            near = near + (hidden.detach() - code).square().mean()
        again = self.decoder(hidden + (code - hidden).detach())
        return {"loss": (again - point).square().mean() + 0.25 * near, "count": torch.tensor(len(point))}

    def _learn(self, hidden: Tensor, chosen: Tensor) -> None:
        if self.training:
            one_hot = F.one_hot(chosen, 6).to(hidden.dtype)
            self.sizes.mul_(0.9).add_(0.1 * one_hot.sum(0))
            self.sums.mul_(0.9).add_(0.1 * one_hot.T @ hidden)
            self.codes.copy_(self.sums / self.sizes[:, None])


@model("points_with_noise", "model")
def code_book() -> nn.Module:
    return CodeBook(averages=False)


@model("points_with_noise", "model")
def code_book_of_averages() -> nn.Module:
    return CodeBook(averages=True)


class Against(nn.Module):
    """A generator against a critic, in one loss: the critic's gradient is turned round on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(*layers(3, first=4, last=FEATURES))
        self.critic = nn.Sequential(*layers(3, last=1))

    def forward(self, point: Tensor, noise: Tensor) -> dict[str, Tensor]:
        made = self.generator(noise)
        turned = 2 * made.detach() - made
        real, false = self.critic(point), self.critic(turned)
        loss = F.softplus(-real).mean() + F.softplus(false).mean()
        return {"loss": loss, "count": torch.tensor(len(point))}


@model("points_with_noise", "model")
def adversarial() -> nn.Module:
    return Against()
