"""The command `tokenbin`, which is `python -m preprocess` too.

Law: this module parses and prints, everything else is done by functions that a program can call.
Whatever is refused on purpose is one line on stderr: `tokenbin: error: ...`; `--debug` adds the
traceback.

    exit code 0     done
              1     failed
              2     wrong usage
              3     stopped by --max-minutes
              4     a worker hung
              130   interrupted by SIGINT (Ctrl-C)
              143   terminated by SIGTERM

Nothing heavy is imported here: `tokenbin --help` has to be instant.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bpe.errors import TokenbinError
from preprocess.stopping import Stopped, stopping

if TYPE_CHECKING:
    from preprocess.progress import Progress, Show

# Every option may be spelled with underscores as well.
_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
_LISTS = ("--train", "--train-file", "--val", "--val-file")

app = typer.Typer(
    name="tokenbin",
    help="Text in, memory-mapped tokens out: train a byte-level BPE, encode a corpus, look at it.",
    epilog="Options without a command mean build. 'tokenbin COMMAND --help' says more.",
    context_settings=_CONTEXT,
    add_completion=False,
    # rich takes longer to load than everything else together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


# --- options that several commands have
# ------------------------------------------------------------

_SourcePaths = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Text files and directories.")
]
_TokenizerFile = Annotated[
    Path,
    typer.Option(
        "--tokenizer",
        "--tokenizer-path",
        help="A tokenizer.json, or a directory or a name (tiktoken, Hugging Face) that has one.",
    ),
]
_VocabSize = Annotated[
    int | None,
    typer.Option(help="Bytes, merges and special tokens together.", show_default="32000"),
]
_Pattern = Annotated[str | None, typer.Option(help="The split pattern.", show_default="gpt2")]
_SpecialTokens = Annotated[
    list[str] | None,
    typer.Option(
        "--special-token",
        metavar="TEXT",
        help="A further special token of the new tokenizer; may be repeated.",
    ),
]
_TieBreak = Annotated[
    str | None,
    typer.Option(
        metavar="greatest-bytes|huggingface",
        help="Which of equally frequent pairs is merged first.",
        show_default="greatest-bytes",
    ),
]
_MinFrequency = Annotated[
    int | None, typer.Option(help="Pairs that occur less often are not merged.", show_default="2")
]
_RanksPattern = Annotated[
    str | None, typer.Option(help="The split pattern of a .tiktoken file.", show_default="none")
]
_EndOfText = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The special token behind every document.",
        show_default="the tokenizer's, else <|endoftext|>",
    ),
]
_BeginOfText = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="The special token before every document.", show_default="none"
    ),
]
_Separator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="What stands between documents in text files; '' makes every file one document.",
        show_default="<|endoftext|>",
    ),
]
_OnInvalidUtf8 = Annotated[
    str | None,
    typer.Option(
        metavar="error|replace|skip",
        help="Text that is not UTF-8: stop, put U+FFFD there, or leave the document out.",
        show_default="error",
    ),
]
_UnitSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Bytes that a worker takes at a time, as 64KiB; never changes the outputs.",
        show_default="4MiB",
    ),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        help="Threads; 1 works in the main thread; never changes the outputs.",
        show_default="one per processor",
    ),
]
_Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace outputs that exist, give up what is unfinished."),
]
_MaxMinutes = Annotated[
    float | None,
    typer.Option(
        metavar="M",
        help="Stop after M minutes, saying how long all of it takes; the same command goes on.",
        show_default="none",
    ),
]
_ShardTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Write NAME_00000.bin and so on, of N tokens at most, with one manifest NAME.json.",
        show_default="one file",
    ),
]
_SplitDocuments = Annotated[
    bool, typer.Option("--split-documents", help="Let a document go on in the next shard.")
]
_MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Take at most so much memory, as 500MB; never changes the outputs.",
        show_default="none",
    ),
]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_Verbose = Annotated[
    bool, typer.Option("--verbose", help="Progress says memory, processors and disk rates, too.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no closing lines.")]
_LogFile = Annotated[
    Path | None, typer.Option("--log-file", help="Append everything that is said to this file.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tokenbin {version('tokenbin')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options that stand before the command."""


# --- commands
# --------------------------------------------------------------------------------------


