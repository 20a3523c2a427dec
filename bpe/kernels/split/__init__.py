"""Scanners: find the boundaries of pre-tokens, 64 bytes at a time.

documents  splits documents with any scanner; safe cuts
gpt2       the scanner of gpt2
cl100k     the scanner of the family of cl100k; `rows`: its bit sets, `mend`: rare boundaries
classes    classes of characters as bit sets, for all scanners
"""
