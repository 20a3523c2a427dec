"""Options for shards, which several commands have."""

from dataclasses import dataclass

from bpe.files.locations import is_url, shown_url
from preprocess.settings.options import Count, Settings, SettingsError, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ShardSettings(Settings):
    """Options for shards."""

    shard_tokens: Count | None = option(
        None, "Write shards NAME_00000.bin and so on of so many tokens at most, with one manifest.",
        default_text="one file",
    )
    split_documents: bool = option(
        False, "Let a document continue in the next shard, so that all shards but the last are"
        " full; without it a larger document has a shard of its own.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_documents and self.shard_tokens is None:
            raise SettingsError(
                "split_documents is for shards; say how many tokens a shard has (--shard-tokens)"
            )
        if is_url(out := getattr(self, "out", "")) and self.shard_tokens is None:
            raise SettingsError(
                f"{shown_url(out)}: outputs in a bucket are shards, for objects cannot be appended"
                " to; say how many tokens a shard has (--shard-tokens 500000000)"
            )
