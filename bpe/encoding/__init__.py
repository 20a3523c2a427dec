"""Encode text to token ids: the encoder, its caches, and what surrounds the pre-tokens."""
