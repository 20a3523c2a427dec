"""Text as bytes.

search     where a byte string occurs
utf8       whether bytes are well-formed
spans      documents in one buffer: offsets, the pieces between separators
normalize  Unicode normal forms
bit_set    bit sets of positions
"""
