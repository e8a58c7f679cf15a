"""The store where the ranks of a configuration meet owns its socket from the moment in which it is made."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch.distributed

from rankdeck.launch.layout import single_host_layout
from rankdeck.launch.store import RankStore
from rankdeck.launch.supervisor import StopSignal


def test_a_stop_while_the_store_is_made_closes_only_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    make = torch.distributed.TCPStore
    took_its_place: list[int] = []

    def interrupted(*args: Any, master_listen_fd: int, **kwargs: Any) -> None:
        """The signal is heeded once torch returns: what it has made goes, with the socket."""
        make(*args, master_listen_fd=master_listen_fd, **kwargs)
        took_its_place.append(os.open(os.devnull, os.O_RDONLY))
        while took_its_place[-1] < master_listen_fd:
            took_its_place.append(os.open(os.devnull, os.O_RDONLY))
        raise StopSignal

    monkeypatch.setattr(torch.distributed, "TCPStore", interrupted)
    store = RankStore(single_host_layout(1, []), None, is_eager=True)
    try:
        with pytest.raises(StopSignal):
            store.serve()
        store.close()
        for handle in took_its_place:
            os.fstat(handle)
    finally:
        for handle in took_its_place:
            os.close(handle)


def test_ranks_connect_to_the_store() -> None:
    store = RankStore(single_host_layout(1, []), None, is_eager=True)
    try:
        assert store.serve() is None
        host, port = store.address
        with socket.create_connection((host, port), 5):
            pass
        client = torch.distributed.TCPStore(host, port, is_master=False, wait_for_workers=False)
        client.set("key", "value")
        assert client.get("key") == b"value"
    finally:
        store.close()
