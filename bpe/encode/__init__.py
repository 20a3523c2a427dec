"""Pre-tokens -> token ids.

encoder           the encoder of one thread; `parallel_encoder`: documents on all threads
pretoken_cache    the cache that all encoders share; `cache_rows`: its rows
encode_pretokens  groups of pre-tokens, looked up in the table of tokens
group             memory for one group, and the keys of its pre-tokens
misses            pre-tokens that are not in that table: the thread cache, the shared cache
apply_merges      a pre-token of any length is merged; `merge_short`: a short one
merge_tables      which pairs are merged, at which rank, to what
part_collector    the ids of parts, in order
"""
