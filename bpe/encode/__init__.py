"""Pre-tokens -> token ids.

encoder           the encoder of one thread
parallel_encoder  documents on all threads
encode_pretokens  groups of pre-tokens, looked up in the table of tokens
misses            pre-tokens that are not in that table: two caches, and merging
merge             a pre-token of any length is merged
model             which pairs are merged, at which rank, to what
work              the structures that kernels take
pretoken_cache    the cache that all encoders share; `cache_rows`: its rows
"""
