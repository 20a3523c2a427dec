"""Train a tokenizer: counts of pre-tokens, then merges."""
