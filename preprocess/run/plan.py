"""Plan a run: passes over the text, output files, work left to do, and room for it."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from bpe.files.locations import is_url, shown_url
from bpe.parallel import cached_property
from preprocess.dataset.columns import columns_of, token_dtype
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.locations import split_location
from preprocess.options import (
    BuildSettings,
    EncodeSettings,
    SelectSettings,
    TextSettings,
    TrainFileSettings,
)
from preprocess.report.progress import Progress, amount, logger
from preprocess.report.summary import LeftOut, check_has_text, listed
from preprocess.run.encode_pass import SpecialIds
from preprocess.run.journal import Journal
from preprocess.run.outputs import TOKENIZER_FILE, is_up_to_date, open_published
from preprocess.run.reading import Pass, make_passes, training_options
from preprocess.run.record import (
    Record,
    differences,
    record_sources,
    recorded_settings,
    without_locations,
)
from preprocess.run.run import Run
from preprocess.run.selection import select_documents
from preprocess.settings import SettingsError, options_of
from preprocess.sources import Source, check_fields_are_used, digest_of
from preprocess.sources.standard_input import (
    FILE_NAME,
    StandardInput,
    has_standard_input,
    replace_standard_input,
    standard_input_of,
)
from preprocess.storage import LARGEST_OBJECT, DamagedStateError, Files, OutputError, Storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


class Plan(Struct, frozen=True, dict=True):
    """Inputs and outputs of a run.

    Attributes:
        settings: Settings of the run.
        tokenizer: The given tokenizer; None: one is trained.
        datasets: Datasets to train on, by name, which are read with options of their own.
        has_tokenizer_file: False if another run, of which this makes a part, writes the tokenizer.

    Raises:
        CorpusError: There is no text.
        SettingsError: Options contradict the text, or standard input is given more than once.
        SpecialTokenError: The given tokenizer lacks a special token.
    """

    settings: BuildSettings | EncodeSettings | TrainFileSettings
    tokenizer: AnyTokenizer | None = None
    datasets: Mapping[str, BuildSettings] = {}
    has_tokenizer_file: bool = True

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            SpecialIds.of(self.tokenizer, self.settings)  # raises
        for each in self.passes:
            if not has_standard_input(each.all_files):
                check_has_text(each.all_files, next(iter(each.names), "train"))
        found = [x for each in self.passes for x in each.all_files]
        inputs = [source for source in found if isinstance(source, StandardInput)]
        n_inputs = len(inputs)
        if not n_inputs:
            self._check_fields()
        self._warn_of_repeated()
        if self.settings.cut_documents and any(source.has_spans for source in found):
            raise SettingsError("conversations are not cut; leave out --cut-documents")
        is_divided = self.passes[0].task is not None or self.settings.executor == "ray"
        shown = ["standard input (-)" if x.path == "-" else x.path for x in inputs]
        if n_inputs > 1:
            raise SettingsError(
                f"{shown[0]} is given more than once, or with others that are read once; save it to"
                " a file, and give that"
            )
        if is_divided and any(not source.is_sized for source in found):
            which = f"{shown[0]} is" if shown else "documents of a program are"
            raise SettingsError(
                f"{which} not divided among tasks or workers of Ray; save the text to a file, and"
                " give that"
            )

    @cached_property
    def passes(self) -> list[Pass]:
        """The passes over the text, in order."""
        settings = self.settings
        if not self.datasets:
            return make_passes(settings, self.tokenizer)
        assert isinstance(settings, TrainFileSettings)
        return [
            Pass(number, {}, each.train, training_options(each, settings))
            for number, each in enumerate(self.datasets.values())
        ]

    @property
    def training_passes(self) -> list[Pass]:
        """The passes to train on: the first one, or those of all datasets."""
        return self.passes if self.datasets else self.passes[:1]

    @property
    def training_files(self) -> list[Source]:
        """All sources to train on, not divided, nor selected."""
        return [source for each in self.training_passes for source in each.all_files]

    @property
    def command(self) -> str:
        """The command: "build", "train" or "encode"."""
        commands = {BuildSettings: "build", TrainFileSettings: "train", EncodeSettings: "encode"}
        return commands[type(self.settings)]

    @property
    def directory(self) -> str:
        """Output directory, or its URL."""
        out = self.settings.out
        return out if isinstance(self.settings, BuildSettings) else split_location(out)[0]

    @property
    def run_name(self) -> str:
        """Name of the work directory inside it."""
        return self.settings.run_name

    @property
    def stats_file(self) -> str:
        """Name of the stats.json."""
        return self.settings.named("stats.json")

    @property
    def tokenizer_file(self) -> str:
        """Name of a trained tokenizer."""
        is_file = isinstance(self.settings, TrainFileSettings)
        return split_location(self.settings.out)[1] if is_file else TOKENIZER_FILE

    @property
    def rejects_file(self) -> str:
        """Name of the list of bad records."""
        return f"{self.stats_file.removesuffix('stats.json')}rejects.jsonl"

    @property
    def place(self) -> Path | str:
        """The output directory, or its URL without a password."""
        if is_url(self.directory):
            return shown_url(self.directory).rstrip("/")
        return Path(self.directory)

    @property
    def names(self) -> dict[str, str]:
        """Output, "train" or "val" -> stem of its files."""
        return {name: files for each in self.passes for name, files in each.names.items()}

    @cached_property
    def record(self) -> Record:
        """The inputs of the run; of what many sources share, digests."""
        settings, tokenizer = recorded_settings(self.settings, self.tokenizer), self.tokenizer
        names = self.datasets or [" and ".join(each.names) or "train" for each in self.passes]
        passes = dict(zip(names, self.passes, strict=True))
        if has_spans := any(x.has_spans for each in self.passes for x in each.all_files):
            form = self.passes[0].reading.chat_format
            template = "" if form is None else form.template + (form.tools_template or "")
            settings["chat_template"] = xxhash.xxh3_128_hexdigest(template.encode())
        if self.datasets:
            reading = options_of(TextSettings) | options_of(SelectSettings)
            settings["datasets"] = {
                name: each.as_json({x for x in options_of(type(each)) if x not in reading})
                for name, each in self.datasets.items()
            }
            settings["order_of_datasets"] = [*self.datasets]  # checkpoints number all sources
        if self.passes[0].task is not None:
            content = record_sources({x: each.all_files for x, each in passes.items()})
            digest = xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))
            settings["sources_of_all_tasks"] = digest
        given = getattr(self.settings, "extend", tokenizer)
        has_provenance = getattr(self.settings, "provenance", False)
        columns = columns_of(has_spans, has_provenance)[2:]
        return Record(
            self.command, settings, record_sources({x: y.recorded for x, y in passes.items()}),
            None if given is None else given.fingerprint,
            {each.name: str(each.dtype) for each in columns},
        )

    def _check_fields(self) -> None:
        """Raise CorpusError if fields are given, and no file has records."""
        groups = [[each] for each in self.passes] if self.datasets else [self.passes]
        for group in groups:
            sources = [source for each in group for source in each.all_files]
            check_fields_are_used(sources, group[0].reading)

    def _warn_of_repeated(self) -> None:
        """Warn if a file is read more than once; several datasets may share files."""
        if self.datasets:
            return
        files = [x.location for each in self.passes for x in each.all_files if x.location]
        identities = [*map(_identity_of, files)]
        counts = Counter(identities)
        repeated = [x for x, own in zip(files, identities, strict=True) if counts[own] > 1]
        if repeated := [*dict.fromkeys(repeated)]:
            logger.warning(
                "%s: read more than once, so in both train and val, or repeated; give each file"
                " once unless that is meant", listed(repeated),
            )

    def describe_finished(self, run: Run) -> str:
        """Say why no work is left; "" if work is left.

        Raises:
            TokenmillError: Other files have the names of the outputs.
        """
        if run.is_complete:
            return "complete; files renamed to their final names"
        stems, unknown = list(self.names.values()), list[str]()
        sources = [source for each in self.passes for source in each.all_files]
        if has_standard_input(sources):
            what = standard_input_of(sources).what
            unknown.append(f"{what} cannot be compared with that of before")
        is_there = is_up_to_date(
            run, self.stats_file, stems, tokenizer="" if stems else self.tokenizer_file,
            shards=getattr(self.settings, "shard_tokens", None) is not None,
            rejects_file=self.rejects_file, unknown=unknown,
            has_same_text=lambda before: self._has_same_text(run.storage.final, before),
            compares=not all(source.is_sized for source in sources),
        )
        return "up to date" if is_there else ""

    def _has_same_text(self, files: Files, before: Record) -> bool:
        """Return True if sources were only touched or moved: their digests are unchanged.

        The digests of files in which documents were selected are not known.
        """
        if not self.names or self.settings.selects:
            return False
        if differences(without_locations(before), without_locations(self.record)):
            return False
        for part in self.passes:
            manifest = open_published(files, next(iter(part.names.values())))
            for source, known in zip(part.sources, manifest.sources, strict=True):
                if digest_of(source).hexdigest() != known.get("digest"):
                    return False
        return True

    def prepare(self, journal: Journal, progress: Progress) -> LeftOut:
        """Read standard input and select documents, before passes read: `select_documents`."""
        for each in self.passes:
            if has_standard_input(each.all_files):
                kept = keep_standard_input(standard_input_of(each.all_files), journal)
                replace_standard_input(each.all_files, kept)
                check_has_text(each.files, next(iter(each.names), "train"))
                self._check_fields()
        left_out = LeftOut()
        groups = zip([[each] for each in self.passes], self.datasets.values(), strict=False)
        for passes, settings in groups if self.datasets else [(self.passes, self.settings)]:
            left_out.merge(select_documents(passes, settings, self.settings, journal, progress))
        return left_out


def _identity_of(location: str) -> object:
    """Return what is equal for all names of a file: hard links, too."""
    with suppress(OSError):  # of a URL
        state = os.stat(location)
        return state.st_dev, state.st_ino
    return location


# --- standard input ---


class InputRead(Struct, forbid_unknown_fields=True):
    """Checkpoint: all of standard input is in its file."""

    bytes: int
    digest: str  # xxh3_128


def keep_standard_input(source: StandardInput, journal: Journal) -> Path:
    """Write standard input to a work file, to read it more than once, and return its path.

    A run that is resumed has it already. Standard input must then be the same, nothing, or a
    terminal.
    """
    storage, entry = journal.storage, journal.value("standard input", InputRead)
    path, digest, n_bytes = storage.path(FILE_NAME), xxhash.xxh3_128(), 0
    if entry is None:
        with closing(storage.stream(FILE_NAME)) as stream:
            for piece in source.pieces():
                digest.update(piece)
                stream.append(memoryview(piece))
            stream.sync()
            n_bytes = stream.n_bytes
        journal.save("standard input", InputRead(n_bytes, digest.hexdigest()))
        return path
    if storage.size(FILE_NAME) != entry.bytes:
        raise DamagedStateError(
            f"{storage.where(FILE_NAME)}: the standard input of the interrupted run is damaged or"
            " missing; start over (--overwrite)"
        )
    is_console = source.path == "-" and (sys.stdin is None or sys.stdin.isatty())
    for piece in () if is_console else source.pieces():
        digest.update(piece)
        n_bytes += len(piece)
    if n_bytes and (n_bytes, digest.hexdigest()) != (entry.bytes, entry.digest):
        raise OutputError(
            f"{source.path}: {source.what} has {n_bytes:,} bytes, and is not the"
            f" {entry.bytes:,} bytes that the interrupted run has read; give the same or nothing"
            f" (< /dev/null) to resume, or remove {storage.where()} to start over"
        )
    return path


# --- room for the outputs ---

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
        encoder, special = tokenizer.new_encoder(), SpecialIds.of(tokenizer, plan.settings)
        of_conversations = ConversationEncoder(tokenizer, np.dtype(np.uint32))
        for source in plan.passes[0].sources[:_MAX_SAMPLED_SOURCES]:
            for unit in islice(source.units(), 1):
                batch = unit.read()
                if batch.special is not None:
                    ids, _, _ = of_conversations.encode(encoder, batch, -1, special.end_of_text)
                else:
                    ids, _ = encoder.encode(batch.buffer, batch.bounds.reshape(-1, 2))
                    tokens += len(batch)
                seen, tokens = seen + batch.n_bytes, tokens + len(ids)
        per_token = seen / tokens if tokens else per_token
    itemsize = token_dtype(_vocab_size(plan, tokenizer)).itemsize
    return round(n_bytes / per_token * itemsize), per_token


def _vocab_size(plan: Plan, tokenizer: AnyTokenizer | None) -> int:
    if tokenizer is not None:
        return tokenizer.vocab_size
    assert not isinstance(plan.settings, EncodeSettings)
    return plan.settings.largest_size
