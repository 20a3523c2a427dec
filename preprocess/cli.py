"""The command `tokenmill`, also `python -m preprocess`: parse options, call a function, print.

Expected errors are one line on stderr, `tokenmill: error: ...`; `--debug` adds the traceback.

    exit code 0     done
              1     failed
              2     wrong usage
              3     stopped by --max-minutes
              4     a worker hung
              130   interrupted by SIGINT (Ctrl-C)
              143   terminated by SIGTERM

Heavy imports are inside functions, so that `tokenmill --help` is instant.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO

from bpe.errors import TokenmillError, options_as_in_command
from preprocess.run.signals import Stopped, stopping

if TYPE_CHECKING:
    from preprocess.check.doctor import Check
    from preprocess.check.verify import Finding
    from preprocess.options import ConsoleSettings
    from preprocess.report.progress import Progress, Show
    from preprocess.report.summary import Report
    from preprocess.settings import Option

_PREVIEW = "preprocess.check.preview.preview_build"  # instead of `build`, with --dry-run


# --- commands ---


class Command(NamedTuple):
    """A command: parse the options of a function, call it, show its result.

    `show` returns False for exit code 1. Modules are imported when they are needed.
    """

    function: str  # module.name
    settings: str  # class in `preprocess.options`
    console: str  # names of its options in `ConsoleSettings`
    show: Callable[[_Console, Any], bool]
    summary: str

    def options(self) -> list[Option[Any, Any]]:
        """Return the options, in the order of the help."""
        from preprocess import options
        from preprocess.settings import options_of

        own = options_of(getattr(options, self.settings)).values()
        console = options_of(options.ConsoleSettings)
        return [*(x for x in own if x.in_command), *map(console.__getitem__, self.console.split())]

    def call(self, given: dict[str, Any], console: _Console) -> bool:
        """Call the function with given options, and show the result; False for exit code 1."""
        from preprocess import options
        from preprocess.settings import options_of

        if "progress" in options_of(getattr(options, self.settings)):
            given["progress"] = console.progress
        name = _PREVIEW if console.settings.dry_run else self.function
        result = _imported(name)(**given)
        return console.report(result) if console.settings.dry_run else self.show(console, result)


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _show_counts(console: _Console, report: Report) -> bool:
    from preprocess.report.summary import format_counts, format_left_out, table

    counted = [(source.name, counts) for source, counts in report.sources]
    rows = [
        [f"{counts.tokens:,}", f"{counts.documents:,}", f"{counts.bytes:,}", name]
        for name, counts in [*counted, ("total", report.total())]
    ]
    console.show({}, table([["tokens", "documents", "bytes", "file"], *rows]))
    return console.report([format_counts(report.total()), *format_left_out(report.left_out)])


def _show_bytes(console: _Console, pieces: Iterable[bytes]) -> bool:
    assert isinstance(sys.stdout, _Stream)
    all(map(sys.stdout.write_bytes, pieces))  # until one cannot be written
    sys.stdout.flush()
    return sys.stdout.error is None


def _show_facts(console: _Console, found: dict[str, Any]) -> bool:
    lines = _imported("preprocess.check.inspect.format_lines")(found)
    return console.show(found, lines) and not found.get("bad_files")


_RUN = "debug verbose quiet log_file"
COMMANDS = {
    "build": Command(
        "preprocess.pipeline.build", "BuildSettings", f"dry_run {_RUN}",
        lambda console, result: console.report(result.lines),
        "Train a tokenizer (unless one is given) and encode train and validation text.",
    ),
    "train": Command(
        "preprocess.pipeline.train", "TrainFileSettings", _RUN,
        lambda console, result: console.report(result[1]), "Train a tokenizer on text.",
    ),
    "encode": Command(
        "preprocess.pipeline.encode", "EncodeSettings", _RUN,
        lambda console, result: console.report(result.lines), "Encode text into one token file.",
    ),
    "count": Command(
        "preprocess.pipeline.count", "CountSettings", _RUN, _show_counts,
        "Count the documents, bytes and tokens of text; writes nothing.",
    ),
    "merge": Command(
        "preprocess.run.merge.merge_parts", "MergeSettings", "debug quiet log_file",
        lambda console, result: console.report([
            f"{name}: {found.n_documents:,} documents, {found.n_tokens:,} tokens in"
            f" {len(found.shards):,} shards"
            for name, found in result.items()
        ]),
        "Combine the parts built by tasks into one dataset, without copying data.",
    ),
    "rows": Command(
        "preprocess.rows.write.write_rows", "RowsSettings", _RUN,
        lambda console, result: console.report([each.line for each in result]),
        "Write rows of a dataset to Parquet, Arrow, JSON Lines, NPZ or pickled files.",
    ),
    "export": Command(
        "preprocess.export.write.export_tokens", "ExportSettings", _RUN,
        lambda console, result: console.report([line for each in result for line in each.lines]),
        "Write a dataset as files of Megatron, llm.c, datatrove, MDS, litdata or NumPy.",
    ),
    "import": Command(
        "preprocess.imports.write.import_tokens", "ImportSettings", _RUN,
        lambda console, result: console.report([result.line]),
        "Write a dataset from token ids that another program made.",
    ),
    "decode": Command(
        "preprocess.check.inspect.decode_range", "DecodeSettings", "debug", _show_bytes,
        "Print the text of a token file, special tokens included.",
    ),
    "inspect": Command(
        "preprocess.check.inspect.facts", "InspectSettings", "json debug", _show_facts,
        "Describe a token file, a tokenizer or a directory of outputs.",
    ),
    "compare": Command(
        "preprocess.check.compare.compare", "CompareSettings", f"json {_RUN}",
        lambda console, result: console.show(
            result, _imported("preprocess.check.compare.format_lines")(result)
        ),
        "Encode the same text with two tokenizers: tokens, bytes per token, speed.",
    ),
    "verify": Command(
        "preprocess.check.verify.verify", "VerifySettings", f"json {_RUN}",
        lambda console, result: console.show_checks(result, "findings", "sound", "DAMAGED"),
        "Check token files against their manifests; exit code 1 if something is wrong.",
    ),
    "doctor": Command(
        "preprocess.check.doctor.run_doctor", "DoctorSettings", "json debug",
        lambda console, result: console.show_checks(result, "checks", "fit", "PROBLEM"),
        "Check whether this machine is fit for a long job; exit code 1 if something is not.",
    ),
}


# --- parsing ---


class _UsageError(Exception):
    """The arguments are not valid for the command."""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises _UsageError, and does not hide failures to print."""

    def error(self, message: str) -> NoReturn:
        """Raise _UsageError, with a suggestion for an unknown option."""
        before, _, unknown = message.partition("unrecognized arguments: ")
        if unknown and not before:
            names = [each for each in unknown.split(" ") if each.startswith("--")]
            message = f"unrecognized arguments: {' '.join(names) or unknown}"  # values may be paths
            name = (names or [unknown])[0].split("=")[0].split(" ")[0]
            message += _advise(name.replace("_", "-"), self._option_string_actions)
        raise _UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)


