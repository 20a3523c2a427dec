"""Turn a text into the input of a GPT: token embeddings plus position embeddings.

    python examples/embeddings.py

The text is encoded, cut into windows, and each token and each place of a window gets a vector.
"""

from __future__ import annotations

import torch

from bpe import train_bpe
from preprocess import window_loader

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 20
VOCAB_SIZE, CONTEXT_LENGTH, WIDTH = 280, 8, 16


def main() -> torch.Tensor:
    """Embed the first batch of windows: float[8, 8, 16]."""
    torch.manual_seed(0)
    tokenizer = train_bpe([TEXT], vocab_size=VOCAB_SIZE)
    loader = window_loader(
        TEXT, tokenizer, batch_size=8, max_length=CONTEXT_LENGTH, stride=CONTEXT_LENGTH,
        shuffle=False,
    )  # fmt: skip
    token_embedding = torch.nn.Embedding(VOCAB_SIZE, WIDTH)
    position_embedding = torch.nn.Embedding(CONTEXT_LENGTH, WIDTH)

    inputs, targets = next(iter(loader))  # int64[8, 8]; a target is the token after its input
    embedded: torch.Tensor = token_embedding(inputs) + position_embedding(
        torch.arange(CONTEXT_LENGTH)
    )
    print("first window: ", repr(tokenizer.decode(inputs[0].tolist())))
    print("its targets:  ", repr(tokenizer.decode(targets[0].tolist())))
    print("tokens:       ", tuple(inputs.shape))
    print("embeddings:   ", tuple(embedded.shape))
    return embedded


if __name__ == "__main__":
    main()