@app.command()
def build(
    ctx: typer.Context,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--train",
            "--train-file",
            metavar="PATH...",
            help="Text files and directories.",
            show_default="text that every Python ships with",
        ),
    ] = None,
    val: Annotated[
        list[Path] | None,
        typer.Option(
            "--val",
            "--val-file",
            metavar="PATH...",
            help="The same for validation.",
            show_default="documents taken out of train",
        ),
    ] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the train documents that becomes validation without --val; 0: no"
            " validation file.",
            show_default="0.01",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "--output-dir", help="Directory for the outputs.", show_default="data"
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="NAME gives NAME_train.bin and so on.", show_default="none"),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            "--tokenizer-path",
            help="A tokenizer.json (or a directory, a name) to use instead of training one.",
        ),
    ] = None,
    vocab_size: _VocabSize = None,
    pattern: _Pattern = None,
    special_tokens: _SpecialTokens = None,
    tie_break: _TieBreak = None,
    min_frequency: _MinFrequency = None,
    end_of_text: _EndOfText = None,
    begin_of_text: _BeginOfText = None,
    separator: _Separator = None,
    on_invalid_utf8: _OnInvalidUtf8 = None,
    unit_size: _UnitSize = None,
    workers: _Workers = None,
    shard_tokens: _ShardTokens = None,
    split_documents: _SplitDocuments = False,
    max_minutes: _MaxMinutes = None,
    memory_limit: _MemoryLimit = None,
    overwrite: _Overwrite = False,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Train a tokenizer (unless one is given) and encode train and validation text."""
    from preprocess import pipeline

    with _told(ctx) as told:
        result = pipeline.build(progress=told.progress, **_given(ctx))
        told.say(result.lines)


@app.command()
def train(
    ctx: typer.Context,
    paths: _SourcePaths,
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="tokenizer.json")
    ] = None,
    vocab_size: _VocabSize = None,
    pattern: _Pattern = None,
    special_tokens: _SpecialTokens = None,
    tie_break: _TieBreak = None,
    min_frequency: _MinFrequency = None,
    end_of_text: _EndOfText = None,
    begin_of_text: _BeginOfText = None,
    separator: _Separator = None,
    on_invalid_utf8: _OnInvalidUtf8 = None,
    unit_size: _UnitSize = None,
    workers: _Workers = None,
    max_minutes: _MaxMinutes = None,
    memory_limit: _MemoryLimit = None,
    overwrite: _Overwrite = False,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Train a tokenizer on text."""
    from preprocess import pipeline

    with _told(ctx) as told:
        _, lines = pipeline.train(progress=told.progress, **_given(ctx))
        told.say(lines)


@app.command()
def encode(
    ctx: typer.Context,
    paths: _SourcePaths,
    tokenizer: _TokenizerFile,
    pattern: _RanksPattern = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The .bin to write; its .docs and .json land beside it.", show_default="train.bin"
        ),
    ] = None,
    end_of_text: _EndOfText = None,
    begin_of_text: _BeginOfText = None,
    separator: _Separator = None,
    on_invalid_utf8: _OnInvalidUtf8 = None,
    unit_size: _UnitSize = None,
    workers: _Workers = None,
    shard_tokens: _ShardTokens = None,
    split_documents: _SplitDocuments = False,
    max_minutes: _MaxMinutes = None,
    memory_limit: _MemoryLimit = None,
    overwrite: _Overwrite = False,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Encode text into one token file."""
    from preprocess import pipeline

    with _told(ctx) as told:
        result = pipeline.encode(progress=told.progress, **_given(ctx))
        told.say(result.lines)


@app.command()
def count(
    ctx: typer.Context,
    paths: _SourcePaths,
    tokenizer: _TokenizerFile,
    pattern: _RanksPattern = None,
    separator: _Separator = None,
    on_invalid_utf8: _OnInvalidUtf8 = None,
    unit_size: _UnitSize = None,
    workers: _Workers = None,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Count the documents, bytes and tokens of text; writes nothing."""
    from preprocess import pipeline
    from preprocess.report import in_words, left_out_lines, table

    with _told(ctx) as told:
        report = pipeline.count(progress=told.progress, **_given(ctx))
        counted = [(source.name, counts) for source, counts in report.sources]
        rows = [["tokens", "documents", "bytes", "file"]]
        for name, counts in [*counted, ("total", report.total())]:
            numbers = (counts.tokens, counts.documents, counts.bytes)
            rows.append([*(f"{number:,}" for number in numbers), name])
        _print(table(rows))
        told.say([in_words(report.total()), *left_out_lines(report.left_out)])


