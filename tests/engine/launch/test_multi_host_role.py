"""What a run of several hosts cannot be started with is said before anything begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankdeck.cli.rendezvous import multi_host_role, print_join_address
from rankdeck.config import from_dict
from rankdeck.events import DeviceInfo
from rankdeck.launch.layout import Layout, LayoutHost, parse_layout, single_host_layout
from rankdeck.launch.multi_host_role import MultiHostRole
from rankdeck.run_dir import RunDir
from tests.helpers.cli import rankdeck_in_process

_ADDRESS = "127.0.0.1:9/aaaaaaaaaaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hosts", "2"), "either --listen or --join"),
        (("--listen", "127.0.0.1"), "needs the number of hosts"),
        (("--hosts", "2", "--listen", "127.0.0.1", "--join", _ADDRESS), "either --listen or --join"),
        (("--hosts", "1", "--listen", "127.0.0.1"), "(--hosts) must be at least 2, not 1"),
        (("--hosts", "2", "--listen", "203.0.113.7"), "Cannot listen on 203.0.113.7"),
        (("--hosts", "2", "--listen", "0.0.0.0"), "every address of this host"),
        (("--hosts", "2", "--listen", "no such host"), "Cannot listen on"),
        (("--hosts", "2", "--join", "box1"), "is not a valid join address"),
        (("--hosts", "2", "--join", "127.0.0.1:99999/aaaaaaaaaaaaaaaaaaaa"), "is not a valid join address"),
        (("--hosts", "2", "--join", f"{_ADDRESS}/../x@1"), "is not a valid join address"),
        (("--hosts", "2", "--join", f"{_ADDRESS}/.x@1"), "is not a valid join address"),
        (("--hosts", "2", "--join", _ADDRESS, "--strategy", "dp"), "dp uses a single process"),
        (
            ("--hosts", "2", "--join", _ADDRESS, "--strategy", "tensor", "--devices", "cpu:2"),
            "Every tensor group needs 4 consecutive ranks",
        ),
        (("--hosts", "3", "--join", _ADDRESS, "--set", 'hosts.use=["a", "b"]'), "hosts.use lists 2 hosts"),
        (("--join", _ADDRESS, "--set", 'hosts.use=["a", "b"]'), "hosts.use does not list it"),
        (("--hosts", "2", "--join", _ADDRESS, "--set", "train.global_batch=1"), "global_batch"),
    ],
)
def test_incompatible_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    command = ("train", "digits-mlp", "--devices", "cpu:1", "--strategy", "ddp", "--runs", tmp_path / "runs")
    result = rankdeck_in_process(*command, *arguments, exit_code=2)
    assert message in result.err and "Traceback" not in result.err
    assert not (tmp_path / "runs").exists()


def test_an_unreachable_coordinator_is_named_with_its_address(tmp_path: Path) -> None:
    command = ("train", "digits-mlp", "--devices", "cpu:1", "--strategy", "ddp", "--runs", tmp_path / "runs")
    result = rankdeck_in_process(*command, "--hosts", "2", "--join", _ADDRESS, exit_code=3)
    assert "127.0.0.1:9: Connection refused" in result.err
    assert not [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]


def test_the_join_address_of_the_coordinator_is_accepted(tmp_path: Path) -> None:
    coordinator = MultiHostRole.as_coordinator(3, "127.0.0.1")
    assert coordinator.listener is not None
    with coordinator.listener:
        address, at = coordinator.join_address("a-run-1", 2), coordinator.listener.getsockname()
    node = MultiHostRole.as_node(3, address)
    assert (node.coordinator_address, node.run, node.attempt) == (at, "a-run-1", 2)
    assert node.folder_name(tmp_path) == "a-run-1" and coordinator.folder_name(tmp_path) is None
    (tmp_path / "a-run-1").mkdir()
    assert node.folder_name(tmp_path) == f"a-run-1-{node.name}"
    assert node.secret == coordinator.secret and len(coordinator.secret) >= 32

    def digest(folder: str, seed: int) -> str:
        tables = {"train": {"seed": seed}, "model": {"use": "own/net.py:make"}}
        config = from_dict(tables, folder=Path(folder))
        host_spec = node.hosts_spec(config, [DeviceInfo(0, "Virtual 0", "virtual")])["own"]
        return str(host_spec["config"])

    assert digest("/a", 3) == digest("/b", 3) != digest("/a", 4)


def test_the_join_address_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = MultiHostRole.as_coordinator(2, "127.0.0.1")
    assert coordinator.listener is not None
    with coordinator.listener:
        print_join_address(RunDir(tmp_path / "a-run-1"), coordinator, 2, quiet=False)
    output = capsys.readouterr().err
    (address,) = re.findall(rf"127\S+{coordinator.secret}\S*", output)
    (variable,) = re.findall(r"(\w+)=ADDRESS", output)
    config = from_dict({}, folder=tmp_path)
    assert multi_host_role(config, None, None, None) is None
    monkeypatch.setenv(variable, address)
    node = multi_host_role(config, "2", None, None)
    assert node is not None and (node.secret, node.run, node.attempt) == (coordinator.secret, "a-run-1", 2)


def hello_of(folder: Path, use: str = "net.py:make", kind: str = "virtual") -> dict[str, object]:
    """What a host says of itself whose configuration is in that folder."""
    config = from_dict({"model": {"use": use}, "strategy": {"use": "ddp"}}, folder=folder)
    spec = MultiHostRole.as_node(2, _ADDRESS).hosts_spec(config, [DeviceInfo(0, "one", kind)])
    return spec["own"]


def test_lock_files_are_compared_where_user_code_runs(tmp_path: Path) -> None:
    texts = {"a": b"one", "b": b"one", "c": b"two"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "poetry.lock").write_bytes(text)
    a, b, c = (hello_of(tmp_path / name)["lock"] for name in texts)
    assert a and a == b != c
    assert hello_of(tmp_path)["lock"] == hello_of(tmp_path / "a", "mlp")["lock"] == ""


def test_the_nccl_version_is_compared_where_devices_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, more in (("torch", "Requires-Dist: nvidia-nccl-cu12==2.27.5\n"), ("nvidia-nccl-cu12", "")):
        dist_info = tmp_path / f"{name.replace('-', '_')}-2.27.5.dist-info"
        dist_info.mkdir()
        (dist_info / "METADATA").write_text(f"Name: {name}\nVersion: 2.27.5\n{more}")
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = [hello_of(tmp_path, kind=kind)["nccl"] for kind in ("gpu", "virtual")]
    assert versions == ["2.27.5", ""]


def test_each_host_takes_its_own_devices_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = {
        "hosts": {"use": ["a", "b"], "devices": {"b": "cpu:3"}},
        "strategy": {"use": "ddp"},
        "devices": {"use": "cpu:1"},
    }
    config = from_dict(tables, folder=tmp_path)
    assert config.known_count == 4
    devices = {}
    for name in ("a", "b"):
        monkeypatch.setenv("RANKDECK_HOST", name)
        node = MultiHostRole.as_node(2, _ADDRESS)
        devices[name] = node.for_this_host(config).devices.use
        assert node.device_counts(config, num_local_devices=7) == [1, 3]
    assert devices == {"a": "cpu:1", "b": "cpu:3"}


def test_the_secret_is_in_no_process_list_and_no_file() -> None:
    node = MultiHostRole.as_node(2, "127.0.0.1:9/" + "s" * 32)
    assert node.mask_secret(["rankdeck", "--join", "127.0.0.1:9/" + "s" * 32]) == [
        "rankdeck",
        "--join",
        "127.0.0.1:9/...",
    ]


def test_ranks_and_devices_are_numbered_over_all_hosts() -> None:
    def make_host(name: str, ranks: int) -> LayoutHost:
        devices = [DeviceInfo(index, f"GPU {index}", "gpu") for index in range(ranks)]
        return LayoutHost(name, "127.0.0.1", ranks, devices)

    layout = Layout([make_host("a", 2), make_host("b", 1), make_host("c", 3)], index=2)
    assert (layout.world_size, layout.local_ranks, layout.is_single_host) == (6, range(3, 6), False)
    assert [device.index for device in layout.devices] == list(range(6))
    assert layout.devices[2].title == "b GPU 0" and layout.interface() == "lo"
    single = single_host_layout(2, make_host("", 2).devices)
    assert single.is_single_host and single.local_ranks == range(2) and single.devices[0].name == "GPU 0"
    with pytest.raises(ValueError):
        parse_layout('{"hosts": [{"name": 1}]}')
