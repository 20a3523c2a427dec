"""Bytes -> boundaries of pre-tokens, 64 bytes at a time.

gpt2     the scanner of GPT-2's pattern
cl100k   the scanner of the patterns that descend from cl100k; `rows`: its bit sets of a group
of blocks, `mend`: boundaries that are rare, or depend on places far away
classes  classes of characters as bit sets, for all scanners
"""
