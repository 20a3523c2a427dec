"""One measurement in a process of its own: `python -m benchmarks.work WORK SIDE CORPUS TOKENIZER`.

Prints a JSON object: seconds (imports, reading the file and compiling left out), bytes worked on,
and a digest of the result, which must be the same on both sides.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 32_000
# The slower side would need minutes for more.
ENCODE_BYTES = 48 << 20
SPLIT_BYTES = 8 << 20

Measured = tuple[float, int, bytes]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took on the clock, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def documents(corpus: Path, n_bytes: int) -> list[str]:
    """Return whole documents from the beginning of a corpus, of about so many bytes together."""
    with open(corpus, "rb") as file:
        text = file.read(n_bytes).decode("utf-8", "ignore")
    return [document for document in text.split(END_OF_TEXT) if document]


def joined(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all texts and where each begins and ends."""
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])


def merges_digest(merges: list[tuple[bytes, bytes]]) -> bytes:
    """Return the merges as bytes that can be compared."""
    return b"\n".join(left.hex().encode() + b" " + right.hex().encode() for left, right in merges)


def train_tokenbin(corpus: Path, tokenizer: Path) -> Measured:
    """Train on two threads, with gigatoken's tie-break."""
    from bpe import train_bpe

    train_bpe(iter(["text text", "more"]), 257)
    seconds, trained = timed(
        lambda: train_bpe(
            corpus, VOCAB_SIZE, [END_OF_TEXT], tie_break="huggingface", min_frequency=1, workers=2
        )
    )
    return seconds, corpus.stat().st_size, merges_digest(trained.merges)


def train_gigatoken(corpus: Path, tokenizer: Path) -> Measured:
    """Train with gigatoken, on as many threads as there are processors."""
    import gigatoken

    source = gigatoken.TextFileSource([str(corpus)], separator=END_OF_TEXT)
    seconds, (_, merges) = timed(
        lambda: gigatoken.train_bpe(source, VOCAB_SIZE, [END_OF_TEXT], tie_breaking="huggingface")
    )
    return seconds, corpus.stat().st_size, merges_digest(merges)


def encode_tokenbin(corpus: Path, tokenizer: Path) -> Measured:
    """Encode on one thread, the cache of words empty."""
    from bpe import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    loaded.new_encoder().encode(*joined(["text"]))
    encoder = loaded.new_encoder()
    # In batches of about a megabyte, as the builder does.
    batches: list[list[str]] = [[]]
    for text in documents(corpus, ENCODE_BYTES):
        if sum(map(len, batches[-1])) >= 1 << 20:
            batches.append([])
        batches[-1].append(text)
    parts = [joined(batch) for batch in batches]
    seconds, encoded = timed(lambda: [encoder.encode(*part)[0] for part in parts])
    return seconds, sum(len(buffer) for buffer, _ in parts), np.concatenate(encoded).tobytes()


def encode_tiktoken(corpus: Path, tokenizer: Path) -> Measured:
    """Encode with tiktoken on one thread."""
    from bpe import Tokenizer

    encoding = Tokenizer.from_file(tokenizer).to_tiktoken()
    texts = documents(corpus, ENCODE_BYTES)
    encoding.encode_ordinary("text")
    seconds, ids = timed(lambda: [encoding.encode_ordinary(text) for text in texts])
    flat = np.concatenate([np.array(some, np.uint32) for some in ids])
    return seconds, sum(len(text.encode()) for text in texts), flat.tobytes()


def split_tokenbin(corpus: Path, tokenizer: Path) -> Measured:
    """Find the boundaries of pre-tokens on one thread."""
    from bpe.pretokenize import Pretokenizer

    pretokenizer = Pretokenizer("gpt2")
    pretokenizer.boundaries(*joined(["text"]))
    buffer, offsets = joined(documents(corpus, SPLIT_BYTES))
    seconds, starts = timed(lambda: pretokenizer.boundaries(buffer, offsets))
    bits = np.unpackbits(starts.view(np.uint8), bitorder="little")
    return seconds, len(buffer), np.flatnonzero(bits).astype(np.int64).tobytes()


def split_regex(corpus: Path, tokenizer: Path) -> Measured:
    """Find pre-tokens with the package `regex`."""
    import regex

    from bpe.patterns import PATTERNS

    pattern = regex.compile(PATTERNS["gpt2"])
    texts = documents(corpus, SPLIT_BYTES)
    seconds, pretokens = timed(lambda: [pattern.findall(text) for text in texts])
    lengths = [len(pretoken.encode()) for some in pretokens for pretoken in some]
    places = np.cumsum([0, *lengths]).astype(np.int64)
    return seconds, int(places[-1]), places.tobytes()


WORK = {
    ("train", "tokenbin"): train_tokenbin,
    ("train", "gigatoken"): train_gigatoken,
    ("encode", "tokenbin"): encode_tokenbin,
    ("encode", "tiktoken"): encode_tiktoken,
    ("split", "tokenbin"): split_tokenbin,
    ("split", "regex"): split_regex,
}

if __name__ == "__main__":
    work, side, corpus, tokenizer = sys.argv[1:]
    seconds, n_bytes, result = WORK[work, side](Path(corpus), Path(tokenizer))
    digest = hashlib.sha256(result).hexdigest()
    print(json.dumps({"seconds": seconds, "bytes": n_bytes, "digest": digest}))
