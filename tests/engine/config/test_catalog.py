"""The tables of what can be chosen, and the forms that are made of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import pytest

from rankdeck.config.catalog import (
    DATA,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    STRATEGIES,
    CatalogCard,
    DdpOptions,
    GptArgs,
    MlpArgs,
    ResnetArgs,
    option_fields,
)
from rankdeck.data.digits import NUM_TRAIN

TABLES: list[Mapping[str, CatalogCard]] = [STRATEGIES, MODELS, DATA, LOSSES, OPTIMIZERS, SCHEDULES]
CARDS = [card for table in TABLES for card in table.values()]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"{card.target}")
def test_every_card_points_at_a_module_and_speaks_in_short_words(card: CatalogCard) -> None:
    module = card.target.partition(":")[0]
    assert importlib.util.find_spec(module) is not None
    assert card.title and card.summary and len(card.hint.split()) <= 4


@pytest.mark.parametrize("card", STRATEGIES.values(), ids=lambda card: card.name)
def test_every_strategy_loads_and_answers_the_four_questions(card: CatalogCard) -> None:
    assert callable(card.load())
    strategy = STRATEGIES[card.name]
    assert all((strategy.lives, strategy.sends, strategy.wins, strategy.breaks))


def test_fields_carry_bounds_choices_and_defaults() -> None:
    fields = {field.name: field for field in option_fields(DdpOptions)}
    assert fields["bucket_mb"].kind == "float"
    assert (fields["bucket_mb"].minimum, fields["bucket_mb"].maximum) == (0, 1024)
    assert fields["gradient_as_bucket_view"].kind == "bool"
    assert fields["sync"].kind == "choice"
    assert fields["sync"].default in fields["sync"].choices


def test_optional_lists_and_plain_numbers_are_told_apart() -> None:
    gpt = {field.name: field for field in option_fields(GptArgs)}
    assert gpt["vocabulary"].optional and gpt["vocabulary"].kind == "int" and gpt["vocabulary"].minimum == 1
    assert gpt["layers"].default == 4 and not gpt["layers"].optional
    assert [field.kind for field in option_fields(MlpArgs)] == ["list", "int", "float"]
    assert option_fields(ResnetArgs)[0].choices == (18, 34, 50, 101)


def test_digits_has_as_many_samples_as_its_card_says() -> None:
    assert DATA["digits"].train_samples == NUM_TRAIN


def test_the_tables_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        STRATEGIES["mine"] = STRATEGIES["ddp"]  # type: ignore[index]
