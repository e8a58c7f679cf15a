"""What a line of the plan says is said in the window's language, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from PySide6.QtWidgets import QApplication

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import join_sentences, phrase
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import CANNOT, PlanLine
from rankdeck_app.language import PSEUDO, remove_translators, use_language
from rankdeck_app.state.plan_text import device_index, device_label, estimate_texts, reason_text
from tests.helpers.fake_plan import plan_line


def make_refused_line() -> PlanLine:
    heads = phrase("The model has {count} heads.", count=3)
    reason = join_sentences((phrase("In the worst case: {reason}", reason=heads), phrase("Choose another.")))
    refused_line = msgspec.structs.replace(plan_line("tensor", devices=[], verdict=CANNOT), reason=reason)
    return plan_lines.decode(plan_lines.encode(refused_line))


@pytest.fixture
def made_up(qapp: QApplication) -> Iterator[None]:
    translators = use_language(PSEUDO)
    yield
    remove_translators(translators)


def test_every_sentence_of_a_reason_is_translated(made_up: None) -> None:
    assert reason_text(make_refused_line()) == (
        "Îñ ťĥéé ŵööŕšť çààšéé: Ťĥéé ɱööďééļ ĥààš 3 ĥééààďš. Çĥööööšéé ààñööťĥééŕ."
    )
    assert estimate_texts(make_refused_line())[0] == "Ťééñšööŕ þààŕààļļééļ: ñööť þŕééďîîçťééď"
    refused = msgspec.structs.replace(
        make_refused_line(), refusal=Problem("config", "The model has 3 heads.")
    )
    assert estimate_texts(refused)[0] == "Ťééñšööŕ þààŕààļļééļ çààññööť ŕûûñ"


def test_english_reasons_are_unchanged() -> None:
    assert reason_text(make_refused_line()) == make_refused_line().reason
    assert reason_text(plan_line("tensor", reason="Of an older planner.")) == "Of an older planner."


def test_a_device_is_named_by_its_index(made_up: None) -> None:
    device = plan_line("ddp").devices[1]
    assert (device_label(device), device_index(device)) == ("Ṽîîŕťûûààļ 1", "1")
