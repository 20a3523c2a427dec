"""Plan a run: its passes over the text, its files, whether anything is left to do, the disk space.

A repair reads the same passes (`pass_of`, `reload_tokenizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preprocess.dataset.columns import token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.documents.batch import ReadOptions
from preprocess.report.progress import Progress
from preprocess.report.summary import LeftOut, Report, check_has_text
from preprocess.run.encode_pass import EncodePass, SpecialIds, reencode
from preprocess.run.fingerprint import Record, differences, made_from, without_locations
from preprocess.run.journal import Journal
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    Outputs,
    check_configuration_absent,
    check_outputs_absent,
    finished_from,
)
from preprocess.run.sinks import TokenFiles
from preprocess.settings.options import StrPath
from preprocess.settings.schema import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    ReadSettings,
    TrainFileSettings,
    TrainSettings,
)
from preprocess.sources import Source, digest_of, find_sources
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import Files, OutputError, Storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# Upper bound on mean bytes per token, for any text and vocabulary.
_MOST_BYTES_PER_TOKEN = 6.0
_SOURCES_LOOKED_AT = 4


class Pass(Struct, frozen=True, dict=True):
    """Sources that are read once and the outputs that they fill, two if documents are divided.

    Attributes:
        number: The number of the pass in its run.
        names: Name of an output -> NAME of its files; none where only a tokenizer is trained.
        paths: What is read, in order; (): the default corpus.
        reading: How text is read.
    """

    number: int
    names: dict[str, str]
    paths: Sequence[StrPath]
    reading: ReadOptions

    @cached_property
    def sources(self) -> Sequence[Source]:
        """What `paths` name, in order."""
        if not self.paths:
            return [StandardLibrary(self.reading)]
        return find_sources(self.paths, self.reading)

    def fill(
        self,
        settings: BuildSettings | EncodeSettings,
        tokenizer: AnyTokenizer,
        report: Report,
        progress: Progress,
        journal: Journal,
    ) -> dict[str, Manifest]:
        """Encode into token files; return name of an output -> its manifest."""
        sinks = TokenFiles(
            journal.storage, tokenizer.vocab_size, settings.shard_tokens, settings.split_documents
        )
        ids, workers = SpecialIds.of(tokenizer, settings), settings.workers
        return EncodePass(
            self.number, self.sources, tokenizer, ids, workers, report, progress, journal
        ).fill(self.names, sinks)


class Plan(Struct, frozen=True, dict=True):
    """What a run reads and writes.

    Attributes:
        command: "build", "train" or "encode".
        settings: Those of the run.
        tokenizer: The given one; None: one is trained.
        directory: Where outputs land.
        run: The name of the work directory inside it.
        stats_file: The name of the stats.json.
        tokenizer_file: The name of a trained tokenizer.

    Raises:
        CorpusError: Text is missing.
        SpecialTokenError: The given tokenizer lacks a special token.
    """

    command: str
    settings: BuildSettings | EncodeSettings | TrainFileSettings
    tokenizer: AnyTokenizer | None
    directory: Path
    run: str
    stats_file: str
    tokenizer_file: str = TOKENIZER_FILE

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            SpecialIds.of(self.tokenizer, self.settings)
        for each in self.passes:
            check_has_text(each.sources, next(iter(each.names), "train"))

    @cached_property
    def passes(self) -> list[Pass]:
        """The passes over the text, in order."""
        return passes_of(self.settings, self.tokenizer)

    @cached_property
    def record(self) -> Record:
        """The inputs of the run."""
        sources = {" and ".join(each.names) or "train": each.sources for each in self.passes}
        return made_from(self.command, self.settings, sources, self.tokenizer)

    @property
    def names(self) -> dict[str, str]:
        """Name of an output -> NAME of its files."""
        return {name: files for each in self.passes for name, files in each.names.items()}

    def nothing_to_do(self, outputs: Outputs) -> str:
        """Say why nothing is left to be done; "" if something is.

        Raises:
            TokenbinError: Something else is in the way.
        """
        if outputs.commit_again():
            return "was complete, and has its final names now"
        why, files, names = "", outputs.storage.finished, list(self.names.values())
        alone = None if names else self.tokenizer_file
        if not outputs.resumed and not outputs.overwrite:
            before = finished_from(files, self.stats_file, names, alone)
            if before is not None:
                changed = differences(before, self.record)
                if not changed or self._has_the_same_text(files, before):
                    return "up to date"
                why = f"it was made from something else ({'; '.join(changed)}): "
        shards = getattr(self.settings, "shard_tokens", None) is not None
        check_outputs_absent(files, names, self.stats_file, outputs.overwrite, why, shards)
        if alone is not None:
            check_configuration_absent(files, alone, outputs.overwrite)
            if files.size(alone) is not None and not outputs.overwrite:
                raise OutputError(
                    f"{files.where(alone)}: exists; {why}choose another name, or replace it"
                    " (--overwrite)"
                )
        return ""

    def _has_the_same_text(self, files: Files, before: Record) -> bool:
        """Return True if files were only touched or moved, as far as manifests have digests."""
        if not self.names or differences(without_locations(before), without_locations(self.record)):
            return False
        for part in self.passes:
            file = open_tokens(files.path(f"{next(iter(part.names.values()))}.bin"))
            for source, known in zip(part.sources, file.manifest.sources, strict=True):
                if digest_of(source).hexdigest() != known.get("digest"):
                    return False
        return True

    def check_disk_space(self, storage: Storage, tokenizer: AnyTokenizer | None) -> None:
        """Check before hours of work that the token files fit on the disk.

        A file of bytes has at most as many tokens. Only where that might not fit are the first
        units of the text encoded. Before the tokenizer is known, few tokens are assumed, so that
        nothing is refused that may be possible.

        Raises:
            OutputError: They do not fit.
        """
        size_of = self.settings if tokenizer is None else tokenizer
        assert not isinstance(size_of, EncodeSettings)
        itemsize = token_dtype(size_of.vocab_size).itemsize
        n_bytes = sum(source.n_bytes for part in self.passes for source in part.sources)
        room, per_token = sum(storage.space()), _MOST_BYTES_PER_TOKEN
        if n_bytes * itemsize <= room:
            return
        if tokenizer is not None:
            seen = tokens = 0
            ids, first = SpecialIds.of(tokenizer, self.settings), self.passes[0]
            for source in first.sources[:_SOURCES_LOOKED_AT]:
                with closing(reencode(source, tokenizer, ids, 1, len(first.names))) as units:
                    for part in next(units, []):
                        seen, tokens = seen + part.n_bytes, tokens + len(part.ids)
            per_token = seen / tokens if tokens else per_token
        needed = round(n_bytes / per_token * itemsize)
        if needed > room:
            raise OutputError(
                f"{self.directory}: the token files will have about {needed / 1e9:,.1f} GB"
                f" ({per_token:.1f} bytes of text to the token), and {room / 1e9:,.1f} GB are"
                " free; free the space or choose another directory (--out)"
            )


def passes_of(
    settings: BuildSettings | EncodeSettings | TrainFileSettings, tokenizer: AnyTokenizer | None
) -> list[Pass]:
    """Return the passes over the text, for a tokenizer or for one that is going to be trained."""
    reading = read_options(settings, tokenizer)
    if isinstance(settings, EncodeSettings):
        return [Pass(0, {settings.name: settings.name}, settings.paths, reading)]
    if isinstance(settings, TrainFileSettings):
        return [Pass(0, {}, settings.paths, reading)]
    names = ("train", "val") if settings.validation_fraction else ("train",)
    passes = [Pass(0, {name: settings.named(name) for name in names}, settings.train, reading)]
    if settings.val:
        passes.append(Pass(1, {"val": settings.named("val")}, settings.val, reading))
    return passes


def read_options(settings: ReadSettings, tokenizer: AnyTokenizer | None) -> ReadOptions:
    """Return how sources are read for a tokenizer, or for the one that is going to be trained."""
    from bpe.pretokenize.pretokenizer import Pretokenizer

    if tokenizer is None:
        assert isinstance(settings, TrainSettings)
        safe_cut, uncut = Pretokenizer(settings.pattern).safe_cut, settings.all_special_tokens
    else:
        safe_cut, uncut = tokenizer.safe_cut, tokenizer.atomic_texts
    return ReadOptions(
        separator=settings.separator.encode(),
        unit_size=settings.unit_size,
        on_invalid_utf8=settings.on_invalid_utf8,
        validation_fraction=getattr(settings, "validation_fraction", 0.0),
        safe_cut=safe_cut,
        uncut=tuple(token.encode() for token in uncut),
    )


def given_tokenizer(
    settings: BuildSettings | CountSettings, pattern: str | None
) -> AnyTokenizer:
    """Load the tokenizer that is given; a .tiktoken file gets a pattern and special tokens."""
    from bpe import load_tokenizer

    assert settings.tokenizer is not None
    special_tokens = settings.all_special_tokens
    return load_tokenizer(settings.tokenizer, pattern=pattern, special_tokens=special_tokens)


# --- outputs that are rebuilt ---


def pass_of(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> Pass:
    """Return the pass over the sources of a token file, which others may share."""
    passes = passes_of(settings, tokenizer)
    return next(each for each in passes if file_name in each.names.values())


def reload_tokenizer(settings: BuildSettings, storage: Storage, progress: Progress) -> AnyTokenizer:
    """Load the tokenizer of a build, or train it once more with the counts in a storage."""
    from preprocess.run.count_pass import train_tokenizer

    if settings.tokenizer is not None:
        is_ranks = settings.tokenizer.endswith(".tiktoken")
        return given_tokenizer(settings, settings.pattern if is_ranks else None)
    sources = passes_of(settings, None)[0].sources
    with Journal(storage) as journal:
        return train_tokenizer(sources, settings, journal, progress, LeftOut())
