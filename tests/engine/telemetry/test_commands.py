"""What of a process's command is shown: enough to know it by, and nothing that looks like a secret."""

from __future__ import annotations

import pytest

from rankdeck.telemetry.attribution import MAX_COMMAND_LENGTH, format_command

SECRET = "hunter2-with-more"


@pytest.mark.parametrize(
    "command",
    [
        f"train.py --token {SECRET} --lr 3",
        f"train.py --hf-token={SECRET} --lr 3",
        f"train.py -p --db_password {SECRET} --lr 3",
        f"train.py --apiKey {SECRET} --lr 3",
        f"env WANDB_API_KEY={SECRET} train.py --lr 3",
        f"env AWS_SECRET_ACCESS_KEY={SECRET} train.py --lr 3",
        f"train.py postgres://me:{SECRET}@host/data --lr 3",
        f"train.py https://host/data?token={SECRET}&part=1 --lr 3",
        f"train.py https://{SECRET}@host/data --lr 3",
        "train.py hf_abcdefghijklmnopqrstuvwx --lr 3",
        "train.py sk-abcdefghijklmnopqrstuvwx --lr 3",
        "train.py AKIAABCDEFGHIJKLMNOP --lr 3",
    ],
)
def test_secrets_in_options_are_masked(command: str) -> None:
    text = format_command(command.split(" "))
    assert "***" in text and text.endswith("--lr 3") and "train.py" in text
    for secret in (SECRET, "abcdefghijklmnop", "AKIA"):
        assert secret not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["bash", "-c", f"HF_TOKEN={SECRET} python x.py"],
        ["bash", "-c", f"python x.py --password '{SECRET} and more'"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["python", "-c", f'api_key = "{SECRET}"'],
        ["x", "--password", f"-{SECRET}"],
    ],
)
def test_secrets_within_arguments_are_masked(arguments: list[str]) -> None:
    assert SECRET not in format_command(arguments) and "***" in format_command(arguments)


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --tokenizer gpt2 --max-tokens 512 --num_tokens=3",
        "torchrun --nproc_per_node=2 --rdzv_endpoint=localhost:29500 train.py --author me",
        "python -m http.server --bind 0.0.0.0 https://host/path?page=2",
    ],
)
def test_ordinary_options_are_not_masked(command: str) -> None:
    assert format_command(command.split(" ")) == command


def test_a_command_is_one_line_of_limited_length() -> None:
    text = format_command(["python", "-c", "a\nb\x1b[2J", "\udcd0", "x" * 1000])
    assert text.isprintable() and len(text) == MAX_COMMAND_LENGTH and text.encode()
