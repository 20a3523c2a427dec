"""Inputs of a run: the sources of its passes, how they are read, and the tokenizer given."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from bpe.parallel import cached_property
from preprocess.documents.batch import ReadOptions
from preprocess.locations import join_location, split_location
from preprocess.options import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    ReadSettings,
    RunSettings,
    TextSettings,
    TrainFileSettings,
    TrainSettings,
    WriterSettings,
)
from preprocess.run.outputs import check_absent
from preprocess.run.record import end_of_text_token
from preprocess.settings import SettingsError, StrPath, is_ranks_file
from preprocess.sources import Source, find_sources
from preprocess.sources.parts import sources_of_task
from preprocess.sources.standard_library import StandardLibrary
from preprocess.storage import open_files

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.documents.batch import SafeCut


class Pass(Struct, dict=True):
    """Sources that are read together and the outputs they fill; counted first to train on them.

    Attributes:
        number: Index of the pass in its run.
        names: Output, "train" or "val" -> stem of its files; {} if only a tokenizer is trained.
        paths: Files and directories to read, in order; (): the default corpus.
        reading: How sources are read.
        selected: The sources with their selected documents; None: they are not selected yet.
        task: (index, number of tasks) of the task that reads its part; index None: all parts are
            read, one after another. None: the text is not divided.
    """

    number: int
    names: dict[str, str]
    paths: Sequence[StrPath]
    reading: ReadOptions
    selected: Sequence[Source] | None = None
    task: tuple[int | None, int] | None = None

    @cached_property
    def binary_files(self) -> list[Path | str]:
        """The files that were skipped when `all_files` were found."""
        return []

    @cached_property
    def all_files(self) -> list[Source]:
        """The sources in `paths`, in order, also of other tasks."""
        if self.paths:
            return find_sources(self.paths, self.reading, self.binary_files)
        return [StandardLibrary(self.reading)]

    @cached_property
    def files(self) -> list[Source]:
        """The sources in `paths`, in order; of a task, those of its part."""
        index, count = self.task or (None, 0)
        return self._of_tasks(range(count) if index is None else [index])

    def _of_tasks(self, indices: Iterable[int]) -> list[Source]:
        if self.task is None:
            return self.all_files
        return [x for i in indices for x in sources_of_task(self.all_files, i, self.task[1])]

    @property
    def decisive(self) -> tuple[list[Source], int]:
        """The sources that decide which documents are selected, and how many precede `files`.

        They are those of all tasks, and a task has all documents of earlier tasks before its own.
        """
        index, count = self.task or (None, 0)
        if index is None:
            return self.files, 0
        return self._of_tasks(range(count)), len(self._of_tasks(range(index)))

    @property
    def recorded(self) -> list[Source]:
        """The sources of the record of a run: `files`, but not divided if all parts are read."""
        return self.all_files if self.task is not None and self.task[0] is None else self.files

    @property
    def sources(self) -> Sequence[Source]:
        """The sources to read."""
        return self.files if self.selected is None else self.selected


def make_passes(
    settings: BuildSettings | EncodeSettings | TrainFileSettings,
    tokenizer: AnyTokenizer | None,
) -> list[Pass]:
    """Make the passes over the text, the first for training if `tokenizer` is None."""
    reading = make_read_options(settings, tokenizer)
    if isinstance(settings, TrainFileSettings):
        return [Pass(0, {}, settings.paths, reading)]
    stems, count = settings.stems, settings.task_count
    task = None if count is None else (settings.task_index, count)
    if isinstance(settings, EncodeSettings):
        return [Pass(0, stems, settings.paths, reading, task=task)]
    of_val = {"val": stems.pop("val")} if settings.val else {}
    passes = [Pass(0, stems, settings.train, reading, task=task)]
    if of_val:
        passes.append(Pass(1, of_val, settings.val, reading, task=task))
    return passes


def make_read_options(settings: ReadSettings, tokenizer: AnyTokenizer | None) -> ReadOptions:
    """Make the options for reading sources, for training if `tokenizer` is None."""
    if tokenizer is None:
        assert isinstance(settings, TrainSettings)
        return structs.replace(training_options(settings, settings), chat=settings.chat)
    reading = read_options(settings, tokenizer.safe_cut, tokenizer.atomic_texts)
    if not isinstance(settings, RunSettings) or settings.chat == "off":
        return reading
    from preprocess.run.chats import chat_format_of

    form = chat_format_of(settings, tokenizer)
    return structs.replace(reading, chat=settings.chat, chat_format=form)


def training_options(dataset: TextSettings, training: TrainSettings) -> ReadOptions:
    """Make the options for reading a dataset to train on it, perhaps together with others."""
    from bpe.split.pretokenizer import Pretokenizer

    safe_cut = Pretokenizer(training.pattern).safe_cut
    return read_options(dataset, safe_cut, training.all_special_tokens)


def read_options(
    settings: TextSettings, safe_cut: SafeCut | None, atomic: Iterable[str]
) -> ReadOptions:
    """Make the options for reading sources; the arguments are attributes of `ReadOptions`."""
    return ReadOptions(
        separator=settings.separator_bytes, unit_size=settings.unit_size,
        on_invalid_utf8=settings.on_invalid_utf8,
        validation_fraction=getattr(settings, "validation_fraction", 0.0), safe_cut=safe_cut,
        atomic=tuple(token.encode() for token in atomic), format=settings.format or "",
        content_field=settings.content_field, text_preset=settings.text_preset or "",
        strip=settings.strip, min_length=settings.min_length, max_length=settings.max_length_chars,
        skip_bad_records=settings.on_bad_record == "skip",
        numbers_records=getattr(settings, "provenance", False),
        whole_documents=getattr(settings, "selects", False),
    )


def find_passes(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, file_name: str
) -> tuple[Pass, list[Pass]]:
    """Find (the pass that fills a token file, perhaps among others; the passes that it needs).

    It needs itself, and earlier ones if copies of their documents are left out.
    """
    passes = make_passes(settings, tokenizer)
    found = next(each for each in passes if file_name in each.names.values())
    if settings.deduplicate:
        return found, [each for each in passes if each.number <= found.number]
    return found, [found]


# --- the tokenizer that a command is given ---


def settings_of_words(settings: TrainFileSettings) -> TrainFileSettings:
    """Return settings to train the merges within words, into NAME_words.json beside the output.

    Raises OutputError if the output is there, and these words, of which it would be, are not.
    """
    directory, name = split_location(settings.out)
    files, words = open_files(directory), f"{Path(name).stem}_words.json"
    if files.size(words) is None:
        check_absent(files, [name], settings.overwrite, "")
    n_merges = settings.superwords or 0
    return settings.replace(
        superwords=None, vocab_size=256 + n_merges + len(settings.all_special_tokens),
        out=join_location(directory, words),
    )


def with_superwords(words: Tokenizer) -> Tokenizer:
    """Return a tokenizer of words that splits text into phrases, to be extended."""
    from bpe import Tokenizer

    return Tokenizer.from_vocabulary(
        words.vocabulary, pattern="superwords", tie_break=words.tie_break,
        eos_token=words.eos_token, bos_token=words.bos_token,
    )


def settings_of_extension(settings: TrainFileSettings) -> TrainFileSettings:
    """Return settings with the tokenizer to extend, and options that follow from it.

    Raises:
        TokenizerFileError: It cannot be loaded, or is no byte-level BPE.
        SettingsError: Text is to be split by another pattern.
        TrainingError: The vocabulary would be no larger.
    """
    from bpe import Tokenizer, load_tokenizer
    from bpe.errors import UnsupportedTokenizerError
    from bpe.train.extend import added_texts, check_extension, new_special_tokens

    tokenizer = load_tokenizer(settings.extend)
    if not isinstance(tokenizer, Tokenizer):
        raise UnsupportedTokenizerError(
            f"--extend {settings.extend}: has no merges to be continued, found a"
            f" {type(tokenizer).__name__}; give the tokenizer.json of a byte-level BPE"
        )
    own = tokenizer.pattern
    if (pattern := settings.given.get("pattern", own)) != own:
        raise SettingsError(
            f"--pattern {pattern}: the tokenizer that is extended splits text by {own!r:.99};"
            " leave the option out"
        )
    tie_break = settings.given.get("tie_break", tokenizer.tie_break) or settings.tie_break
    new = new_special_tokens(tokenizer, settings.special_tokens)
    found = settings.replace(
        extend=tokenizer, pattern=own, tie_break=tie_break,
        special_tokens=[*added_texts(tokenizer), *new],
        end_of_text=end_of_text_token(settings, tokenizer),
    )
    special_tokens = new_special_tokens(tokenizer, found.all_special_tokens)
    check_extension(tokenizer, own, settings.largest_size, special_tokens)
    return found


def load_given_tokenizer(
    settings: BuildSettings | CountSettings | WriterSettings
) -> AnyTokenizer:
    """Load the tokenizer in the settings.

    A .tiktoken file gets the given pattern and special tokens, another one without special tokens
    those around documents that are given. Of a build, the pattern is otherwise one to train with.

    Raises:
        TokenizerFileError: It cannot be loaded, or a build could not write it beside the tokens.
    """
    from bpe import load_tokenizer
    from bpe.errors import PatternError, TokenizerFileError, VocabularyError

    assert settings.tokenizer is not None
    special_tokens, pattern = settings.all_special_tokens, settings.given.get("pattern")
    if isinstance(settings, BuildSettings) and not is_ranks_file(settings.tokenizer):
        pattern = None
    found = load_tokenizer(settings.tokenizer, pattern=pattern, special_tokens=special_tokens)
    is_file = isinstance(settings.tokenizer, str) and not is_ranks_file(settings.tokenizer)
    if isinstance(settings, BuildSettings) and not is_file:
        try:
            found.to_json()
        except (PatternError, VocabularyError) as error:
            raise TokenizerFileError(
                f"the tokenizer cannot be written beside the tokens, which a build does: {error};"
                " or save it as a tokenizer.json by the program that it is from"
            ) from error
    end_of_text = getattr(settings, "end_of_text", None)
    if end_of_text is None or found.special_tokens:
        return found
    begin_of_text = getattr(settings, "begin_of_text", None)
    return _with_special_tokens(found, special_tokens, begin_of_text)


def _with_special_tokens(
    tokenizer: AnyTokenizer, tokens: Sequence[str], begin_of_text: str | None
) -> AnyTokenizer:
    """Return a tokenizer with special tokens, whose ids follow the others, the first ends text."""
    from bpe import load_tokenizer
    from bpe.special import pad_token_of

    named = {"eos_token": tokens[0], "pad_token": pad_token_of(tokens) or tokens[0]}
    named |= {"bos_token": begin_of_text} if begin_of_text else {}
    others = [token for token in tokens if token not in named.values()]
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as directory:
        path, config = Path(directory, "tokenizer.json"), Path(directory, "tokenizer_config.json")
        tokenizer.save(path)
        settings = json.loads(config.read_bytes()) | named | {"extra_special_tokens": others}
        config.write_text(json.dumps(settings))
        return load_tokenizer(path)
