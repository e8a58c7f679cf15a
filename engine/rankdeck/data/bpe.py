"""Trains a BPE vocabulary on a sample of some text files, and writes the tokens of these files.

corpus.py runs this file as a separate process.

Bytes map to the 256 characters of Latin-1 and back, so any file can be tokenized without loss. The request on
stdin is {"files": [...], "vocabulary": 8192, "folder": "..."}; tokens.bin and tokenizer.json are written to
the folder that it names.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from rankdeck.data.corpus import NUM_BYTES, read_pieces, token_dtype

SAMPLE_BYTES = 2_000_000
PIECES_PER_BATCH = 256

# Words with the space before them, runs of punctuation, runs of white space: tokens never cross these.
TOKEN_PATTERN = r" ?\w+| ?[^\s\w]+|\s+(?!\S)|\s"


def train_tokenizer(files: Sequence[Path], vocabulary: int) -> Tokenizer:
    """Train a tokenizer on evenly spaced pieces of `files`, about SAMPLE_BYTES in total."""
    total_bytes = sum(file.stat().st_size for file in files)
    every = max(1, round(total_bytes / SAMPLE_BYTES))
    sample = (piece.decode("latin-1") for piece in itertools.islice(read_pieces(files), 0, None, every))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN_PATTERN), "isolated")
    alphabet = [chr(byte) for byte in range(NUM_BYTES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def write_tokens(tokenizer: Tokenizer, files: Sequence[Path], vocabulary: int, file: Path) -> None:
    """Write the token ids of all files to `file`, in the smallest dtype that holds `vocabulary` ids.

    Raises:
        DataError: a text file cannot be read.
        OSError: `file` cannot be written.
    """
    dtype = token_dtype(vocabulary)
    texts = (piece.decode("latin-1") for piece in read_pieces(files))
    with file.open("wb") as stream:
        while batch := list(itertools.islice(texts, PIECES_PER_BATCH)):
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                stream.write(np.asarray(encoding.ids, dtype=dtype).tobytes())


def main() -> None:
    """Read the request from stdin, and write tokens.bin and tokenizer.json to the folder that it names."""
    request = json.load(sys.stdin)
    files = [Path(file) for file in request["files"]]
    folder, vocabulary = Path(request["folder"]), int(request["vocabulary"])
    tokenizer = train_tokenizer(files, vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokens(tokenizer, files, vocabulary, folder / "tokens.bin")


if __name__ == "__main__":
    main()
