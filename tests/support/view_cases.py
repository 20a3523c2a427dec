"""Datasets for the tests of `view`: one with loss masks, another with shards."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import processes
import trained
import written
from nasty import SAMPLES

from bpe import Tokenizer, Vocabulary

END = "<|endoftext|>"
SCRIPT = "<script>document.title = 'changed'</script><img src=x onerror='fetch(\"/x\")'> & <b>"
HIDDEN = "a\u202eb\u200bc\u00a0d\ttab\r\nend\n\n\ufeff\U000e0041 \x00\x1b"


def texts() -> list[str]:
    """The documents: short ones, hostile ones, one of several pages, and repeated letters."""
    line = "Document {} has the number {}, and naïve 日本語 🙂 words.\n"
    lines = [line.format(i, i * i % 97) for i in range(40)]
    long = "".join(lines) * 6
    return [*lines, SCRIPT, HIDDEN, " ".join(SAMPLES), long, "aaaaaaaaa" * 3, *lines[:3], "x"]


def make_tokenizers() -> list[Tokenizer]:
    """Two tokenizers; the second has fewer merges."""
    merges = trained.merges()
    both = [Vocabulary.from_merges(merges[:n], [END]) for n in (600, 90)]
    return [Tokenizer.from_vocabulary(each) for each in both]


def make(root: Path) -> None:
    """Write ROOT/masked and ROOT/sharded, each with its tokenizer, and ROOT/bare without."""
    chosen = random.Random(0)
    for directory, tokenizer in zip(("masked", "sharded"), make_tokenizers(), strict=True):
        end = tokenizer.special_tokens[END]
        ids = [[*tokenizer.encode_ordinary(text), end] for text in texts()]
        flat, ends = [i for each in ids for i in each], np.cumsum([*map(len, ids)])
        mask = [chosen.random() < 0.7 for _ in flat] if directory == "masked" else None
        n, size = len(ids), tokenizer.vocab_size
        (root / directory).mkdir()
        tokenizer.save(root / directory / "tokenizer.json")
        sources = [
            {"name": name, "bytes": 1, "digest": "00" * 16, "documents": count, "tokens": 1}
            for name, count in (("a.txt", 5), ("b.txt", n - 5))
        ]
        fields = {
            "n_bytes": sum(len(text.encode()) for text in texts()), "end_of_text_id": end,
            "tokenizer_fingerprint": tokenizer.fingerprint, "sources": sources,
        }
        more = {} if mask else {"shard_tokens": 1000}
        for place in (directory, "bare")[: 1 + bool(mask)]:
            (root / place).mkdir(exist_ok=True)
            written.write(
                root / place, flat, ends, vocab_size=size, mask=mask, fields=fields, **more
            )


@contextmanager
def viewing(*arguments: object, cwd: Path | None = None) -> Iterator[str]:
    """The address of a server of the command, which is then stopped by an interrupt."""
    command = ("-m", "preprocess", "view", *arguments, "--no-browser")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with processes.start(*command, **pipes, cwd=cwd) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().strip()
            assert url, process.stderr.read()
            yield url
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=30)[1]
        finally:
            process.kill()
        assert errors == "tokenmill: error: stopped (Interrupt)\n", errors
        assert process.returncode == 130
