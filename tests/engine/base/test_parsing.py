"""Whatever is wrong with JSON or TOML is one sort of error."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from rankdeck.base.parsing import decoded, encoded, json_of, toml_of

DEEP = 100_000


@pytest.mark.parametrize(
    "text",
    ["[" * 70 + "]" * 70, "[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, "{", b"\xff", "", "9" * 5000],
)
def test_json_that_is_none_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        json_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP,
        "a = " + "{a=" * DEEP,
        "a = " + "{a=" * 70 + "1" + "}" * 70,
        "a." * 50_000 + "b = 1",
        "['a' .\"b\"" + ". a" * 500 + "]",
        "a",
        "a = 1\na = 2",
    ],
)
def test_toml_that_is_none_is_its_own_error(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        toml_of(text)


def test_toml_with_many_dots_is_still_toml() -> None:
    text = f"""a{".a" * 30} = "{"a." * 9}"
b = [{"0.1, " * 500}]
# {"and so on. " * 500}
"""
    assert len(toml_of(text)["b"]) == 500


def test_json_has_whole_characters() -> None:
    assert json_of('{"a\\ud800": ["\\udcff", "\\ud83d\\ude00"]}') == {"a?": ["?", "\U0001f600"]}
    assert json_of(b'"\\ud800 \xc3\xa9"') == "? \xe9"


def test_bytes_that_are_not_utf_8_are_replaced_and_what_is_deep_is_refused() -> None:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    assert decoded(decode, b'{"caf\xe9": "\xff\xfe", "whole": "\xc3\xa9"}') == {
        "caf\ufffd": "\ufffd\ufffd",
        "whole": "é",
    }
    for data in (b'{"a":' + b"[" * DEEP, b"\xff", b"[1]", b'{"a":"\xff"'):
        with pytest.raises(msgspec.DecodeError):
            decoded(decode, data)


def test_half_characters_are_written_as_question_marks() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    encode = msgspec.json.Encoder().encode
    with pytest.raises(UnicodeEncodeError):
        encode(name)
    assert encoded(encode, {name: [name, 1, None]}) == b'{"caf?":["caf?",1,null]}'
    assert encoded(encode, {"é": [1.5, True]}) == encode({"é": [1.5, True]})
