"""torch.compile under single and ddp: the same weights, within what another order of additions costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text
from tests.helpers.parity import configuration
from tests.helpers.parity import single_device_weights as of_one
from tests.helpers.ranks import RankSet, largest_difference

COMPILE = "compile = true"
# torch's own imports behind torch.compile are on their way out
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.slow
def test_a_compiled_model_matches_an_eager_one() -> None:
    assert 0 < largest_difference(of_one("mlp", train=COMPILE), of_one("mlp")) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_compiled_ddp_matches_one_device(ranks: tuple[int, RankSet]) -> None:
    toml = configuration("mlp", '{ use = "ddp" }', 2, train=COMPILE)
    assert largest_difference(ranks[1].train(toml), of_one("mlp")) < 1e-5


@pytest.mark.parametrize("strategy", ["dp", "fsdp", "pipeline", "tensor"])
def test_other_strategies_refuse_to_compile_with_the_reason(strategy: str) -> None:
    toml = f'train.compile = true\nmodel.use = "gpt"\ndata.use = "text"\nstrategy.use = "{strategy}"'
    with pytest.raises(ConfigError, match="the whole model on one device in each process"):
        from_text(toml, folder=Path(), devices="cpu:2")
