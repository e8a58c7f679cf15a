"""What a line of the plan says is said in the window's language, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from PySide6.QtWidgets import QApplication

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase, sentences
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import CANNOT, PlanLine
from rankdeck_app.language import PSEUDO, forget, use_language
from rankdeck_app.state.plan_words import device_index, device_label, estimate, reason_text
from tests.helpers.told_plan import line


def cannot() -> PlanLine:
    heads = phrase("The model has {count} heads.", count=3)
    reason = sentences(
        (phrase("By what it needs at most: {reason}", reason=heads), phrase("Choose another."))
    )
    told = msgspec.structs.replace(line("tensor", devices=[], verdict=CANNOT), reason=reason)
    return plan_lines.decode(plan_lines.encode(told))


@pytest.fixture
def made_up(qapp: QApplication) -> Iterator[None]:
    translators = use_language(PSEUDO)
    yield
    forget(translators)


def test_every_sentence_of_a_reason_is_translated_and_what_is_in_it(made_up: None) -> None:
    assert reason_text(cannot()) == (
        "Ɓý ŵĥààť îîť ñééééďš ààť ɱööšť: Ťĥéé ɱööďééļ ĥààš 3 ĥééààďš. Çĥööööšéé ààñööťĥééŕ."
    )
    assert estimate(cannot())[0] == "Ťééñšööŕ þààŕààļļééļ: ñööť þŕééďîîçťééď"
    refused = msgspec.structs.replace(cannot(), refusal=Problem("config", "The model has 3 heads."))
    assert estimate(refused)[0] == "Ťééñšööŕ þààŕààļļééļ çààññööť ŕûûñ šöö"


def test_english_is_what_the_planner_said() -> None:
    assert reason_text(cannot()) == cannot().reason
    assert reason_text(line("tensor", reason="Of an older planner.")) == "Of an older planner."


def test_a_device_is_named_by_its_index(made_up: None) -> None:
    device = line("ddp").devices[1]
    assert (device_label(device), device_index(device)) == ("Ṽîîŕťûûààļ 1", "1")