def _advise(name: str, known: Iterable[str]) -> str:
    """Format what stands for an unknown option, to end a message; "" if nothing is known."""
    from bpe.arguments import nearest
    from preprocess.options import OTHER_SPELLINGS

    other = OTHER_SPELLINGS.get(name, "")
    if other.startswith("refused: "):
        return f"; it {other.removeprefix('refused: ')}"
    having = [
        command for command, each in COMMANDS.items()
        if any(name in option.names for option in each.options())
    ]
    if having:
        return f"; it is an option of tokenmill {', '.join(having)}"
    options = {each.lstrip("-").replace("-", "_"): each for each in known}
    own = nearest(name.lstrip("-").replace("-", "_"), options)
    before, asks, found = own.rstrip("?").rpartition(" ")
    return f"{before}{asks}{options[found]}?" if own else ""


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option[Any, Any]]) -> None:
    """Add the options of a command to its parser, in the order of its help, and its usage."""
    shown = filter(None, map(_format_usage, options))
    parser.usage = " ".join([f"{parser.prog} [OPTION...]", *shown])
    for option in options:
        parser.add_argument(*option.names, **_argument_options(option))


def _format_usage(option: Option[Any, Any]) -> str:
    """Format a positional or required option for the usage line; "" for others."""
    if option.kw_only:
        return f"{option.names[0]} {option.metavar}" if option.is_required else ""
    shown = f"{option.metavar}{'...' * option.is_list}"
    return shown if option.is_required else f"[{shown}]"


