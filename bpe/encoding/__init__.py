"""Encode text to token ids: the encoder, its caches, added tokens, threads."""
