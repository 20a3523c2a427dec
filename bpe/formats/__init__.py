"""Read and write tokenizer files: tokenizer.json, vocab.json with merges.txt, .tiktoken."""
