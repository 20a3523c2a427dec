"""Record the inputs of a run, and describe how two records differ.

Runs with equal records write equal bytes. A source is recorded by name, size, stamp and location:
the stamp of a file is its modification time in nanoseconds, the stamp of the default corpus the
digest of its text; the location is the absolute path with symbolic links resolved. Settings are
recorded with defaults filled in, without locations and options that never change a result
(`Option.changes_result`); a tokenizer is recorded by its fingerprint, a column by name and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from preprocess.options import (
    END_OF_TEXT,
    BuildSettings,
    EncodeSettings,
    SpecialTokenSettings,
    TrainFileSettings,
    VocabularySettings,
    WriterSettings,
)
from preprocess.settings import Settings, options_of
from preprocess.sources import Source

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_SHOWN_SOURCES = 3


class SourceRecord(Struct, frozen=True, array_like=True):
    """Name, size in bytes, stamp and location of a source."""

    name: str
    n_bytes: int
    stamp: Any
    location: str


class Record(Struct, frozen=True):
    """The inputs of a run."""

    command: str  # "build", "train" or "encode"
    settings: dict[str, Any]  # options that change the result, defaults filled in
    sources: dict[str, list[SourceRecord]]  # name of a pass -> its sources, in order
    # Fingerprint of the tokenizer that is given, or extended; None: one is trained.
    tokenizer: str | None
    columns: dict[str, str] = {}  # name -> dtype, of columns beside ids and document ends


def settings_of_results(settings: Settings, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that change the result, but for locations, and some to leave out."""
    options = options_of(type(settings)).values()
    no_result = {x.name for x in options if x.is_location or not x.changes_result}
    return settings.as_json(no_result | {*leave_out})


def recorded_settings(
    settings: BuildSettings | TrainFileSettings | EncodeSettings | WriterSettings,
    tokenizer: AnyTokenizer | None,
) -> dict[str, Any]:
    """Return the options that change the result; None: the tokenizer is trained."""
    leave_out = () if tokenizer is None else options_of(VocabularySettings)
    effective = settings_of_results(settings, leave_out)
    effective["end_of_text"] = end_of_text_token(settings, tokenizer)
    if tokenizer is None:
        effective["special_tokens"] = list(settings.all_special_tokens)
    if isinstance(settings, BuildSettings):
        effective["val_fraction"] = settings.validation_fraction
    return effective


def record_sources(of_passes: Mapping[str, Sequence[Source]]) -> dict[str, list[SourceRecord]]:
    """Record the sources of each pass."""
    return {
        name: [SourceRecord(each.name, each.n_bytes, each.stamp, each.location) for each in of]
        for name, of in of_passes.items()
    }


def end_of_text_token(settings: SpecialTokenSettings, tokenizer: AnyTokenizer | None) -> str:
    """Return the special token after each document: the option, else the tokenizer's own.

    Of a tokenizer that names none, it is `<|endoftext|>`, or the only one with another usual name.
    """
    from bpe.special import end_token_of

    known = {} if tokenizer is None else tokenizer.special_tokens
    own = None if tokenizer is None else tokenizer.eos_token
    usual = END_OF_TEXT if END_OF_TEXT in known else end_token_of(known)
    return settings.end_of_text or own or usual or END_OF_TEXT


def differences(before: Record, now: Record) -> list[str]:
    """Describe each difference between two records in a few words."""
    found = []
    if before.command != now.command:
        found.append(f"the command was {before.command} and is {now.command}")
    if before.tokenizer != now.tokenizer:
        texts = [
            f"the tokenizer {own[:16]}..." if own else "a tokenizer to be trained"
            for own in (before.tokenizer, now.tokenizer)
        ]
        found.append(f"{' and '.join(texts)} now")
    else:
        found += _setting_differences(_flat(before.settings), _flat(now.settings))
    if before.columns != now.columns:
        names = [" and ".join(each.columns) or "none" for each in (before, now)]
        found.append(f"the added columns were {names[0]} and are {names[1]}")
    for name in dict.fromkeys((*before.sources, *now.sources)):
        texts = _source_differences(before.sources.get(name, []), now.sources.get(name, []))
        n_more = len(texts) - _SHOWN_SOURCES
        more = [f"and {n_more:,} more files"] if n_more > 0 else []
        found += [f"{name}: {text}" for text in [*texts[:_SHOWN_SOURCES], *more]]
    return found


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the options of each dataset by a name of their own."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, dict) else None
        flat |= {name: value} if inner is None else {f"{name}.{x}": y for x, y in inner.items()}
    return flat


def _setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe options that differ; those that earlier records lack had their default's effect."""
    options, found = options_of(BuildSettings), []
    for name in sorted({*old, *new}):
        option = options.get(name.rpartition(".")[2])
        default = None if option is None else option.default
        default = list(default) if isinstance(default, tuple) else default
        was, is_now = old.get(name, default if name in new else None), new.get(name)
        # Records of datasets have options without effect on results, too.
        if was != is_now and (option is None or option.changes_result):
            found.append(f"{name} was {was!r} and is {is_now!r}")
    return found


def without_locations(record: Record) -> Record:
    """Return a copy of a record with stamps and locations blank."""
    blank = {
        name: [replace(source, stamp="", location="") for source in sources]
        for name, sources in record.sources.items()
    }
    return replace(record, sources=blank)


def _source_differences(before: list[SourceRecord], now: list[SourceRecord]) -> list[str]:
    old_names, new_names = [each.name for each in before], [each.name for each in now]
    if old_names != new_names:
        texts = [f"{name} is gone" for name in old_names if name not in new_names]
        texts += [f"{name} is new" for name in new_names if name not in old_names]
        return texts or ["the same files are given in another order or number"]
    texts = []
    for old, new in zip(before, now, strict=True):
        if new.n_bytes != old.n_bytes:
            change = "grew" if new.n_bytes > old.n_bytes else "shrank"
            texts.append(f"{new.name} {change} from {old.n_bytes:,} to {new.n_bytes:,} bytes")
        elif new.stamp != old.stamp:
            stamps = f"as many bytes, but {old.stamp} became {new.stamp}"
            texts.append(f"{new.name} was written to or touched ({stamps})")
        elif new.location != old.location:
            texts.append(f"{new.name} was {old.location} and is {new.location}")
    return texts
