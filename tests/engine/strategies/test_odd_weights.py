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
from tests.helpers.parity import TOLERANCES
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

Ranks = tuple[int, RankSet]
MODELS = Path(__file__).parents[2] / "helpers" / "odd_weights.py"
OPTIMIZERS = Path(__file__).parents[2] / "helpers" / "own_optimizers.py"
ADAMW_WITH_DECAY = '{ use = "adamw", lr = 0.01, weight_decay = 0.3 }'
TENSOR_PLAN = 'plan = { "blocks.0.0" = "column", "blocks.1.0" = "row" }'
with_two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])


def make_toml(
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
def train_on_one_device(model: str, optimizer: str, args: str, train: str) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        toml = make_toml(model, 'use = "single"', 1, optimizer, args, train)
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)


def difference_from_one_device(
    ranks: Ranks,
    model: str,
    strategy: str,
    *,
    optimizer: str = ADAMW_WITH_DECAY,
    args: str = "",
    train: str = "",
) -> float:
    weights = ranks[1].train(make_toml(model, strategy, ranks[0], optimizer, args, train))
    return largest_difference(weights, train_on_one_device(model, optimizer, args, train))


FSDP = 'use = "fsdp"'
TENSOR = f'use = "tensor", {TENSOR_PLAN}'


@pytest.mark.parametrize("model", ["never_used", "experts"])
@with_two_ranks
def test_weights_unused_by_all_ranks_do_not_decay(ranks: Ranks, model: str) -> None:
    assert difference_from_one_device(ranks, model, FSDP) <= TOLERANCES["fp64"]


@with_two_ranks
def test_ranks_and_microsteps_may_use_different_weights(ranks: Ranks) -> None:
    assert (
        difference_from_one_device(ranks, "experts", FSDP, args="has_scales = true", train="accumulate = 2")
        <= TOLERANCES["fp64"]
    )


@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_ranks_of_a_hybrid_may_use_different_weights(ranks: Ranks) -> None:
    assert (
        difference_from_one_device(ranks, "experts", 'use = "hybrid", shard = 2, data = 2')
        <= TOLERANCES["fp64"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
def test_fused_optimizers_step_shards_of_two_meshes(ranks: Ranks) -> None:
    fused = '{ use = "torch.optim:AdamW", lr = 0.01, fused = true }'
    strategy = f'use = "hybrid", shard = 2, tensor = 2, {TENSOR_PLAN}'
    assert difference_from_one_device(ranks, "marked", strategy, optimizer=fused) <= TOLERANCES["fp64"]


@with_two_ranks
def test_ranks_that_compute_different_blocks_are_refused(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="ModelError: Ranks ran different blocks of the model"):
        difference_from_one_device(ranks, "skipping_blocks", FSDP)


@with_two_ranks
def test_ddp_names_unused_weights_before_the_step(ranks: Ranks) -> None:
    toml = make_toml("never_used", 'use = "ddp"', 2, ADAMW_WITH_DECAY, train="steps = 1").replace(
        "steps = 3", ""
    )
    named = r"These parameters did not contribute to the loss: blocks\.0\.spare, spare\.bias, spare\.weight"
    with pytest.raises(AssertionError, match=f"ModelError: {named}"):
        ranks[1].train(toml)
    assert (
        difference_from_one_device(ranks, "never_used", 'use = "ddp", find_unused_parameters = true')
        <= TOLERANCES["fp64"]
    )


@with_two_ranks
def test_complex_and_mixed_dtype_weights_train_with_shards(ranks: Ranks) -> None:
    sgd, train = '{ use = "sgd", lr = 0.02 }', 'precision = "fp32"\nclip_norm = 0.5'
    assert difference_from_one_device(ranks, "mixing", FSDP, optimizer=sgd, train=train) <= TOLERANCES["fp32"]


@with_two_ranks
def test_a_block_read_from_outside_is_gathered_with_the_root(ranks: Ranks) -> None:
    assert difference_from_one_device(ranks, "reaching", FSDP) <= TOLERANCES["fp64"]


def test_planned_ranks_gather_such_a_block_with_the_root() -> None:
    config = from_text(make_toml("reaching", FSDP, 2, '{ use = "sgd", lr = 0.1 }'), folder=MODELS.parent)
    first, second = (fake_pass(PassRequest(config, 2, rank)).devices[rank] for rank in (0, 1))
    assert first == second


@with_two_ranks
def test_old_weight_norm_works_with_fsdp_but_not_tensor(ranks: Ranks) -> None:
    assert difference_from_one_device(ranks, "old_weight_norm", FSDP) <= TOLERANCES["fp64"]
    with pytest.raises(
        AssertionError,
        match=r"tensor parallelism splits only plain layers, but blocks\.0\.0 computes its",
    ):
        difference_from_one_device(ranks, "old_weight_norm", TENSOR)


@pytest.mark.parametrize("strategy", [FSDP, TENSOR])
@with_two_ranks
def test_weight_attributes_reach_optimizer_and_model(ranks: Ranks, strategy: str) -> None:
    sparing = f'{{ use = "{OPTIMIZERS}:Sparing", lr = 0.1, weight_decay = 0.5 }}'
    assert difference_from_one_device(ranks, "marked", strategy, optimizer=sparing) <= TOLERANCES["fp64"]


@pytest.mark.parametrize("how", ["fused", "foreach"])
@with_two_ranks
def test_full_weights_and_shards_step_in_one_kernel_each(ranks: Ranks, how: str) -> None:
    optimizer = f'{{ use = "torch.optim:AdamW", lr = 0.01, {how} = true }}'
    assert difference_from_one_device(ranks, "marked", TENSOR, optimizer=optimizer) <= TOLERANCES["fp64"]


@pytest.mark.parametrize("kind", ["mask", "halved-after"])
@with_two_ranks
def test_gradient_hooks_see_gathered_gradients(ranks: Ranks, kind: str) -> None:
    assert difference_from_one_device(ranks, "hooked", FSDP, args=f'kind = "{kind}"') <= TOLERANCES["fp64"]


@pytest.mark.parametrize(
    ("strategy", "kind", "message"),
    [
        (FSDP, "clamp", r"blocks\.0\.0\.weight gives different results for parts of a batch"),
        ('use = "ddp"', "clamp", r"blocks\.0\.0\.weight gives different results for parts of a batch"),
        (FSDP, "stepping", r"blocks\.0\.0\.weight gives different results for parts of a batch"),
        ('use = "pipeline"', "halved-after", r"blocks\.0\.0\.weight gives different results"),
        (TENSOR, "mask", r"blocks\.0\.0\.weight needs the full gradient"),
    ],
)
@with_two_ranks
def test_gradient_hooks_that_differ_on_shards_are_refused(
    ranks: Ranks, strategy: str, kind: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=f"ModelError: A gradient hook of {message}"):
        difference_from_one_device(ranks, "hooked", strategy, args=f'kind = "{kind}"')


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(TENSOR, "clamp"), ('use = "ddp"', "mask"), ('use = "pipeline"', "mask"), (TENSOR, "halved-after")],
)
@with_two_ranks
def test_other_gradient_hooks_match_one_device(ranks: Ranks, strategy: str, kind: str) -> None:
    assert (
        difference_from_one_device(ranks, "hooked", strategy, args=f'kind = "{kind}"') <= TOLERANCES["fp64"]
    )
