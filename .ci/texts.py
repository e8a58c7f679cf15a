"""The texts that the window takes from somewhere else than a call of `tr` with a constant, as such calls: of
cards, of options, of presets. For `make texts`, which reads them as it reads the code.
"""

import json
from collections.abc import Iterator

from pydantic import BaseModel

from rankdeck.config import catalog, presets, schema
from rankdeck_app.widgets.form import option_label

TABLES = (
    catalog.STRATEGIES,
    catalog.MODELS,
    catalog.DATA,
    catalog.LOSSES,
    catalog.OPTIMIZERS,
    catalog.SCHEDULES,
)
SAID = ("title", "hint", "summary", "lives", "sends", "wins", "breaks")


def options() -> Iterator[type[BaseModel]]:
    for value in (*vars(catalog).values(), *vars(schema).values()):
        if isinstance(value, type) and issubclass(value, BaseModel) and value.model_fields:
            yield value


def texts() -> Iterator[str]:
    for card in (card for table in TABLES for card in table.values()):
        yield from (getattr(card, name, "") for name in SAID)
    for field in (field for each in options() for field in catalog.option_fields(each)):
        yield from (option_label(field.name), field.text)
    for preset in presets.list_presets():
        yield from (preset.title, preset.text, preset.about, preset.lesson)


for text in dict.fromkeys(filter(None, texts())):
    print(f"tr({json.dumps(text, ensure_ascii=False)})")
