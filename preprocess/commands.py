"""What can stand on the command line of `tokenbin`: the commands, their options and arguments.

Law: what the user leaves out is left out of what is parsed. Defaults are those of
`preprocess.config`; here they are only named.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"should be a whole number; got {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"should be a number; got {text!r}") from None


def _from_zero(text: str) -> int:
    number = _whole_number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"should be at least 0; got {number}")
    return number


@dataclass(frozen=True)
class Parameter:
    """What argparse's `add_argument` is called with."""

    names: tuple[str, ...]
    how: dict[str, Any]

    @property
    def is_option(self) -> bool:
        """Whether it has a name on the command line; arguments have a place."""
        return self.names[0].startswith("-")

    @property
    def takes_one_value(self) -> bool:
        """Whether it is an option that takes what stands behind it, whatever that is."""
        return self.is_option and "nargs" not in self.how and self.how.get("action") != "store_true"


def _parameter(*names: str, help: str, default: str = "", **how: Any) -> Parameter:
    """An option, or an argument if the name has no dashes.

    Args:
        names: As argparse takes them.
        help: One sentence.
        default: What holds without it, in words.
        **how: What else argparse shall know.
    """
    # argparse would take a percent sign for a place to put a value at.
    shown = f"{help} [default: {default}]" if default else help
    return Parameter(names, {"help": shown.replace("%", "%%"), "default": argparse.SUPPRESS, **how})


_PATHS = _parameter(
    "paths", type=Path, nargs="+", metavar="PATH", help="Text files and directories."
)
_TRAIN = _parameter(
    "--train",
    "--train-file",
    type=Path,
    nargs="+",
    action="extend",
    metavar="PATH",
    help="Text files and directories.",
    default="text that every Python ships with",
)
_VAL = _parameter(
    "--val",
    "--val-file",
    type=Path,
    nargs="+",
    action="extend",
    metavar="PATH",
    help="The same for validation.",
    default="documents taken out of train",
)
_VAL_FRACTION = _parameter(
    "--val-fraction",
    type=_number,
    metavar="SHARE",
    help="Share of the train documents that becomes validation without --val; 0: no validation"
    " file.",
    default="0.01",
)
_OUT_DIRECTORY = _parameter(
    "--out",
    "--output-dir",
    type=Path,
    metavar="PATH",
    help="Directory for the outputs.",
    default="data",
)
_OUT_TOKENIZER = _parameter(
    "--out", type=Path, metavar="PATH", help="The file to write.", default="tokenizer.json"
)
_OUT_BIN = _parameter(
    "--out",
    type=Path,
    metavar="PATH",
    help="The .bin to write; its .docs and .json land beside it.",
    default="train.bin",
)
_NAME = _parameter(
    "--name", metavar="NAME", help="NAME gives NAME_train.bin and so on.", default="none"
)


def _tokenizer(help: str, default: str = "", **how: Any) -> Parameter:
    return _parameter(
        "--tokenizer",
        "--tokenizer-path",
        type=Path,
        metavar="PATH",
        help=help,
        default=default,
        **how,
    )


_GIVEN_TOKENIZER = _tokenizer(
    "A tokenizer.json (or a directory, a name) to use instead of training one."
)
_NEEDED_TOKENIZER = _tokenizer(
    "A tokenizer.json, or a directory or a name (tiktoken, Hugging Face) that has one.",
    required=True,
)
_ITS_TOKENIZER = _tokenizer(
    "The tokenizer that it was built with.", "tokenizer.json beside it", dest="tokenizer_path"
)
_VOCAB_SIZE = _parameter(
    "--vocab-size",
    type=_whole_number,
    metavar="N",
    help="Bytes, merges and special tokens together.",
    default="32000",
)
_PATTERN = _parameter("--pattern", metavar="NAME", help="The split pattern.", default="gpt2")
_RANKS_PATTERN = _parameter(
    "--pattern", metavar="NAME", help="The split pattern of a .tiktoken file.", default="none"
)
_SPECIAL_TOKENS = _parameter(
    "--special-token",
    dest="special_tokens",
    action="append",
    metavar="TEXT",
    help="A further special token of the new tokenizer; may be repeated.",
)
_TIE_BREAK = _parameter(
    "--tie-break",
    metavar="greatest-bytes|huggingface",
    help="Which of equally frequent pairs is merged first.",
    default="greatest-bytes",
)
_MIN_FREQUENCY = _parameter(
    "--min-frequency",
    type=_whole_number,
    metavar="N",
    help="Pairs that occur less often are not merged.",
    default="2",
)
_END_OF_TEXT = _parameter(
    "--end-of-text",
    metavar="TEXT",
    help="The special token behind every document.",
    default="the tokenizer's, else <|endoftext|>",
)
_BEGIN_OF_TEXT = _parameter(
    "--begin-of-text",
    metavar="TEXT",
    help="The special token before every document.",
    default="none",
)
_SEPARATOR = _parameter(
    "--separator",
    metavar="TEXT",
    help="What stands between documents in text files; '' makes every file one document.",
    default="<|endoftext|>",
)
_ON_INVALID_UTF8 = _parameter(
    "--on-invalid-utf8",
    metavar="error|replace|skip",
    help="Text that is not UTF-8: stop, put U+FFFD there, or leave the document out.",
    default="error",
)
_UNIT_SIZE = _parameter(
    "--unit-size",
    metavar="SIZE",
    help="Bytes that a worker takes at a time, as 64KiB; never changes the outputs.",
    default="4MiB",
)
_WORKERS = _parameter(
    "--workers",
    type=_whole_number,
    metavar="N",
    help="Threads; 1 works in the main thread; never changes the outputs.",
    default="one per processor",
)
_SHARD_TOKENS = _parameter(
    "--shard-tokens",
    type=_whole_number,
    metavar="N",
    help="Write NAME_00000.bin and so on, of N tokens at most, with one manifest NAME.json.",
    default="one file",
)
_SPLIT_DOCUMENTS = _parameter(
    "--split-documents", action="store_true", help="Let a document go on in the next shard."
)
_MAX_MINUTES = _parameter(
    "--max-minutes",
    type=_number,
    metavar="M",
    help="Stop after M minutes, saying how long all of it takes; the same command goes on.",
    default="none",
)
_MEMORY_LIMIT = _parameter(
    "--memory-limit",
    metavar="SIZE",
    help="Take at most so much memory, as 500MB; never changes the outputs.",
    default="none",
)
_OVERWRITE = _parameter(
    "--overwrite",
    action="store_true",
    help="Replace outputs that exist, give up what is unfinished.",
)
_DEBUG = _parameter("--debug", action="store_true", help="Show the traceback of an error.")
_JSON = _parameter("--json", dest="as_json", action="store_true", help="Print JSON.")
_READING = (_SEPARATOR, _ON_INVALID_UTF8, _UNIT_SIZE, _WORKERS)
_TRAINING = (_VOCAB_SIZE, _PATTERN, _SPECIAL_TOKENS, _TIE_BREAK, _MIN_FREQUENCY)
_AROUND = (_END_OF_TEXT, _BEGIN_OF_TEXT)
_SHARDS = (_SHARD_TOKENS, _SPLIT_DOCUMENTS)
_RUNNING = (_MAX_MINUTES, _MEMORY_LIMIT, _OVERWRITE)
_SAYING = (
    _DEBUG,
    _parameter(
        "--verbose",
        action="store_true",
        help="Progress says memory, processors and disk rates, too.",
    ),
    _parameter("--quiet", action="store_true", help="No progress and no closing lines."),
    _parameter(
        "--log-file",
        type=Path,
        metavar="PATH",
        help="Append everything that is said to this file.",
    ),
)


