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
    CatalogSpec,
    DdpOptions,
    GptArgs,
    MlpArgs,
    ResnetArgs,
    option_fields,
)
from rankdeck.data.digits import NUM_TRAIN

TABLES: list[Mapping[str, CatalogSpec]] = [STRATEGIES, MODELS, DATA, LOSSES, OPTIMIZERS, SCHEDULES]
SPECS = [card for table in TABLES for card in table.values()]


@pytest.mark.parametrize("card", SPECS, ids=lambda card: f"{card.target}")
def test_every_spec_has_a_module_a_title_and_a_short_hint(card: CatalogSpec) -> None:
    module = card.target.partition(":")[0]
    assert importlib.util.find_spec(module) is not None
    assert card.title and card.summary and len(card.hint.split()) <= 4


@pytest.mark.parametrize("card", STRATEGIES.values(), ids=lambda card: card.name)
def test_every_strategy_loads_and_describes_itself(card: CatalogSpec) -> None:
    assert callable(card.load())
    strategy = STRATEGIES[card.name]
    assert all((strategy.placement, strategy.communication, strategy.strengths, strategy.limits))


def test_option_fields_have_bounds_choices_and_defaults() -> None:
    fields = {field.name: field for field in option_fields(DdpOptions)}
    assert fields["bucket_mb"].kind == "float"
    assert (fields["bucket_mb"].minimum, fields["bucket_mb"].maximum) == (0, 1024)
    assert fields["gradient_as_bucket_view"].kind == "bool"
    assert fields["sync"].kind == "choice"
    assert fields["sync"].default in fields["sync"].choices


def test_option_fields_distinguish_optional_lists_and_numbers() -> None:
    gpt = {field.name: field for field in option_fields(GptArgs)}
    assert gpt["vocabulary"].optional and gpt["vocabulary"].kind == "int" and gpt["vocabulary"].minimum == 1
    assert gpt["layers"].default == 4 and not gpt["layers"].optional
    assert [field.kind for field in option_fields(MlpArgs)] == ["list", "int", "float"]
    assert option_fields(ResnetArgs)[0].choices == (18, 34, 50, 101)


def test_the_digits_spec_has_the_number_of_samples() -> None:
    assert DATA["digits"].train_samples == NUM_TRAIN


def test_the_tables_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        STRATEGIES["mine"] = STRATEGIES["ddp"]  # type: ignore[index]
