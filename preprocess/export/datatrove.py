"""Files of datatrove: NAME.ds with the ids, and beside it `.index`, `.loss` and `.metadata`.

`.index` has uint64 document ends in tokens, `.loss` a byte for each token, 1 to train on it, and
`.metadata` three lines: tokenizer and bytes of an id, tokens, and tokens for people.
"""

from __future__ import annotations

from preprocess.dataset.columns import Values
from preprocess.export.source import OutputFile, Segment, Source, plain

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the files; `.loss` only if the dataset has a loss mask."""
    name, n = f"{source.name}.ds", source.n_documents

    def ends(first: int, stop: int) -> Values:
        return source.bounds(first, stop)[1:].astype("<u8")

    # Readers divide the first line at its only "|".
    tokenizer = source.file.manifest.tokenizer_fingerprint or "unknown"
    lines = [
        f"{tokenizer}|{source.file.dtype.itemsize}", str(source.n_tokens),
        rounded(source.n_tokens),
    ]
    files = [
        OutputFile(f"{name}.index", (Segment(n, 8 * n, ends),)),
        OutputFile(f"{name}.metadata", (plain("\n".join(lines).encode()),)),
        OutputFile(name, (source.ids_segment(0, source.n_tokens),)),
    ]
    if source.file.has_mask:
        files.append(OutputFile(f"{name}.loss", (source.mask_segment(),)))
    return files


def rounded(n: int) -> str:
    """Format a number of tokens with three digits and a prefix.

    >>> rounded(7), rounded(1500), rounded(999_999), rounded(123_000_000)
    ('7.00 T', '1.50 kT', '1.00 MT', '123 MT')
    """
    value, power = float(n), 0
    while power < len(_PREFIXES) - 1 and float(f"{value:.3g}") >= 1000:
        value, power = value / 1000, power + 1
    value = float(f"{value:.3g}")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {_PREFIXES[power]}T"