def _argument_options(option: Option[Any, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for an option."""
    default = f" [default: {option.shown_default}]" if option.shown_default else ""
    # argparse formats help with %.
    text = (option.help + default).replace("%", "%%")
    how: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
    if option.is_switch:
        return how | {"dest": option.name, "action": "store_true"}
    how |= {"metavar": option.metavar, "type": option.parse}
    if not option.kw_only:
        nargs = "+" if option.is_required else "*"
        return how | {"nargs": nargs if option.is_list else None if option.is_required else "?"}
    how |= {"dest": option.name, "required": option.is_required}
    if option.is_list:
        how |= {"action": "extend", "nargs": "+"} if option.is_location else {"action": "append"}
    return how


def for_argparse(
    arguments: list[str], options: Sequence[Option[Any, Any]], ignored: list[str]
) -> list[str]:
    """Rewrite arguments that argparse would misinterpret, and options of other programs.

    Underscores in option names become hyphens; the argument after an option with a value is its
    value, and arguments after `--` are paths, even if they begin with a hyphen. Why options of
    other programs are ignored is added to `ignored`.

    >>> from preprocess.options import CountSettings
    >>> from preprocess.settings import options_of
    >>> options = [*options_of(CountSettings).values()]
    >>> for_argparse(["--unit_size", "1_0", "a_b", "--separator", "--", "--", "-c"], options, [])
    ['--unit-size=1_0', 'a_b', '--separator=--', './-c']
    >>> for_argparse(["--input", "a", "--batch_size", "500"], options, [])
    ['a']
    """
    from preprocess.options import OTHER_SPELLINGS

    by_name = {name: each for each in options if each.kw_only for name in each.names}
    own = {each.name: each for each in options}
    spelled: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--" and any(not each.kw_only for each in options):
            return [*spelled, *map(_as_path, left)]
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        option, other = by_name.get(name), OTHER_SPELLINGS.get(name, "")
        if option is None and other.startswith("ignored: "):
            ignored.append(f"{name} is {other}")
            _ = equals or next(left, None)
            continue
        if option is None and (option := next(filter(None, map(own.get, other.split())), None)):
            if not option.kw_only:
                spelled.append(_as_path(value if equals else next(left, "")))
                continue
            name = option.names[0]
        if option is None:
            before = by_name.get(spelled[-1]) if spelled else None
            is_first_of_list = before is not None and before.is_list
            spelled.append(_as_path(argument) if is_first_of_list else argument)
            continue
        takes_one = not option.is_switch and not (option.is_list and option.is_location)
        if takes_one and not equals and (following := next(left, None)) is not None:
            equals, value = "=", following
        spelled.append(f"{name}{equals}{value}")
    return spelled


def _as_path(path: str) -> str:
    return f"./{path}" if path.startswith("-") and path != "-" else path


def _parser_of_commands() -> _Parser:
    """Make the parser of `tokenmill` without a command."""
    parser = _Parser(
        prog="tokenmill",
        usage="tokenmill [COMMAND] [OPTION...]",
        description="Text in, memory-mapped tokens out: train a byte-level BPE, encode a corpus,"
        " look at it.",
        epilog="Options without a command mean build. 'tokenmill COMMAND --help' says more.",
    )
    parser.add_argument("--version", action="store_true", help="Show the version.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    return parser


# --- running commands ---


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command, and exit with its exit code."""
    # Collecting garbage among the 80,000 permanent objects of libraries and a tokenizer, at import
    # and exit, takes a quarter of the time of a short command; work on text makes no cycles.
    gc.set_threshold(100_000)
    # Unused, but OpenBLAS would start its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command with the arguments after `tokenmill`, and return its exit code."""
    with _standard_streams(), stopping(), options_as_in_command():
        try:
            return _parse_and_run(arguments)
        except _UsageError as error:
            return _failed(str(error), 2)
        except TokenmillError as error:
            if "--debug" in arguments:
                raise
            from preprocess.report.progress import OutOfTimeError
            from preprocess.settings import SettingsError

            if isinstance(error, OutOfTimeError):
                print(f"tokenmill: {error}", file=sys.stderr)
                return 3
            return _failed(str(error), 2 if isinstance(error, SettingsError) else 1)
        except (OSError, MemoryError) as error:
            if "--debug" in arguments:
                raise
            return _failed(f"{type(error).__name__}: {error} (--debug shows where)", 1)
        except Stopped as stopped:
            return _failed(f"stopped ({stopped})", 128 + stopped.number)


def _parse_and_run(arguments: list[str]) -> int:
    if not arguments:
        _parser_of_commands().print_help()
        return 2
    name, *rest = arguments
    if name.startswith("-") and name not in ("-h", "--help", "--version"):
        name, rest = "build", arguments
    try:
        if name not in COMMANDS:
            # Prints the help, or raises _UsageError for an unknown command.
            _parser_of_commands().parse_args([name])
            # Slower than all other work of `--help`.
            from importlib.metadata import version

            print(f"tokenmill {version('tokenmill')}")
            return 0
        command = COMMANDS[name]
        options = command.options()
        # An abbreviation could become ambiguous when options are added.
        parser = _Parser(prog=f"tokenmill {name}", description=command.summary, allow_abbrev=False)
        add_options(parser, options)
        ignored: list[str] = []
        given = vars(parser.parse_intermixed_args(for_argparse(rest, options, ignored)))
    except SystemExit:  # --help
        return 0
    of_console = {key: given.pop(key) for key in command.console.split() if key in given}
    with _console(of_console) as console:
        for line in dict.fromkeys(ignored):
            logging.getLogger("preprocess").info("%s", line)
        return 0 if command.call(given, console) else 1


def _failed(message: str, code: int) -> int:
    # One line, even if a file name has line breaks.
    print(f"tokenmill: error: {' '.join(message.splitlines())}", file=sys.stderr)
    return code


# --- printing ---


class _Stream:
    """A standard stream; what it cannot take is dropped, for the work of a run goes on.

    Attributes:
        error: Why something was dropped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Write text; characters that the encoding lacks are escaped."""
        encoding = self._stream.encoding or "utf-8"
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
        with self._noted():
            self._stream.write(shown)

    def write_bytes(self, data: bytes) -> bool:
        """Write bytes; return False if something was dropped."""
        with self._noted():
            self._stream.buffer.write(data)
        return self.error is None

    def flush(self) -> None:
        """Write what is buffered."""
        with self._noted():
            self._stream.flush()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error
            # Python must not fail again when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def _standard_streams() -> Iterator[None]:
    """Let standard output and errors be closed, full or of any encoding inside the `with`."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would be written to by libraries
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before, output, errors = (sys.stdout, sys.stderr), _Stream(sys.stdout), _Stream(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    try:
        yield
    finally:
        output.flush()
        if output.error is not None and not isinstance(output.error, BrokenPipeError):
            print(f"tokenmill: what it printed is lost: {output.error.strerror}", file=errors)
        errors.flush()
        sys.stdout, sys.stderr = before


class _Console(NamedTuple):
    """Output of a command."""

    progress: Progress
    settings: ConsoleSettings

    def show(self, value: object, lines: Sequence[str]) -> bool:
        """Print a result, `value` as JSON with --json, else `lines`; return True."""
        if self.settings.json:
            import codecs
            import json

            is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
            lines = [json.dumps(value, ensure_ascii=not is_utf8, indent=2, default=os.fspath)]
        for line in lines:
            print(line)
        return True

    def show_checks(
        self, checks: Sequence[Check | Finding], name: str, ok: str, problem: str
    ) -> bool:
        """Print checks, which are (subject, is ok, text, ...); return True if all are ok."""
        lines = [f"{'ok     ' if each[1] else problem}  {each[0]}: {each[2]}" for each in checks]
        all_ok = all(each[1] for each in checks)
        return self.show({ok: all_ok, name: [x._asdict() for x in checks]}, lines) and all_ok

    def report(self, lines: Sequence[str]) -> bool:
        """Print and log the closing lines; return True."""
        from preprocess.report.progress import logger

        for line in lines:
            if not self.settings.quiet:
                print(line)
            logger.info("%s", line, extra={"only_file": True})
        return True


@contextmanager
def _console(given: dict[str, Any]) -> Iterator[_Console]:
    """Connect the loggers of both packages to stderr and the log file inside the `with`."""
    from preprocess.options import ConsoleSettings
    from preprocess.report.progress import Progress
    from preprocess.report.progress import logger as own

    settings = ConsoleSettings(**given)
    quiet, log_file = settings.quiet, settings.log_file
    handlers: list[logging.Handler] = [_OnStderr(logging.WARNING if quiet else logging.INFO)]
    if log_file is not None:
        try:
            to_file = _LogFile(log_file)
        except OSError as error:
            from preprocess.storage import OutputError

            text = f"no log can be written there: {error.strerror}; choose another file"
            raise OutputError(f"{log_file}: {text}") from error
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(to_file)
    loggers = [own, logging.getLogger("bpe")]
    for logger, handler in product(loggers, handlers):
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    show: Show = "nothing" if quiet else "bars" if sys.stderr.isatty() else "lines"
    progress = Progress(show, verbose=settings.verbose)
    try:
        yield _Console(progress, settings)
    except BaseException as error:
        if log_file is not None:
            own.error("%s: %s", type(error).__name__, error, extra={"only_file": True})
        raise
    finally:
        for logger, handler in product(loggers, handlers):
            logger.removeHandler(handler)
            handler.close()


class _LogFile(logging.FileHandler):
    """Handler of the log file; that it cannot be written does not end a run, and is reported."""

    def __init__(self, path: str) -> None:
        from preprocess.sources.own_files import LOG_BEGINS

        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        if self.stream and os.path.isfile(path) and not os.path.getsize(path):
            self.stream.write(LOG_BEGINS)  # with the first line, or at the end

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of logging)
        """Report an error of the disk, once; raise any other one."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            raise
        self._report(error)

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        try:
            super().close()
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._is_reported:
            self._is_reported = True
            print(
                f"tokenmill: {self.baseFilename}: the log lacks lines, for it could not be written:"
                f" {error.strerror}; outputs are not affected", file=sys.stderr,
            )

    _is_reported = False


class _OnStderr(logging.Handler):
    """Handler that prints records, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "only_file", False):
            return
        line = f"tokenmill: {record.getMessage()}"
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)
