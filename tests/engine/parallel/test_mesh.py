"""Where a rank stands on the axes of a mesh."""

from __future__ import annotations

import pytest

from rankdeck.parallel.mesh import Mesh


def test_the_last_axis_varies_fastest() -> None:
    coordinates = [
        (m.coordinate("data"), m.coordinate("stage")) for m in (Mesh.of(r, data=2, stage=3) for r in range(6))
    ]
    assert coordinates == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_an_omitted_axis_has_size_one() -> None:
    mesh = Mesh.of(3, data=4)
    assert (mesh.size("tensor"), mesh.coordinate("tensor"), mesh.world_size) == (1, 0, 4)


def test_ranks_with_the_same_activations_share_random_numbers() -> None:
    streams = [Mesh.of(rank, data=2, stage=2, tensor=2).random_stream for rank in range(8)]
    assert streams == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_unknown_axis_is_an_internal_error() -> None:
    with pytest.raises(AssertionError, match="stages"):
        Mesh.of(0, stages=2)


def test_groups_along_an_axis_hold_every_rank_once_in_order() -> None:
    mesh = Mesh.of(0, data=2, stage=2, tensor=2)
    assert mesh.groups_along("stage") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups_along("data") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups_along("shard") == [[rank] for rank in range(8)]
