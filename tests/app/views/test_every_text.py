"""Every text of the app can be said in another language, and has the room for it: in a made-up one that is
longer and accented nothing is plain and nothing is cut, in every view.
"""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel, QWidget

from rankdeck_app.composition import App
from rankdeck_app.language import pseudo
from rankdeck_app.widgets.painting import read_along
from tests.helpers.every_view import EveryView
from tests.helpers.shown_texts import cut, kept_texts, plain_words, texts

SIZES = [(1280, 720), pytest.param((1440, 900), marks=pytest.mark.slow)]


@pytest.fixture
def every(every: EveryView, made_up: None) -> EveryView:
    """Written before the app starts, which speaks the made-up language."""
    return every


def wrong_in(view: str, root: QWidget) -> list[str]:
    """What of a view is plain, and what is cut."""
    kept, painted = kept_texts(), list[tuple[str, str]]()
    with read_along(lambda text: painted.append(("painted", text))):
        root.grab()
    found = [
        f"{view}: {where}: {text!r} has {words}"
        for where, text in dict.fromkeys([*texts(root), *painted])
        if (words := plain_words(text, kept))
    ]
    return [*found, *(f"{view}: cut: {one}" for one in cut(root))]


@pytest.mark.parametrize("size", SIZES, ids=["1280x720", "1440x900"])
def test_in_a_made_up_language_no_text_is_plain_and_none_is_cut(
    every: EveryView, app: App, size: tuple[int, int]
) -> None:
    app.window.resize(*size)
    wrong, views = list[str](), list[str]()
    for view, root in every.walk(app):
        views.append(view)
        wrong += wrong_in(view, root)
    assert not wrong, f"{len(wrong)} texts:\n" + "\n".join(dict.fromkeys(wrong))
    assert len(views) >= 24


def test_a_plain_word_and_a_cut_one_are_found(every: EveryView, app: App) -> None:
    label = QLabel("an English word", app.window)
    label.setGeometry(0, 0, 20, 20)
    label.show()
    assert any("English" in one for one in wrong_in("frame", app.window))
    assert any("an English word" in one for one in cut(app.window))
    label.deleteLater()


def test_what_is_filled_in_stays_as_it_is() -> None:
    assert pseudo("Save <b>{name}</b> now") == "Šààṽéé <b>{name}</b> ñööŵ"
    assert plain_words(pseudo("Save <b>{name}</b>").format(name="GPT · DDP"), kept_texts()) == []
