"""Pre-tokens -> counts -> merges."""
