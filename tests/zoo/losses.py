"""Losses as a person writes them: `(outputs, targets) -> (sum, count)`.

First those that are a mean over targets, whatever they weigh, then those that look at several samples at
once: parts of a batch, each for itself, do not add up to the whole there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.zoo.registry import loss

IGNORE_INDEX = -100
LossSum = tuple[Tensor, Any]

# Means over targets.


@loss("mlp_deep", "classes")
def plain_cross_entropy(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.cross_entropy(outputs, targets, reduction="sum"), len(targets)


@loss("mlp_regression", "regression")
def squares(outputs: Tensor, targets: Tensor) -> LossSum:
    return (outputs - targets).square().sum(), targets.numel()


@loss("mlp_regression", "regression")
def huber(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.huber_loss(outputs, targets, reduction="sum", delta=0.5), targets.numel()


@loss("mlp_regression", "regression")
def pinball(outputs: Tensor, targets: Tensor) -> LossSum:
    """Each output is a quantile of its target."""
    off = targets - outputs
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=off.dtype)
    return torch.maximum(shares * off, (shares - 1) * off).sum(), len(targets)


@loss("mlp_regression", "regression")
def gaussian_likelihood(outputs: Tensor, targets: Tensor) -> LossSum:
    spread = outputs[:, 1:2].exp()
    return (0.5 * ((targets[:, :1] - outputs[:, :1]) / spread).square() + outputs[:, 1:2]).sum(), len(targets)


@loss("mlp_deep", "classes")
def smoothed(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.cross_entropy(outputs, targets, reduction="sum", label_smoothing=0.2), len(targets)


@loss("mlp_deep", "classes")
def focal(outputs: Tensor, targets: Tensor) -> LossSum:
    each = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-each).exp()).square() * each).sum(), targets.numel()


@loss("mlp_deep", "classes")
def class_weights(outputs: Tensor, targets: Tensor) -> LossSum:
    """A mean in which some classes weigh more."""
    weights = torch.linspace(0.5, 2, outputs.shape[1], dtype=outputs.dtype)
    return F.cross_entropy(outputs, targets, weights, reduction="sum"), weights[targets].sum()


@loss("lm_small", "masked")
def masked_tokens(outputs: Tensor, targets: Tensor) -> LossSum:
    total = F.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    return total, (targets != IGNORE_INDEX).sum()


@loss("lm_small", "tokens")
def with_z_term(outputs: Tensor, targets: Tensor) -> LossSum:
    """The size of logits counts as well."""
    total = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
    return total + 1e-2 * outputs.logsumexp(-1).square().sum(), targets.numel()


@loss("lm_small", "ragged")
def mean_of_sentences(outputs: Tensor, targets: Tensor) -> LossSum:
    """Each sentence counts the same, however long it is."""
    each = F.cross_entropy(outputs.movedim(2, 1), targets, ignore_index=IGNORE_INDEX, reduction="none")
    return (each.sum(1) / (targets != IGNORE_INDEX).sum(1).clamp(min=1)).sum(), len(targets)


@loss("mlp_deep", "multi_label")
def several_labels(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum"), targets.numel()


@loss("mlp_deep", "weighted")
def weighted_samples(outputs: Tensor, targets: dict[str, Tensor]) -> LossSum:
    """The count is a sum of weights."""
    each = F.cross_entropy(outputs, targets["y"], reduction="none")
    return (each * targets["weight"]).sum(), targets["weight"].sum()


def of_weighted_dict(outputs: Tensor, targets: dict[str, Tensor]) -> LossSum:
    return weighted_samples(outputs, targets)


@loss("mlp_deep", "classes")
def hinge(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.multi_margin_loss(outputs, targets, reduction="sum"), len(targets)


@loss("unet", "segmentation")
def pixels(outputs: Tensor, targets: Tensor) -> LossSum:
    total = F.cross_entropy(outputs, targets, ignore_index=255, reduction="sum")
    return total, int((targets != 255).sum())


@loss("detector", "detection")
def boxes_and_classes(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> LossSum:
    there = targets["classes"] >= 0
    classes = F.cross_entropy(
        outputs["classes"].movedim(2, 1), targets["classes"].clamp(min=0), reduction="none"
    )
    boxes = (outputs["boxes"] - targets["boxes"]).abs().sum(-1)
    return ((classes + 5 * boxes) * there).sum(), there.sum()


@loss("siamese", "pairs")
def contrastive_margin(outputs: tuple[Tensor, Tensor], targets: Tensor) -> LossSum:
    left, right = outputs
    return F.cosine_embedding_loss(left, right, targets, margin=0.1, reduction="sum"), len(targets)


@loss("triplet_net", "triplets")
def triplet_margin(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> LossSum:
    return F.triplet_margin_loss(*outputs, reduction="sum"), len(targets)


@loss("vae", "points_with_noise")
def evidence_bound(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> LossSum:
    again, mean, log_variance = outputs
    apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (again - targets).square().sum() + apart, len(targets)


@loss("flow", "points")
def negative_likelihood(outputs: tuple[Tensor, Tensor], targets: Any) -> LossSum:
    code, log_volume = outputs
    return (0.5 * code.square().sum(1) - log_volume).sum(), len(code)


@loss("ctc_reader", "speech")
def ctc(outputs: Tensor, targets: Tensor) -> LossSum:
    frames = torch.full((len(outputs),), outputs.shape[1])
    log_chances = outputs.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_chances, targets, frames, (targets > 0).sum(1), reduction="sum"), len(targets)


@loss("actor_critic", "episodes")
def clipped_policy(outputs: tuple[Tensor, Tensor], targets: dict[str, Tensor]) -> LossSum:
    return _policy(outputs, targets, targets["advantage"])


@loss("complex_net", "signals")
def complex_squares(outputs: Tensor, targets: Tensor) -> LossSum:
    return (outputs - targets).abs().square().sum(), targets.numel()


@loss("mlp_deep", "classes", accumulate=2)
def in_two_parts(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.cross_entropy(outputs, targets, reduction="sum"), len(targets)


@loss("mlp_deep", "classes")
def mean_with_fixed_count(outputs: Tensor, targets: Tensor) -> LossSum:
    """Written as a mean, with how many it is of."""
    return F.cross_entropy(outputs, targets) * len(targets), len(targets)


@loss("experts_top1", "tokens")
def sum_of_outputs_and_balance(outputs: tuple[Tensor, Tensor], targets: Tensor) -> LossSum:
    """The second output is no mean over targets."""
    logits, balance = outputs
    return F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="sum"
    ) + balance * targets.numel(), targets.numel()


# No means over targets.


@loss("siamese", "pairs")
def clip_style(outputs: tuple[Tensor, Tensor], targets: Tensor) -> LossSum:
    """Each left side has to find its own right side among all of the batch."""
    left, right = (F.normalize(one, dim=1) for one in outputs)
    scores, own = left @ right.T / 0.2, torch.arange(len(left))
    both = F.cross_entropy(scores, own, reduction="sum") + F.cross_entropy(scores.T, own, reduction="sum")
    return both / 2, len(left)


@loss("mlp_deep", "classes")
def info_nce(outputs: Tensor, targets: Tensor) -> LossSum:
    """The same class is near, all other samples are far."""
    codes = F.normalize(outputs, dim=1)
    scores = (codes @ codes.T / 0.5).masked_fill(torch.eye(len(codes), dtype=torch.bool), -1e9)
    same = (targets[:, None] == targets) & ~torch.eye(len(codes), dtype=torch.bool)
    each = -(scores.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)
    return each.sum(), len(targets)


@loss("mlp_deep", "classes")
def hard_examples(outputs: Tensor, targets: Tensor) -> LossSum:
    """The worse half of the batch."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    worst = each.topk(max(1, len(each) // 2)).values
    return worst.sum(), len(worst)


