"""Pre-tokens -> counts -> merges.

counts   counts of pre-tokens; `count_pretokens`: their tables
trainer  merges from counts, or from files; `learn_merges`: merging itself
prefixes smaller vocabularies of a trained tokenizer
"""