@dataclass(frozen=True)
class Command:
    """What a command does, in one line, and its parameters in the order of its help."""

    help: str
    parameters: Sequence[Parameter]


COMMANDS = {
    "build": Command(
        "Train a tokenizer (unless one is given) and encode train and validation text.",
        [
            *(_TRAIN, _VAL, _VAL_FRACTION, _OUT_DIRECTORY, _NAME, _GIVEN_TOKENIZER),
            *(*_TRAINING, *_AROUND, *_READING, *_SHARDS, *_RUNNING, *_SAYING),
        ],
    ),
    "train": Command(
        "Train a tokenizer on text.",
        [_PATHS, _OUT_TOKENIZER, *_TRAINING, *_AROUND, *_READING, *_RUNNING, *_SAYING],
    ),
    "encode": Command(
        "Encode text into one token file.",
        [
            *(_PATHS, _NEEDED_TOKENIZER, _RANKS_PATTERN, _OUT_BIN),
            *(*_AROUND, *_READING, *_SHARDS, *_RUNNING, *_SAYING),
        ],
    ),
    "count": Command(
        "Count the documents, bytes and tokens of text; writes nothing.",
        [_PATHS, _NEEDED_TOKENIZER, _RANKS_PATTERN, *_READING, *_SAYING],
    ),
    "decode": Command(
        "Print the text of a token file, special tokens included.",
        [
            _parameter("path", type=Path, metavar="FILE.bin", help="The token file."),
            _ITS_TOKENIZER,
            _parameter(
                "--start", type=_from_zero, metavar="N", help="The first token.", default="0"
            ),
            _parameter(
                "--count", type=_from_zero, metavar="N", help="How many tokens.", default="all"
            ),
            _DEBUG,
        ],
    ),
    "inspect": Command(
        "Say what a token file, a tokenizer or a directory of outputs is.",
        [
            _parameter(
                "path",
                type=Path,
                metavar="PATH",
                help="A .bin, a tokenizer (as for --tokenizer), or a directory of outputs.",
            ),
            *(_RANKS_PATTERN, _JSON, _DEBUG),
        ],
    ),
    "compare": Command(
        "Encode the same text with two tokenizers: tokens, bytes per token, speed.",
        [
            _parameter(
                "first",
                type=Path,
                metavar="FIRST",
                help="A tokenizer.json, a directory with one, a name at tiktoken or the hub.",
            ),
            _parameter("second", type=Path, metavar="SECOND", help="Another."),
            _parameter(
                "paths",
                type=Path,
                nargs="*",
                metavar="PATH",
                help="Text files and directories.",
                default="text that every Python ships with",
            ),
            _RANKS_PATTERN,
            _parameter(
                "--max-bytes",
                metavar="SIZE",
                help="Stop after so much text.",
                default="64MiB",
            ),
            *(_SEPARATOR, _ON_INVALID_UTF8, _JSON, *_SAYING),
        ],
    ),
    "verify": Command(
        "Check token files against their manifests; exit code 1 if something is wrong.",
        [
            _parameter(
                "path", type=Path, metavar="PATH", help="A directory of outputs, or one .bin."
            ),
            _ITS_TOKENIZER,
            _parameter("--deep", action="store_true", help="Encode the sources again and compare."),
            _parameter(
                "--repair",
                action="store_true",
                help="Make what is damaged again from the sources.",
            ),
            *(_JSON, *_SAYING),
        ],
    ),
    "doctor": Command(
        "Try whether this machine is fit for a long job; exit code 1 if something is not.",
        [
            _parameter(
                # Without a type, which would make a path of the mark that nothing was given.
                "path",
                nargs="?",
                metavar="PATH",
                help="The directory where outputs would land.",
                default="data",
            ),
            *(_JSON, _DEBUG),
        ],
    ),
}
