"""Whatever is wrong with JSON or TOML is one sort of error."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from rankdeck.base.parsing import decode_json, encode_json, parse_json, parse_toml

DEEP = 100_000


@pytest.mark.parametrize(
    "text",
    ["[" * 70 + "]" * 70, "[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, "{", b"\xff", "", "9" * 5000],
)
def test_invalid_json_raises_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


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
def test_invalid_toml_raises_a_toml_error(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)


def test_toml_with_many_dots_is_accepted() -> None:
    text = f"""a{".a" * 30} = "{"a." * 9}"
b = [{"0.1, " * 500}]
# {"and so on. " * 500}
"""
    assert len(parse_toml(text)["b"]) == 500


def test_lone_surrogates_in_json_become_question_marks() -> None:
    assert parse_json('{"a\\ud800": ["\\udcff", "\\ud83d\\ude00"]}') == {"a?": ["?", "\U0001f600"]}
    assert parse_json(b'"\\ud800 \xc3\xa9"') == "? \xe9"


def test_invalid_utf_8_is_replaced_and_deep_nesting_is_refused() -> None:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    assert decode_json(decode, b'{"caf\xe9": "\xff\xfe", "whole": "\xc3\xa9"}') == {
        "caf\ufffd": "\ufffd\ufffd",
        "whole": "é",
    }
    for data in (b'{"a":' + b"[" * DEEP, b"\xff", b"[1]", b'{"a":"\xff"'):
        with pytest.raises(msgspec.DecodeError):
            decode_json(decode, data)


def test_lone_surrogates_are_written_as_question_marks() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    encode = msgspec.json.Encoder().encode
    with pytest.raises(UnicodeEncodeError):
        encode(name)
    assert encode_json(encode, {name: [name, 1, None]}) == b'{"caf?":["caf?",1,null]}'
    assert encode_json(encode, {"é": [1.5, True]}) == encode({"é": [1.5, True]})
