"""Objects that stay are no work for the collector, which is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rankdeck.base.garbage import collector_paused, kept_for_good


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()
    gc.freeze()


def test_what_is_made_inside_is_not_gone_over_later() -> None:
    before = gc.get_freeze_count()
    with kept_for_good():
        assert not gc.isenabled()
        made = [[number] for number in range(10_000)]
    assert gc.isenabled() and gc.get_freeze_count() - before >= len(made)
    assert not any(thing is made for thing in gc.get_objects())


@pytest.mark.parametrize("context", [collector_paused, kept_for_good])
def test_a_collector_that_was_off_stays_off_and_an_error_leaves_it_as_it_was(context: type) -> None:
    gc.disable()
    with context():
        pass
    assert not gc.isenabled()
    gc.enable()
    with pytest.raises(ImportError), context():
        raise ImportError
    assert gc.isenabled()