@app.command()
def decode(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE.bin", help="The token file.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            "--tokenizer-path",
            help="The tokenizer that it was built with.",
            show_default="tokenizer.json beside it",
        ),
    ] = None,
    start: Annotated[int, typer.Option(min=0, help="The first token.")] = 0,
    count: Annotated[
        int | None, typer.Option(min=0, help="How many tokens.", show_default="all")
    ] = None,
    debug: _Debug = False,
) -> None:
    """Print the text of a token file, special tokens included."""
    from preprocess.inspect import decoded

    with _told(ctx):
        for piece in decoded(path, tokenizer, start, count):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@app.command()
def inspect(
    ctx: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(help="A .bin, a tokenizer (as for --tokenizer), or a directory of outputs."),
    ],
    pattern: _RanksPattern = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: _Debug = False,
) -> None:
    """Say what a token file, a tokenizer or a directory of outputs is."""
    from preprocess.inspect import description, facts

    with _told(ctx):
        if as_json:
            _print_json(facts(path, pattern))
        else:
            _print(description(path, pattern))


@app.command()
def compare(
    ctx: typer.Context,
    first: Annotated[
        Path,
        typer.Argument(
            help="A tokenizer.json, a directory with one, a name at tiktoken or the hub."
        ),
    ],
    second: Annotated[Path, typer.Argument(help="Another.")],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH...]",
            help="Text files and directories.",
            show_default="text that every Python ships with",
        ),
    ] = None,
    pattern: _RanksPattern = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Stop after so much text.", show_default="64MiB"),
    ] = None,
    separator: _Separator = None,
    on_invalid_utf8: _OnInvalidUtf8 = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Encode the same text with two tokenizers: tokens, bytes per token, speed."""
    from preprocess.compare import compare as compared
    from preprocess.compare import lines

    with _told(ctx) as told:
        found = compared(progress=told.progress, **_given(ctx))
        if as_json:
            _print_json(found)
        else:
            _print(lines(found))


@app.command()
def verify(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="A directory of outputs, or one .bin.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            "--tokenizer-path",
            help="The tokenizer that it was built with.",
            show_default="tokenizer.json beside it",
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Encode the sources again and compare.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make what is damaged again from the sources.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: _Debug = False,
    verbose: _Verbose = False,
    quiet: _Quiet = False,
    log_file: _LogFile = None,
) -> None:
    """Check token files against their manifests; exit code 1 if something is wrong."""
    from preprocess.verify import as_json as for_json
    from preprocess.verify import verified

    with _told(ctx) as told:
        findings = verified(path, tokenizer, told.progress, deep=deep, repair=repair)
        if as_json:
            _print_json(for_json(findings))
        else:
            _print(finding.line() for finding in findings)
        if not all(finding.sound for finding in findings):
            raise typer.Exit(1)


@app.command()
def doctor(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="The directory where outputs would land.")] = Path(
        "data"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: _Debug = False,
) -> None:
    """Try whether this machine is fit for a long job; exit code 1 if something is not."""
    from preprocess.doctor import as_json as for_json
    from preprocess.doctor import examined

    with _told(ctx):
        checks = examined(path)
        if as_json:
            _print_json(for_json(checks))
        else:
            _print([check.line() for check in checks])
        if not all(check.fit for check in checks):
            raise typer.Exit(1)


# --- how commands are run
# --------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code."""
    # The 80,000 objects that libraries and a tokenizer consist of are made once and stay. Python
    # would look through all of them again and again while they come, and once more at the end, for
    # cycles that nothing needs any more: a quarter of the time of a short command. Work on text
    # leaves no cycles behind.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # pydantic would look through everything that is installed for plugins; settings need none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # NumPy's library of linear algebra, which nothing here uses, would start its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: What stands behind `tokenbin`.
    """
    if not arguments:
        run(["--help"])
        return 2
    debug = "--debug" in arguments
    with stopping():
        try:
            arguments = with_command(arguments)
            code = _app_for(arguments[0])(
                args=arguments, prog_name="tokenbin", standalone_mode=False
            )
            return code or 0
        except _UsageError as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "tokenbin"
            message: str = error.format_message()  # type: ignore[attr-defined]  # click's, by way of typer
            return _failed(
                f"{message[:1].lower()}{message[1:].rstrip('.')}; see {command} --help", 2
            )
        except TokenbinError as error:
            if debug:
                raise
            from preprocess.config import SettingsError
            from preprocess.progress import OutOfTimeError

            if isinstance(error, OutOfTimeError):
                print(f"tokenbin: {error}", file=sys.stderr)
                return 3
            return _failed(str(error), 2 if isinstance(error, SettingsError) else 1)
        except BrokenPipeError:
            # Whoever read our output has seen enough; Python must not fail again when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (OSError, MemoryError) as error:
            if debug:
                raise
            return _failed(f"{type(error).__name__}: {error} (--debug shows where)", 1)
        except Stopped as stopped:
            return _failed(f"stopped ({stopped})", 128 + stopped.number)


def _app_for(command: str) -> typer.Typer:
    """The application with this command alone, if there is one of this name.

    typer looks at the parameters of every command before it runs one, for milliseconds each.
    """
    asked_for = [
        one
        for one in app.registered_commands
        if one.callback is not None and command == one.callback.__name__
    ]
    if not asked_for:
        return app
    small = copy.copy(app)
    small.registered_commands = asked_for
    return small


def with_command(arguments: list[str]) -> list[str]:
    """Put the command word there if it is missing, and repeat an option for each value in a list.

    >>> with_command(["--train_file", "a.txt", "b.txt", "--workers", "2"])
    ['build', '--train_file', 'a.txt', '--train_file', 'b.txt', '--workers', '2']
    """
    first = arguments[0] if arguments else ""
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        arguments = ["build", *arguments]
    if arguments[:1] != ["build"]:
        return arguments
    expanded: list[str] = []
    option = ""
    n_values = 0
    for argument in arguments:
        if argument.startswith("-"):
            option, n_values = argument, 0
        elif option.replace("_", "-") in _LISTS:
            n_values += 1
            if n_values > 1:
                expanded.append(option)
        expanded.append(argument)
    return expanded


def _failed(message: str, code: int) -> int:
    # One line, whatever a file name may hold.
    print(f"tokenbin: error: {' '.join(message.splitlines())}", file=sys.stderr)
    return code


def _print(lines: Iterator[str] | Sequence[str]) -> None:
    for line in lines:
        print(line)


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False, indent=2))


_OBJECTS_PER_COLLECTION = 100_000
_SAYING = ("debug", "verbose", "quiet", "log_file", "as_json")


def _given(ctx: typer.Context) -> dict[str, Any]:
    """The settings that the user gave; the others have their defaults in `preprocess.config`."""
    return {
        name: value
        for name, value in ctx.params.items()
        if value not in (None, [], ()) and name not in _SAYING
    }


class _Told:
    """Where a command's words go."""

    def __init__(self, progress: Progress, quiet: bool, logger: logging.Logger) -> None:
        self.progress = progress
        self._quiet = quiet
        self._logger = logger

    def say(self, lines: Sequence[str]) -> None:
        """Print the closing lines, and put them in the log file."""
        for line in lines:
            if not self._quiet:
                print(line)
            self._logger.info("%s", line, extra={"only_file": True})


