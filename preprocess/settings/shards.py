"""Options for shards, which several commands have."""

from dataclasses import dataclass

from bpe.files.locations import is_url
from preprocess.settings.options import Count, Settings, SettingsError, option

_IN_BUCKETS = 500_000_000  # tokens of a shard; objects cannot be appended to


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ShardSettings(Settings):
    """Options for shards."""

    shard_tokens: Count | None = option(
        None, "Write shards NAME_00000.bin and so on of so many tokens at most, with one manifest.",
        default_text="one file; in a bucket 500,000,000",
    )
    split_documents: bool = option(
        False, "Let a document continue in the next shard, so that all shards but the last are"
        " full; without it a larger document has a shard of its own.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard_tokens is None and is_url(getattr(self, "out", "")):
            object.__setattr__(self, "shard_tokens", _IN_BUCKETS)
        if self.split_documents and self.shard_tokens is None:
            raise SettingsError(
                "split_documents is for shards; say how many tokens a shard has (--shard-tokens)"
            )
