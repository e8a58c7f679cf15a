"""What commands say, and what dashboards draw, of recorded runs is what is kept, word for word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytestqt.qtbot import QtBot

from tests.snapshots import kept
from tests.snapshots.drawn import all_drawn
from tests.snapshots.said import Recorded, in_utc, iter_documents


@pytest.fixture(autouse=True)
def _in_utc() -> Iterator[None]:
    with in_utc():
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"))


def _differences(now: dict[str, str], *, drawn: bool) -> str:
    then = {name: text for name, text in kept.read().items() if name.endswith("dashboard.txt") == drawn}
    assert len(then) > 20 or drawn
    differences = [
        kept.difference(name, then.get(name, ""), now.get(name, "")) for name in sorted({*then, *now})
    ]
    return "\n".join(filter(None, differences))


def test_commands_say_what_they_said(recorded: Recorded) -> None:
    assert not _differences(dict(iter_documents(recorded)), drawn=False)


def test_dashboards_draw_what_they_drew(qtbot: QtBot, recorded: Recorded) -> None:
    assert not _differences(dict(all_drawn(recorded)), drawn=True)


def test_a_key_may_come_and_none_may_go_or_change() -> None:
    then = '{"steps": 3, "devices": [{"peak": 1}]}'
    assert not kept.difference("a.json", then, '{"steps": 3, "new": 1, "devices": [{"peak": 1, "host": ""}]}')
    for now in (
        '{"devices": [{"peak": 1}]}',
        '{"steps": 4, "devices": [{"peak": 1}]}',
        '{"steps": 3, "devices": [{"peak": 1}, {"peak": 1}]}',
    ):
        assert kept.difference("a.json", then, now)
    assert kept.difference("a.html", "<p>a</p>", "<p>a </p>")
