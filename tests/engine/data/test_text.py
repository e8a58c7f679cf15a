"""Text: windows of tokens, a cache that is made once, and errors that name the file."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from rankdeck.base.errors import DataError
from rankdeck.data import corpus
from rankdeck.data.corpus import corpus_files, ensure_tokens
from rankdeck.data.text import MAX_HELDOUT_WINDOWS, Text

TEXT = "the quick brown fox jumps over the lazy dog, said no one at all\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXT * 200)
    (folder / "b" / "c.txt").write_bytes(b"caf\xc3\xa9 \xff raw bytes\n" + TEXT.encode() * 50)
    (folder / ".hidden").write_text("not read")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\0\0\0")
    return folder


def read_bytes(folder: Path) -> bytes:
    return (folder / "a.txt").read_bytes() + (folder / "b" / "c.txt").read_bytes()


def test_tokens_are_bytes_and_the_target_is_the_next_token(folder: Path) -> None:
    source = Text({"path": str(folder), "context": 16})
    train, heldout = source.load()
    stream = read_bytes(folder)
    inputs, targets = train[2]
    assert bytes(inputs.tolist()) == stream[32:48]
    assert bytes(targets.tolist()) == stream[33:49]
    card = source.describe()
    assert inputs.shape == targets.shape == card.input_shape == card.target_shape
    assert inputs.dtype == targets.dtype == card.input_dtype == card.target_dtype
    assert card.vocabulary == 256
    last, _ = heldout[-1]
    assert bytes(last.tolist()) in stream[-len(stream) // 20 :]


def test_training_and_heldout_windows_share_no_token(folder: Path) -> None:
    train, heldout = Text({"path": str(folder), "context": 16}).load()
    end_of_training = train.start + train.num_windows * 16 + 1
    assert end_of_training <= heldout.start
    assert len(read_bytes(folder)) - heldout.start == len(read_bytes(folder)) // 20


def test_a_batch_equals_its_samples(folder: Path) -> None:
    train, _ = Text({"path": str(folder), "context": 16}).load()
    inputs, targets = train.read_batch([5, 0, 7])
    assert torch.equal(inputs, torch.stack([train[i][0] for i in (5, 0, 7)]))
    assert torch.equal(targets, torch.stack([train[i][1] for i in (5, 0, 7)]))
    with pytest.raises(IndexError):
        train[len(train)]


def test_bpe_decoding_restores_every_byte(folder: Path) -> None:
    train, heldout = Text({"path": str(folder), "vocabulary": 400, "context": 8}).load()
    tokenizer = Tokenizer.from_file(str(train.file.with_name("tokenizer.json")))
    assert 256 < tokenizer.get_vocab_size() <= 400
    stop = heldout.start + heldout.num_windows * 8
    tokens = torch.cat([train[i][0] for i in range(len(train))] + [train[len(train) - 1][1][-1:]])
    text = "".join(tokenizer.id_to_token(token) for token in tokens.tolist())
    assert read_bytes(folder).startswith(text.encode("latin-1"))
    assert stop < len(read_bytes(folder)) / 3


def test_the_cache_is_rebuilt_only_for_other_contents(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_tokens(str(folder), 400)
    assert home in first.parents
    monkeypatch.setattr(corpus, "_build_tokens", pytest.fail)
    assert ensure_tokens(str(folder), 400) == first
    os.utime(folder / "a.txt", (1, 1))
    assert ensure_tokens(str(folder), 400) == first
    monkeypatch.undo()
    monkeypatch.setenv("RANKDECK_HOME", str(home))
    (folder / "a.txt").write_text(TEXT * 199)
    assert ensure_tokens(str(folder), 400) != first


def test_several_processes_can_build_the_cache_at_once(folder: Path, home: Path) -> None:
    code = f"from rankdeck.data.corpus import ensure_tokens; print(ensure_tokens({str(folder)!r}, 400))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    paths = {process.communicate(timeout=60)[0].strip() for process in started}
    assert len(paths) == 1
    assert [process.returncode for process in started] == [0, 0, 0]
    names = sorted(entry.name for entry in (home / "cache" / "text").iterdir())
    assert names == sorted([Path(paths.pop()).parent.name, "seen"])


def test_building_the_cache_starts_no_threads_and_no_torch(folder: Path) -> None:
    code = (
        "import os, sys; from rankdeck.data.corpus import ensure_tokens;"
        f"before = len(os.listdir('/proc/self/task')); ensure_tokens({str(folder)!r}, 400);"
        "print(len(os.listdir('/proc/self/task')) - before, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


def test_the_standard_library_corpus_has_a_size_limit() -> None:
    files = corpus_files("@stdlib")
    total_bytes = sum(file.stat().st_size for file in files)
    assert corpus.STDLIB_CAP_BYTES * 0.9 < total_bytes <= corpus.STDLIB_CAP_BYTES
    assert not any("site-packages" in file.parts for file in files)
    train, heldout = Text({}).load()
    assert len(train) > 50_000
    assert 0 < len(heldout) <= MAX_HELDOUT_WINDOWS


def test_a_pickled_dataset_contains_no_tokens(folder: Path) -> None:
    train, _ = Text({"path": str(folder), "context": 16}).load()
    sample = train[3][0]
    frozen = pickle.dumps(train)
    assert len(frozen) < 2000
    assert torch.equal(pickle.loads(frozen)[3][0], sample)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_path_without_text_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=name) as caught:
        Text({"path": str(tmp_path / name)}).prepare()
    assert "@stdlib" in (caught.value.advice or "")


def test_a_short_text_is_refused_with_a_context_that_fits(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x" * 100)
    with pytest.raises(DataError, match="has 100 tokens") as caught:
        Text({"path": str(tmp_path / "short.txt")}).load()
    assert "a context of 49 or less" in (caught.value.advice or "")
    train, heldout = Text({"path": str(tmp_path / "short.txt"), "context": 49}).load()
    assert len(train) == len(heldout) == 1


def test_a_cache_that_cannot_be_written_is_named(folder: Path, home: Path) -> None:
    home.write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written to the cache"):
        Text({"path": str(folder)}).prepare()
