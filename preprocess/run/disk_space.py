"""Check that the outputs of a run fit where they go, before hours of work."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

from preprocess.dataset.columns import token_dtype
from preprocess.options import EncodeSettings
from preprocess.report.progress import amount
from preprocess.run.plan import Plan
from preprocess.settings import SettingsError
from preprocess.storage import LARGEST_OBJECT, OutputError, Storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# Upper bound on mean bytes per token, for any text and vocabulary.
_MOST_BYTES_PER_TOKEN = 6.0
_MAX_SAMPLED_SOURCES = 4
_SHARDS_ON_DISK = 2  # that are being uploaded to a bucket, beside those that are written


def check_disk_space(plan: Plan, storage: Storage, tokenizer: AnyTokenizer | None) -> None:
    """Raise OutputError if the token files do not fit on the disk, before hours of work.

    Text of n bytes has at most n tokens. If those might not fit, the first units are encoded
    to estimate the bytes per token. Without a tokenizer the estimate is an upper bound, so
    that no feasible run is refused. The text of compressed sources is estimated, too. Of outputs
    in a bucket only a few shards are on the disk at a time, which are not larger than an object.
    """
    itemsize = token_dtype(_vocab_size(plan, tokenizer)).itemsize
    n_bytes, copies = estimate_text(plan), copies_of_tokens(plan)
    most = math.inf
    if not storage.keeps_finished:
        shard = itemsize * (getattr(plan.settings, "shard_tokens", None) or 0)
        if shard > LARGEST_OBJECT:
            raise SettingsError(
                f"shards of {amount(shard)} are larger than an object may be;"
                f" {plan.place} takes at most {LARGEST_OBJECT // itemsize:,} tokens of"
                f" {itemsize} bytes (--shard-tokens)"
            )
        most = shard * (_SHARDS_ON_DISK + len(plan.names))
    room = sum(storage.space())
    if plan.settings.selects:
        return  # most of the text may be left out
    if min(copies * n_bytes * itemsize, most) <= room:
        return
    needed, per_token = estimate_tokens(plan, n_bytes, tokenizer)
    needed = round(min(copies * needed, most))
    if needed > room:
        raise OutputError(
            f"{plan.place}: the token files need about {amount(needed)}"
            f" ({per_token:.1f} bytes of text per token), and {amount(room)} are free;"
            " free the space or choose another directory (--out; for a bucket TMPDIR)"
        )


def estimate_text(plan: Plan) -> int:
    """Estimate the bytes of text; an upper bound unless sources are compressed."""
    sources = [source for part in plan.passes for source in part.sources]
    compressed = [source for source in sources if source.is_compressed]
    n_compressed = sum(source.n_bytes for source in compressed)
    sampled = compressed[:_MAX_SAMPLED_SOURCES]
    read = sum(source.n_bytes for source in sampled)
    text = sum(source.estimate_text() for source in sampled)
    n_text = round(n_compressed * text / read) if read else n_compressed
    return sum(source.n_bytes for source in sources) - n_compressed + n_text


def copies_of_tokens(plan: Plan) -> int:
    """Return how often the token files are on the disk at a time."""
    # In order, in sorted pieces, and in random order.
    return 1 if plan.settings.shuffle_documents is None else 3


def estimate_tokens(
    plan: Plan, n_bytes: int, tokenizer: AnyTokenizer | None
) -> tuple[int, float]:
    """Estimate the bytes of the tokens of a text, and the bytes of text per token."""
    per_token, seen, tokens = _MOST_BYTES_PER_TOKEN, 0, 0
    if tokenizer is not None:
        encoder = tokenizer.new_encoder()
        for source in plan.passes[0].sources[:_MAX_SAMPLED_SOURCES]:
            for unit in islice(source.units(), 1):
                batch = unit.read()
                ids, _ = encoder.encode(batch.buffer, batch.bounds.reshape(-1, 2))
                seen, tokens = seen + batch.n_bytes, tokens + len(ids) + len(batch)
        per_token = seen / tokens if tokens else per_token
    itemsize = token_dtype(_vocab_size(plan, tokenizer)).itemsize
    return round(n_bytes / per_token * itemsize), per_token


def _vocab_size(plan: Plan, tokenizer: AnyTokenizer | None) -> int:
    size_of = plan.settings if tokenizer is None else tokenizer
    assert not isinstance(size_of, EncodeSettings)
    return size_of.vocab_size
