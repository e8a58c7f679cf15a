"""Secrets in arguments are masked by their names and by their shapes; what only looks like one stays."""

from __future__ import annotations

import pytest

from rankdeck.base.masking import (
    MASK,
    is_secret_name,
    mask_arguments,
    mask_table,
    mask_text,
    replace_control_characters,
)

HF = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    "name",
    [
        "hf-token",
        "token",
        "password",
        "db_passwd",
        "API_KEY",
        "WANDB_API_KEY",
        "openai-api-key",
        "apikey",
        "AWS_SECRET_ACCESS_KEY",
        "secret",
        "client-secret",
        "hfToken",
        "model.args.auth_token",
        "github-pat",
    ],
)
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokens",
        "max-tokens",
        "tokenizer",
        "token-dim",
        "pad-token",
        "eos_token",
        "key",
        "sort-key",
        "path",
        "author",
        "pattern",
        "bypass",
        "passes",
        "num_heads",
    ],
)
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_arguments_are_masked_by_name_and_by_shape() -> None:
    arguments = [
        "train.py",
        "--hf-token",
        "X",
        "--password=Y",
        "--lr",
        "0.1",
        HF,
        "--set",
        "model.args.token=Z",
    ]
    assert mask_arguments(arguments) == [
        *("train.py", "--hf-token", MASK, f"--password={MASK}", "--lr", "0.1", MASK),
        *("--set", f"model.args.token={MASK}"),
    ]
    assert mask_arguments(["--token", "--verbose"]) == ["--token", "--verbose"]
    plain = ["--max-tokens", "100", "--tokenizer=gpt2", "sk-learn", "https://host/a:b@c"]
    assert mask_arguments(plain) == plain


@pytest.mark.parametrize(
    "text", ["Basic GPT, key 3", "sk-learn-baseline", "revision " + "0a" * 20, "a: b = c"]
)
def test_run_names_are_not_masked(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "text", ["Authorization: Bearer S", "x --password 'S T'", "curl https://S@host", "pwd=S"]
)
def test_a_secret_within_a_text_is_masked(text: str) -> None:
    assert "S" not in mask_text(text) and MASK in mask_text(text)


def test_a_masked_url_keeps_its_host() -> None:
    assert mask_text("postgres://me:pass@host/db") == f"postgres://{MASK}@host/db"


def test_tables_are_masked_and_masking_twice_changes_nothing() -> None:
    table = {
        "name": "x",
        "script": {"args": ["--token", "T"], "environment": {"HF_TOKEN": "T", "HOME": "/h"}, "ranks": 2},
        "model": {"args": {"api_key": "K", "width": 8, "token": ""}},
    }
    masked = mask_table(table)
    assert masked == {
        "name": "x",
        "script": {"args": ["--token", MASK], "environment": {"HF_TOKEN": MASK, "HOME": "/h"}, "ranks": 2},
        "model": {"args": {"api_key": MASK, "width": 8, "token": ""}},
    }
    assert mask_table(masked) == masked


def test_control_characters_are_replaced() -> None:
    assert replace_control_characters("a\u202eb\x1b[31mc\n\td") == "a?b?[31mc\n\td"
