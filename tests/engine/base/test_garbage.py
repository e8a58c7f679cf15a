"""Objects that stay are no work for the collector, which is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rankdeck.base.garbage import freeze_new_objects, pause_gc


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()
    gc.freeze()


def test_new_objects_are_frozen() -> None:
    before = gc.get_freeze_count()
    with freeze_new_objects():
        assert not gc.isenabled()
        objects = [[number] for number in range(10_000)]
    assert gc.isenabled() and gc.get_freeze_count() - before >= len(objects)
    assert not any(thing is objects for thing in gc.get_objects())


@pytest.mark.parametrize("context", [pause_gc, freeze_new_objects])
def test_the_state_of_the_collector_is_restored(context: type) -> None:
    gc.disable()
    with context():
        pass
    assert not gc.isenabled()
    gc.enable()
    with pytest.raises(ImportError), context():
        raise ImportError
    assert gc.isenabled()
