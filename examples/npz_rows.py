"""Tokenize a directory of .jsonl and .txt files into one .npz for each of them.

    python examples/npz_rows.py --input texts --output rows --max-length 1024 --stride 512

Run it again when files were added, changed, lost or damaged: only their rows are written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from preprocess import build, write_rows


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    """Write the rows, print what they are, and return the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--tokenizer", help="default: one that the first run trains")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--stride", type=int, default=512)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--max-minutes", type=float)
    for unused in ("--batch-size", "--save-frequency"):
        parser.add_argument(unused, help="changes nothing: rows are written as they are made")
    options = parser.parse_args(arguments)

    tokens, rows = Path(options.output, "tokens"), Path(options.output, "rows")
    trained = tokens / "tokenizer.json"
    # A record has {"title": ..., "text": ...}, both optional. Another tokenizer would change all
    # rows, so later runs use the one of the first.
    tokenizer = options.tokenizer or (trained if trained.exists() else None)
    of_training = {} if tokenizer else {"vocab_size": options.vocab_size}
    build(
        train=options.input, val_fraction=0, out=tokens, text_preset="title-text",
        tokenizer=tokenizer, workers=options.workers, max_minutes=options.max_minutes,
        overwrite=True, **of_training,
    )  # fmt: skip
    (result,) = write_rows(
        tokens, out=rows, format="npz", per_file=True, max_length=options.max_length,
        stride=options.stride, workers=options.workers, max_minutes=options.max_minutes,
    )  # fmt: skip
    print(result.line)
    files = [result.path / shard.name for shard in result.manifest.shards]
    for path in files:
        with np.load(path) as arrays:
            ids, mask = arrays["input_ids"], arrays["attention_mask"]
            print(f"{path.name}: {ids.shape[0]} rows of {ids.shape[1]}, {mask.sum()} tokens")
    return files


if __name__ == "__main__":
    main()
