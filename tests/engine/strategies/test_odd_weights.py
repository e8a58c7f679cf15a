"""Weights that are unlike others train as on one device, or the run says which they are before it steps: of
other dtypes, unused, marked, or read where nobody expects it."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from rankdeck.config import from_text
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from tests.helpers.parity import BARS
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

Ranks = tuple[int, RankSet]
MODELS = Path(__file__).parents[2] / "helpers" / "odd_weights.py"
OPTIMIZERS = Path(__file__).parents[2] / "helpers" / "own_optimizers.py"
DECAYING = '{ use = "adamw", lr = 0.01, weight_decay = 0.3 }'
SPLIT = 'plan = { "blocks.0.0" = "column", "blocks.1.0" = "row" }'
on_two = pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])


def toml_of(
    model: str, strategy: str, num_devices: int, optimizer: str, args: str = "", train: str = ""
) -> str:
    precision = "" if "precision" in train else 'precision = "fp64"'
    return f"""
model = {{ use = "{MODELS}:{model}", args = {{ {args} }} }}
data = {{ use = "digits" }}
strategy = {{ {strategy} }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 3
global_batch = 16
evaluate_every = 0
optimizer = {optimizer}
{precision}
{train}
"""


@functools.cache
def of_one_device(model: str, optimizer: str, args: str, train: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        toml = toml_of(model, 'use = "single"', 1, optimizer, args, train)
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


def distance(
    ranks: Ranks, model: str, strategy: str, *, optimizer: str = DECAYING, args: str = "", train: str = ""
) -> float:
    weights = ranks[1].train(toml_of(model, strategy, ranks[0], optimizer, args, train))
    return largest_difference(weights, of_one_device(model, optimizer, args, train))


FSDP = 'use = "fsdp"'
TENSOR = f'use = "tensor", {SPLIT}'


@pytest.mark.parametrize("model", ["never_used", "experts"])
@on_two
def test_weights_that_no_rank_used_have_no_gradient_and_do_not_decay(ranks: Ranks, model: str) -> None:
    assert distance(ranks, model, FSDP) <= BARS["fp64"]


@on_two
def test_ranks_may_use_different_weights_whole_ones_and_in_parts_of_a_batch(ranks: Ranks) -> None:
    assert distance(ranks, "experts", FSDP, args="whole = true", train="accumulate = 2") <= BARS["fp64"]


@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_so_may_ranks_of_a_hybrid(ranks: Ranks) -> None:
    assert distance(ranks, "experts", 'use = "hybrid", shard = 2, data = 2') <= BARS["fp64"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_fused_steps_slices_of_two_meshes(ranks: Ranks) -> None:
    fused = '{ use = "torch.optim:AdamW", lr = 0.01, fused = true }'
    strategy = f'use = "hybrid", shard = 2, tensor = 2, {SPLIT}'
    assert distance(ranks, "marked", strategy, optimizer=fused) <= BARS["fp64"]


@on_two
def test_ranks_that_compute_different_blocks_are_refused(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="ModelError: Ranks computed different blocks of the model"):
        distance(ranks, "skipping_blocks", FSDP)


@on_two
def test_ddp_names_what_took_no_part_before_it_steps(ranks: Ranks) -> None:
    toml = toml_of("never_used", 'use = "ddp"', 2, DECAYING, train="steps = 1").replace("steps = 3", "")
    named = r"These took no part in the loss: blocks\.0\.spare, spare\.bias, spare\.weight"
    with pytest.raises(AssertionError, match=f"ModelError: {named}"):
        ranks[1].train(toml)
    assert distance(ranks, "never_used", 'use = "ddp", find_unused_parameters = true') <= BARS["fp64"]


@on_two
def test_complex_and_mixed_weights_train_beside_slices(ranks: Ranks) -> None:
    sgd, train = '{ use = "sgd", lr = 0.02 }', 'precision = "fp32"\nclip_norm = 0.5'
    assert distance(ranks, "mixing", FSDP, optimizer=sgd, train=train) <= BARS["fp32"]


@on_two
def test_a_block_whose_weights_are_read_outside_is_gathered_with_the_root(ranks: Ranks) -> None:
    assert distance(ranks, "reaching", FSDP) <= BARS["fp64"]


def test_such_a_block_is_gathered_with_the_root_on_every_planned_rank() -> None:
    config = from_text(toml_of("reaching", FSDP, 2, '{ use = "sgd", lr = 0.1 }'), folder=MODELS.parent)
    first, second = (fake_pass(PassRequest(config, 2, rank)).devices[rank] for rank in (0, 1))
    assert first == second


@on_two
def test_old_weight_norm_is_cut_by_fsdp_and_refused_by_tensor(ranks: Ranks) -> None:
    assert distance(ranks, "old_weight_norm", FSDP) <= BARS["fp64"]
    with pytest.raises(AssertionError, match=r"ModelError: strategy.plan: blocks\.0\.0 computes its weight"):
        distance(ranks, "old_weight_norm", TENSOR)


@pytest.mark.parametrize("strategy", [FSDP, TENSOR])
@on_two
def test_attributes_of_weights_reach_their_optimizer_and_their_model(ranks: Ranks, strategy: str) -> None:
    sparing = f'{{ use = "{OPTIMIZERS}:Sparing", lr = 0.1, weight_decay = 0.5 }}'
    assert distance(ranks, "marked", strategy, optimizer=sparing) <= BARS["fp64"]


@pytest.mark.parametrize("how", ["fused", "foreach"])
@on_two
def test_whole_weights_and_slices_step_in_one_kernel_each(ranks: Ranks, how: str) -> None:
    optimizer = f'{{ use = "torch.optim:AdamW", lr = 0.01, {how} = true }}'
    assert distance(ranks, "marked", TENSOR, optimizer=optimizer) <= BARS["fp64"]


@pytest.mark.parametrize("kind", ["mask", "halved-after"])
@on_two
def test_gradient_hooks_change_gradients_of_gathered_weights(ranks: Ranks, kind: str) -> None:
    assert distance(ranks, "hooked", FSDP, args=f'kind = "{kind}"') <= BARS["fp64"]


@pytest.mark.parametrize(
    ("strategy", "kind", "words"),
    [
        (FSDP, "clamp", r"blocks\.0\.0\.weight makes something else of the gradients of parts"),
        ('use = "ddp"', "clamp", r"blocks\.0\.0\.weight makes something else of the gradients of parts"),
        (FSDP, "stepping", r"blocks\.0\.0\.weight makes something else of the gradients of parts"),
        ('use = "pipeline"', "halved-after", r"blocks\.0\.0\.weight makes something else"),
        (TENSOR, "mask", r"blocks\.0\.0\.weight needs the whole weight's gradient"),
    ],
)
@on_two
def test_gradient_hooks_that_parts_would_lead_elsewhere_are_refused(
    ranks: Ranks, strategy: str, kind: str, words: str
) -> None:
    with pytest.raises(AssertionError, match=f"ModelError: A gradient hook of {words}"):
        distance(ranks, "hooked", strategy, args=f'kind = "{kind}"')


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(TENSOR, "clamp"), ('use = "ddp"', "mask"), ('use = "pipeline"', "mask"), (TENSOR, "halved-after")],
)
@on_two
def test_other_gradient_hooks_do_there_what_they_do_on_one_device(
    ranks: Ranks, strategy: str, kind: str
) -> None:
    assert distance(ranks, "hooked", strategy, args=f'kind = "{kind}"') <= BARS["fp64"]
