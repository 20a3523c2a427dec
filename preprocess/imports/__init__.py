"""Token ids that other programs made, as a dataset: `write` has the formats, and writes it."""
