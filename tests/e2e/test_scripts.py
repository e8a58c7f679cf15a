"""Scripts that use torch.distributed run under `rankdeck run` as under torchrun, and say what broke."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers import launching
from tests.helpers.scripts import launch_script, log, wait_for_script_end
from tests.helpers.waiting import scale_timeout

_RAISES_ONCE = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.tensor([float(rank + 1)])
dist.all_reduce(tensor)
print(rank, dist.get_world_size(), tensor.item(), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    raise ValueError("bad batch")
dist.all_reduce(tensor)
dist.destroy_process_group()
"""


def test_ranks_rendezvous_and_the_failing_rank_is_the_cause(tmp_path: Path) -> None:
    """Rank 1 raises, rank 0 loses its connection; the attempt after has a new store."""
    run = launch_script(tmp_path, _RAISES_ONCE, ranks=2, max_restarts=1)
    launching.wait_for_exit_record(run, scale_timeout(60))
    end, status = wait_for_script_end(run)
    assert (end.outcome, status) == ("completed", 0)
    for attempt in (0, 1):
        assert [log(run, rank, attempt=attempt) for rank in (0, 1)] == [b"0 2 3.0\n", b"1 2 3.0\n"]
    (restarted,) = launching.read_problems(run, "warning")
    assert (restarted.code, restarted.rank, restarted.line) == ("restarted", 1, 10)
    assert restarted.message.startswith(
        f"rank 1 raised ValueError: bad batch ({tmp_path / 'train.py'}, line 10)"
    )
    assert not list(run.logs_folder.glob("store*")), "a store has nothing to say"


# Two ranks find one above, and one rank that asks is below, without torch.
@pytest.mark.slow
def test_a_single_rank_can_init_a_process_group(tmp_path: Path) -> None:
    source = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    print(dist.get_world_size())
    dist.destroy_process_group()
    """
    run = launch_script(tmp_path, source)
    launching.wait_for_exit_record(run, scale_timeout(60))
    assert wait_for_script_end(run)[1] == 0 and log(run) == b"1\n"


def test_a_missing_torch_is_reported_only_if_ranks_use_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    source = """
    import os, socket, sys
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if len(sys.argv) > 1:
        with socket.create_connection(address) as store:
            store.recv(1)
    """
    environment = {"PYTHONPATH": str(tmp_path)}
    silent = launch_script(tmp_path, source, ranks=2, environment=environment)
    assert wait_for_script_end(silent)[1] == 0 and not launching.read_problems(silent, "warning")
    asking = launch_script(tmp_path, source, ranks=2, environment=environment, args=["ask"])
    _, status = wait_for_script_end(asking)
    assert status == 1, "a connection that is closed is the script's to bear"
    (warning,) = launching.read_problems(asking, "warning")
    assert warning.code == "no-store" and "no torch here" in warning.message


@pytest.mark.parametrize("url", [pytest.param("tcp://127.0.0.1:{port}", marks=pytest.mark.slow), "env://"])
def test_spawned_ranks_rendezvous_and_are_observed(tmp_path: Path, url: str) -> None:
    """Under torchrun they wait for ever for a store that nobody may host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = f"""
        import os, torch, torch.distributed as dist, torch.multiprocessing as mp
        def train(rank):
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
            dist.init_process_group("gloo", init_method="{url.format(port=port)}", rank=rank, world_size=2)
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                loss = model(torch.ones(2, 4)).square().mean() + rank
                loss.backward()
                optimizer.step()
            dist.destroy_process_group()
        if __name__ == "__main__":
            mp.spawn(train, nprocs=2)
    """
    run = launch_script(tmp_path, source, observe="light")
    assert wait_for_script_end(run)[1] == 0, log(run, kind="err")
    run_events = [event for _, event in launching.all_events(run)]
    started = {event.rank: event for event in run_events if isinstance(event, events.RankStarted)}
    assert {
        rank: (started_event.world_size, started_event.devices) for rank, started_event in started.items()
    } == {0: (2, [0]), 1: (2, [1])}
    steps = {
        rank: [e for e in run_events if isinstance(e, events.Steps) and e.rank == rank] for rank in started
    }
    assert [sum(len(started_event.ended) for started_event in of_rank) for of_rank in steps.values()] == [
        5,
        5,
    ]
    losses = [(of_rank[0].loss_sum or [None])[0] for of_rank in steps.values()]
    assert losses[1] is not None and losses[1] >= 1 and losses[0] != losses[1]
