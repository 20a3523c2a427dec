"""Windows of token files for training loops: random batches, samplers."""