@loss("mlp_deep", "classes")
def batch_class_weights(outputs: Tensor, targets: Tensor) -> LossSum:
    """Rare classes of this batch weigh more."""
    counts = torch.bincount(targets, minlength=outputs.shape[1]).clamp(min=1)
    return F.cross_entropy(outputs, targets, len(targets) / counts.to(outputs.dtype), reduction="sum"), len(
        targets
    )


@loss("actor_critic", "episodes")
def normalised_advantages(outputs: tuple[Tensor, Tensor], targets: dict[str, Tensor]) -> LossSum:
    advantage = targets["advantage"]
    return _policy(outputs, targets, (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-5))


@loss("mlp_deep", "classes")
def by_its_own_size(outputs: Tensor, targets: Tensor) -> LossSum:
    """l / l.detach(): the value is always one."""
    total = F.cross_entropy(outputs, targets, reduction="sum")
    return total / total.detach() * len(targets), len(targets)


@loss("mlp_deep", "classes")
def pairwise_ranking(outputs: Tensor, targets: Tensor) -> LossSum:
    """Samples of a larger class have to score higher."""
    score = outputs[:, 0]
    above = targets[:, None] > targets
    return (F.softplus(score - score[:, None]) * above).sum() / above.sum().clamp(min=1) * len(score), len(
        score
    )


