"""From a text to the batches of a GPT, as notebooks do it: words, byte pairs, sliding windows.

    python examples/notebook_windows.py [TEXT.txt]

The imports differ from the notebook, and the tokenizer, which is the second argument of datasets
and loaders.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from bpe import WordLevelTokenizer, train_bpe
from preprocess import WindowDataset as GPTDatasetV1
from preprocess import window_loader as create_dataloader_v1

TEXT = (
    'It was the best of times, it was the worst of times; "and why?" said he (twice).'
    "<|endoftext|>In the sunlit terraces of the palace, it was the age of wisdom. "
) * 20


def main(raw_text: str = TEXT) -> torch.Tensor:
    """Print tokens and windows; return the embedded first batch: float[8, 4, 16]."""
    words = WordLevelTokenizer(raw_text)
    ids = words.encode('it was the "best" of palaces')
    print("words:  ", ids, "->", words.decode(ids))

    tokenizer = train_bpe([raw_text], vocab_size=300, special_tokens=["<|endoftext|>"])
    ids = tokenizer.encode("it was<|endoftext|>In the")
    print("bytes:  ", ids, "->", tokenizer.decode(ids))

    dataset = GPTDatasetV1(raw_text, tokenizer, max_length=4, stride=1)
    x, y = dataset[0]
    print("window: ", x.tolist(), "->", y.tolist(), f"({len(dataset)} windows)")

    dataloader = create_dataloader_v1(
        raw_text, tokenizer, batch_size=8, max_length=4, stride=4, shuffle=False, drop_last=True,
        num_workers=0,
    )  # fmt: skip
    inputs, targets = next(iter(dataloader))
    print("batch:  ", tuple(inputs.shape), tuple(targets.shape), f"({len(dataloader)} batches)")

    torch.manual_seed(123)
    token_embedding = torch.nn.Embedding(tokenizer.vocab_size, 16)
    position_embedding = torch.nn.Embedding(4, 16)
    embedded: torch.Tensor = token_embedding(inputs) + position_embedding(torch.arange(4))
    print("vectors:", tuple(embedded.shape))
    return embedded


if __name__ == "__main__":
    main(*(Path(name).read_text("utf-8") for name in sys.argv[1:2]))
