"""What several hosts have of a checkpoint comes to all of them, or is told as lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rankdeck.checkpoint_files import Checkpoint, file_checksum, write_commit
from tests.helpers.ranks import RankSet

pytestmark = pytest.mark.parametrize("ranks", [4], indirect=True, ids=["4-ranks"])
Ranks = tuple[int, RankSet]
HOSTS = [0, 0, 1, 2]
"""Of four ranks: two are on the first host."""


def write_checkpoint(folder: Path, step: int) -> dict[str, bytes]:
    """A checkpoint as one host would have it; not as many bytes as chunks hold."""
    path = folder / "checkpoints" / str(step)
    path.mkdir(parents=True)
    contents = {
        f"shard-0000{number}-of-00003.safetensors": os.urandom(999 + 1001 * number) for number in range(3)
    }
    contents["progress.json"] = b'{"step": %d, "layout": "x", "world_size": 4}' % step
    for name, data in contents.items():
        (path / name).write_bytes(data)
    write_commit(path, {name: (len(data), file_checksum(path / name)) for name, data in contents.items()})
    return {**contents, "COMMIT": (path / "COMMIT").read_bytes()}


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Path, dict[int, dict[str, bytes]]]:
    """Three hosts that have all of steps 10 and 20, and what that is."""
    checkpoints = {step: write_checkpoint(tmp_path / "host-0", step) for step in (10, 20)}
    for number in (1, 2):
        shutil.copytree(tmp_path / "host-0", tmp_path / f"host-{number}")
    return tmp_path, checkpoints


def find_newest(ranks: Ranks, folder: Path) -> list[Any]:
    """What each host's leading rank says."""
    results = ranks[1].call("tests.helpers.spread_ranks:newest_intact", folder=str(folder), hosts=HOSTS)
    assert results[1] is None
    return [results[0], *results[2:]]


def shard_file(folder: Path, host: int, number: int, step: int = 20) -> Path:
    return folder / f"host-{host}" / "checkpoints" / str(step) / f"shard-0000{number}-of-00003.safetensors"


def read_contents(folder: Path, host: int, step: int) -> dict[str, bytes]:
    path = folder / f"host-{host}" / "checkpoints" / str(step)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_missing_and_damaged_shards_come_from_another_host(hosts: Any, ranks: Ranks) -> None:
    folder, checkpoints = hosts
    shard_file(folder, 0, 1).write_bytes(b"damaged")
    shard_file(folder, 1, 2).unlink()
    shard_file(folder, 1, 0).write_bytes(bytes(999))  # as long as it was
    (folder / "host-1/checkpoints/20/shard-00009-of-00009.safetensors").write_bytes(b"of another attempt")
    shutil.rmtree(folder / "host-2/checkpoints")
    assert find_newest(ranks, folder) == [[20, []]] * 3
    for host in range(3):
        assert read_contents(folder, host, 20) == checkpoints[20]
        assert Checkpoint(folder / f"host-{host}/checkpoints/20").find_damage() is None


def test_shards_of_different_hosts_are_combined(hosts: Any, ranks: Ranks) -> None:
    folder, checkpoints = hosts
    for host in range(3):
        for number in range(3):
            if number != host:
                shard_file(folder, host, number).unlink()
    assert find_newest(ranks, folder) == [[20, []]] * 3
    assert all(read_contents(folder, host, 20) == checkpoints[20] for host in range(3))


def test_an_incomplete_checkpoint_falls_back_to_the_previous(hosts: Any, ranks: Ranks) -> None:
    folder, checkpoints = hosts
    for host in range(3):
        shard_file(folder, host, 1).write_bytes(b"damaged everywhere")
    complaint = (
        "The checkpoint of step 20 is damaged: "
        "no host has an intact copy of shard-00001-of-00003.safetensors."
    )
    assert find_newest(ranks, folder) == [[10, [complaint]]] * 3
    assert read_contents(folder, 2, 10) == checkpoints[10]
    for host in range(3):
        (folder / f"host-{host}/checkpoints/10/COMMIT").write_bytes(b"{")
    assert find_newest(ranks, folder) == [[None, [complaint]]] * 3


def test_a_host_that_cannot_write_is_reported_by_all(hosts: Any, ranks: Ranks) -> None:
    folder, _ = hosts
    shutil.rmtree(folder / "host-2/checkpoints")
    (folder / "host-2/checkpoints").write_bytes(b"a file is in the way")
    results = find_newest(ranks, folder)
    assert all(isinstance(text, str) and text for text in results), results
    (folder / "host-2/checkpoints").unlink()
    assert find_newest(ranks, folder) == [[20, []]] * 3


def test_links_are_neither_read_nor_overwritten(hosts: Any, ranks: Ranks) -> None:
    folder, checkpoints = hosts
    (folder / "outside").write_bytes(b"mine")
    shard_file(folder, 1, 2).unlink()
    shard_file(folder, 1, 2).symlink_to(folder / "outside")
    assert find_newest(ranks, folder) == [[20, []]] * 3
    assert (folder / "outside").read_bytes() == b"mine" and not shard_file(folder, 1, 2).is_symlink()
    assert read_contents(folder, 1, 20) == checkpoints[20]


def test_a_commit_with_outside_paths_is_ignored(hosts: Any, ranks: Ranks) -> None:
    folder, _ = hosts
    (folder / "host-0" / "mine.safetensors").write_bytes(b"of the first host")
    for host in (0, 1):
        step = folder / f"host-{host}" / "checkpoints" / "20"
        step.mkdir(parents=True, exist_ok=True)
        odd = "../../mine.safetensors"
        write_commit(step, {odd: (17, file_checksum(folder / "host-0" / "mine.safetensors"))})
        assert Checkpoint(step).find_damage() == "COMMIT cannot be read"
    shutil.rmtree(folder / "host-2" / "checkpoints" / "20")
    assert find_newest(ranks, folder) == [[10, []]] * 3
    assert not (folder / "host-1" / "mine.safetensors").exists()


def test_damage_in_transfer_is_reported_by_the_receiver(hosts: Any, ranks: Ranks) -> None:
    folder, _ = hosts
    shard_file(folder, 0, 1).write_bytes(bytes(2000))  # since it was written, and as long
    for host in (1, 2):
        shard_file(folder, host, 1).unlink()
    results = ranks[1].call("tests.helpers.spread_ranks:replicate", folder=str(folder), hosts=HOSTS, step=20)
    assert results[:2] == ["", None]
    assert all(
        "shard-00001-of-00003.safetensors was damaged during the transfer" in text for text in results[2:]
    )
