"""Stanford's CS336, assignment 1: train a tokenizer, encode to uint16, draw batches.

    python examples/cs336.py --train_file train.txt --val_file val.txt --vocab_size 10000 \
        --output_dir data --name tiny

The ids of both files are in NAME_train_tokens.bin and NAME_val_tokens.bin.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bpe import Tokenizer, train_bpe
from preprocess import get_batch

END = "<|endoftext|>"


def main(arguments: Sequence[str] | None = None) -> torch.Tensor:
    """Write the files, and return the inputs of a batch: int64[batch_size, context_length]."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--val_file", required=True)
    parser.add_argument("--vocab_size", type=int, default=10_000)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--name", default="data")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--context_length", type=int, default=32)
    options = parser.parse_args(arguments)

    output = Path(options.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    trained = train_bpe(options.train_file, options.vocab_size, special_tokens=[END])
    trained.save_gpt2_files(output / "vocab.json", output / "merges.txt")
    tokenizer = Tokenizer.from_gpt2_files(
        output / "vocab.json", output / "merges.txt", special_tokens=[END]
    )
    assert (tokenizer.vocab, tokenizer.merges) == (trained.vocab, trained.merges)

    for split in ("train", "val"):
        path = output / f"{options.name}_{split}_tokens.bin"
        with open(getattr(options, f"{split}_file"), encoding="utf-8") as text:
            np.fromiter(tokenizer.encode_iterable(text), np.uint16).tofile(path)
        ids = np.memmap(path, np.uint16, mode="r")
        print(f"{path}: {len(ids)} tokens, {tokenizer.decode(ids[:8])!r} ...")

    dataset = np.memmap(output / f"{options.name}_train_tokens.bin", np.uint16, mode="r")
    x, y = get_batch(dataset, options.batch_size, options.context_length, device="cpu")
    assert torch.equal(x[:, 1:], y[:, :-1])
    return x


if __name__ == "__main__":
    print(main().shape)
