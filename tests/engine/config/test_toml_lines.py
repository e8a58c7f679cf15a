"""Options are found on the line on which a person wrote them."""

from __future__ import annotations

from rankdeck.base.parsing import key_lines, line_of

TEXT = '''name = "x"
note = """
[not_a_table]
steps = 3
"""

[train]   # how long
steps = 5
"global batch" = 3
optimizer = { use = "sgd",
              lr = 1 }
schedule.use = "cosine"

[ data . args ]
path = "a"
'''


def test_headers_keys_and_dotted_keys_have_their_lines() -> None:
    lines = key_lines(TEXT)
    assert lines[("name",)] == 1
    assert lines[("train",)] == 7
    assert lines[("train", "steps")] == 8
    assert lines[("train", "global batch")] == 9
    assert lines[("train", "schedule", "use")] == 12
    assert lines[("data", "args", "path")] == 15


def test_what_stands_inside_text_is_no_key() -> None:
    assert ("not_a_table",) not in key_lines(TEXT)


def test_a_value_inside_an_inline_table_stands_on_the_line_of_its_table() -> None:
    assert line_of(key_lines(TEXT), ("train", "optimizer", "lr")) == 10


def test_what_is_not_written_down_stands_where_its_table_begins_or_nowhere() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("train", "seed")) == 7
    assert line_of(lines, ("model", "use")) is None


def test_what_was_given_elsewhere_has_no_line() -> None:
    lines = key_lines(TEXT)
    lines["train", "steps"] = None
    assert line_of(lines, ("train", "steps")) is None
