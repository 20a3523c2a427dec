"""Pre-tokens -> token ids.

encode_pretokens  groups of pre-tokens, looked up in the table of tokens
group             memory for one group, and the keys of its pre-tokens
misses            pre-tokens that are not in that table: the thread cache, the shared cache
cache_rows        rows of the shared cache, which all threads read and add to
apply_merges      a pre-token of any length is merged; `merge_short`: a short one
merge_tables      which pairs are merged, at which rank, to what
"""
