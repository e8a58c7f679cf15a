"""Every text of the app can be said in another language, and has the room for it: in a made-up one that is
longer and accented nothing is plain and nothing is cut, in every view.
"""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel, QWidget

from rankdeck_app.composition import App
from rankdeck_app.language import pseudolocalize
from rankdeck_app.widgets.painting import record_painted_text
from tests.helpers.every_view import EveryView
from tests.helpers.shown_texts import cut_texts, untranslated_pattern, untranslated_words, visible_texts

SIZES = [(1280, 720), pytest.param((1440, 900), marks=pytest.mark.slow)]


@pytest.fixture
def every(every: EveryView, made_up: None) -> EveryView:
    """Written before the app starts, which speaks the made-up language."""
    return every


def find_text_mistakes(view: str, root: QWidget) -> list[str]:
    """What of a view is plain, and what is cut."""
    pattern, painted = untranslated_pattern(), list[tuple[str, str]]()
    with record_painted_text(lambda text: painted.append(("painted", text))):
        root.grab()
    mistakes = [
        f"{view}: {where}: {text!r} has {untranslated}"
        for where, text in dict.fromkeys([*visible_texts(root), *painted])
        if (untranslated := untranslated_words(text, pattern))
    ]
    return [*mistakes, *(f"{view}: cut: {cut_text}" for cut_text in cut_texts(root))]


@pytest.mark.parametrize("size", SIZES, ids=["1280x720", "1440x900"])
def test_pseudolocalized_texts_are_translated_and_not_cut(
    every: EveryView, app: App, size: tuple[int, int]
) -> None:
    app.window.resize(*size)
    wrong, views = list[str](), list[str]()
    for view, root in every.walk(app):
        views.append(view)
        wrong += find_text_mistakes(view, root)
    assert not wrong, f"{len(wrong)} texts:\n" + "\n".join(dict.fromkeys(wrong))
    assert len(views) >= 24


def test_untranslated_and_cut_texts_are_detected(every: EveryView, app: App) -> None:
    label = QLabel("an English word", app.window)
    label.setGeometry(0, 0, 20, 20)
    label.show()
    assert any("English" in mistake for mistake in find_text_mistakes("frame", app.window))
    assert any("an English word" in mistake for mistake in cut_texts(app.window))
    label.deleteLater()


def test_placeholder_values_are_not_pseudolocalized() -> None:
    assert pseudolocalize("Save <b>{name}</b> now") == "Šààṽéé <b>{name}</b> ñööŵ"
    assert (
        untranslated_words(
            pseudolocalize("Save <b>{name}</b>").format(name="GPT · DDP"), untranslated_pattern()
        )
        == []
    )
