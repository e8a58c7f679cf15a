"""Options are found on the line on which a person wrote them."""

from __future__ import annotations

from rankdeck.base.parsing import find_line, key_lines

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


def test_a_key_inside_a_string_is_ignored() -> None:
    assert ("not_a_table",) not in key_lines(TEXT)


def test_a_value_in_an_inline_table_has_the_line_of_the_table() -> None:
    assert find_line(key_lines(TEXT), ("train", "optimizer", "lr")) == 10


def test_an_absent_key_has_the_line_of_its_table_or_none() -> None:
    lines = key_lines(TEXT)
    assert find_line(lines, ("train", "seed")) == 7
    assert find_line(lines, ("model", "use")) is None


def test_a_value_from_the_command_line_has_no_line() -> None:
    lines = key_lines(TEXT)
    lines["train", "steps"] = None
    assert find_line(lines, ("train", "steps")) is None