@loss("mlp_regression", "regression")
def largest_error(outputs: Tensor, targets: Tensor) -> LossSum:
    return (outputs - targets).abs().amax() * len(targets), len(targets)


@loss("mlp_regression", "regression")
def batch_quantile(outputs: Tensor, targets: Tensor) -> LossSum:
    """What is off by more than most of the batch is left out."""
    each = (outputs - targets).square().sum(1)
    kept = each <= each.detach().quantile(0.7)
    return (each * kept).sum(), kept.sum()


@loss("mlp_regression", "regression")
def correlation(outputs: Tensor, targets: Tensor) -> LossSum:
    left, right = outputs - outputs.mean(0), targets - targets.mean(0)
    alike = (left * right).sum() / (left.norm() * right.norm() + 1e-6)
    return (1 - alike) * len(targets), len(targets)


@loss("mlp_regression", "regression")
def root_of_mean(outputs: Tensor, targets: Tensor) -> LossSum:
    return (outputs - targets).square().mean().sqrt() * targets.numel(), targets.numel()


@loss("mlp_deep", "classes")
def spread_out(outputs: Tensor, targets: Tensor) -> LossSum:
    """With a variance over the batch, as VICReg has it."""
    total = F.cross_entropy(outputs, targets, reduction="sum")
    narrow = F.relu(1 - outputs.std(0, correction=0)).mean()
    return total + narrow * len(targets), len(targets)


@loss("mlp_deep", "classes")
def soft_dice(outputs: Tensor, targets: Tensor) -> LossSum:
    chances = outputs.softmax(1)
    wanted = F.one_hot(targets, outputs.shape[1]).to(chances.dtype)
    each = 1 - (2 * (chances * wanted).sum(0) + 1) / (chances.sum(0) + wanted.sum(0) + 1)
    return each.mean() * len(targets), len(targets)


@loss("mlp_deep", "classes")
def log_of_mean_exp(outputs: Tensor, targets: Tensor) -> LossSum:
    """A soft maximum over the batch, which robust training minimises."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    return (each.logsumexp(0) - math.log(len(each))) * len(each), len(each)


@loss("mlp_deep", "classes")
def neighbours_agree(outputs: Tensor, targets: Tensor) -> LossSum:
    """Each sample looks at the one before it in the batch."""
    total = F.cross_entropy(outputs, targets, reduction="sum")
    return total + (outputs - outputs.roll(1, 0)).square().sum(), len(targets)


def _policy(outputs: tuple[Tensor, Tensor], targets: dict[str, Tensor], advantage: Tensor) -> LossSum:
    logits, value = outputs
    chosen = logits.log_softmax(1).gather(1, targets["action"][:, None])[:, 0]
    ratio = (chosen - targets["log_chance"]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (0.5 * (value - targets["advantage"]).square() - gain).sum(), len(gain)


def first_place(outputs: Tensor, targets: Tensor) -> LossSum:
    return F.cross_entropy(outputs[:, 0], targets, reduction="sum"), len(targets)


def of_dict(outputs: dict[str, Tensor], targets: Tensor) -> LossSum:
    return plain_cross_entropy(outputs["logits"], targets)


def of_attribute(outputs: Any, targets: Tensor) -> LossSum:
    return plain_cross_entropy(outputs.logits, targets)


def of_first(outputs: Any, targets: Tensor) -> LossSum:
    return plain_cross_entropy(outputs[0], targets)


def of_nested(outputs: Any, targets: Tensor) -> LossSum:
    logits, (hidden, more) = outputs["of"]
    return plain_cross_entropy(logits + more["twice"] + hidden.mean(), targets)
