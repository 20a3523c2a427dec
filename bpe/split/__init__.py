"""Text -> pre-tokens: patterns, their scanners, and regexes that have no scanner.

pretokenizer    splits by any pattern; `patterns`: their names and texts
documents       splits documents with any scanner, 64 bytes at a time; safe cuts
gpt2            the scanner of gpt2
cl100k          the scanner of the family of cl100k; `sets`: its bit sets, `mend`: rare boundaries
classes         classes of characters as bit sets, for all scanners
regex_splitter  regexes without a scanner; `steps`: several in turn
"""