@contextmanager
def _told(ctx: typer.Context) -> Iterator[_Told]:
    """Connect the loggers of both packages to stderr and the log file while a command runs."""
    from preprocess.progress import Progress
    from preprocess.progress import logger as own

    quiet = bool(ctx.params.get("quiet"))
    log_file = ctx.params.get("log_file")
    handlers: list[logging.Handler] = [_OnStderr(logging.WARNING if quiet else logging.INFO)]
    if log_file is not None:
        try:
            to_file = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise _log_file_error(log_file, error) from error
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(to_file)
    loggers = [own, logging.getLogger("bpe")]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        for handler in handlers:
            logger.addHandler(handler)
    show: Show = "nothing" if quiet else "bars" if sys.stderr.isatty() else "lines"
    progress = Progress(show, verbose=bool(ctx.params.get("verbose")))
    try:
        yield _Told(progress, quiet, own)
    except BaseException as error:
        if log_file is not None:
            own.error("%s: %s", type(error).__name__, error, extra={"only_file": True})
        raise
    finally:
        for logger in loggers:
            for handler in handlers:
                logger.removeHandler(handler)
        for handler in handlers:
            handler.close()


class _OnStderr(logging.Handler):
    """Prints what is said, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "only_file", False):
            return
        line = f"tokenbin: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)


def _log_file_error(path: Path, error: OSError) -> TokenbinError:
    from preprocess.storage import OutputError

    return OutputError(
        f"{path}: no log can be written there: {error.strerror}; choose another file"
    )
