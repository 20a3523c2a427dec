"""Decode token files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from bpe.files.locations import is_url
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import open_tokens, tokenizer_of
from preprocess.options import DecodeSettings
from preprocess.settings import takes

_TOKENS_AT_A_TIME = 1 << 20


@takes(DecodeSettings)
def decode_range(settings: DecodeSettings) -> Iterator[bytes]:
    """Decode tokens [start, start + count) of a token file; pieces may end inside a character.

    Raises:
        TokenFileError: The token file is damaged, was built with another tokenizer, or has fewer
            than `start` tokens; or its tokenizer is missing.
        TokenizerFileError: The tokenizer cannot be read.
    """
    from bpe import Tokenizer

    if not is_url(settings.path) and Path(settings.path).is_dir():
        from preprocess.run.outputs import manifests_in
        from preprocess.storage import open_files

        names = manifests_in(open_files(settings.path))
        found = [str(Path(settings.path, name).with_suffix(".bin")) for name in names]
        raise TokenFileError(
            f"{settings.path}: is a directory, and a .bin is expected; give one of those in it:"
            f" {', '.join(found) or 'there is none'}"
        )
    file = open_tokens(settings.path)
    used, start, count = tokenizer_of(file, settings.tokenizer), settings.start, settings.count
    if start > len(file):
        raise TokenFileError(
            f"{file.path}: has {len(file):,} tokens, so none begins at {start:,}; choose a smaller"
            " start (--start)"
        )
    stop = len(file) if count is None else min(start + count, len(file))
    cuts: Iterable[int] = range(start, stop, _TOKENS_AT_A_TIME)
    if not isinstance(used, Tokenizer):
        # White space between words depends on both, so documents are decoded whole. The dtype is
        # that of the ends, or searchsorted would copy them to float64.
        bounds = np.array([start, stop], file.document_ends.dtype)
        first, last = np.searchsorted(file.document_ends, bounds, side="left")
        cuts = file.document_ends[first:last].astype(np.int64).tolist()
    for first, end in pairwise(dict.fromkeys([start, *cuts, stop])):
        yield used.decode_bytes(file[first:end])
