"""The ledger on two real gloo ranks: C++ buckets stay known, resizes are followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.ranks import RankSet


@pytest.fixture(scope="module")
def ranks(
    rank_set_of: Callable[[int], RankSet], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return rank_set_of(2).call("tests.helpers.ddp_ledger_ranks:run", folder=str(folder))


def test_a_late_sample_equals_an_always_on_ledger(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["late"] == result["always"]


def test_a_late_sample_includes_fsdp_resizes(ranks: list[dict[str, Any]]) -> None:
    # Its peak depends on when gloo's own thread lets go of a gathered block, and differs from run to run.
    for result in ranks:
        assert result["fsdp_late"]["live_by_kind"] == result["fsdp_always"]["live_by_kind"]


def test_the_peak_matches_allocator_events(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["truth"]["peak_bytes"] == pytest.approx(result["truth"]["truth_bytes"], rel=0.01)


def test_ddps_buckets_are_communication(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        late = result["late"]
        # A few bytes more: DDP keeps a map of used parameters beside its buckets.
        assert late["live_by_kind"]["communication"] == pytest.approx(late["parameter_bytes"], rel=0.01)
        assert late["peak_by_kind"]["communication"] == late["live_by_kind"]["communication"]


def test_bucket_views_count_as_gradients(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        view = result["bucket_view"]
        assert view["live_by_kind"]["communication"] < 0.01 * view["parameter_bytes"]
        assert view["live_by_kind"]["gradients"] == view["parameter_bytes"]
        assert view["live_bytes"] <= result["late"]["live_bytes"]


def test_fsdp_holds_its_share_of_the_optimizer_state(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        fsdp = result["fsdp_late"]["live_by_kind"]
        ddp = result["late"]["live_by_kind"]
        assert fsdp["optimizer"] == pytest.approx(ddp["optimizer"] / 2, rel=0.02)
