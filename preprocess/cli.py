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

import argparse
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bpe.errors import TokenbinError
from preprocess.commands import COMMANDS, Parameter
from preprocess.stopping import Stopped, stopping

if TYPE_CHECKING:
    from preprocess.progress import Progress, Show


# --- commands
# --------------------------------------------------------------------------------------

# Each takes the settings that the user gave and what connects it to the outside, and returns the
# exit code.
_Settings = dict[str, Any]


def _build(settings: _Settings, told: _Told) -> int:
    from preprocess import pipeline

    told.say(pipeline.build(progress=told.progress, **settings).lines)
    return 0


def _train(settings: _Settings, told: _Told) -> int:
    from preprocess import pipeline

    _, lines = pipeline.train(progress=told.progress, **settings)
    told.say(lines)
    return 0


def _encode(settings: _Settings, told: _Told) -> int:
    from preprocess import pipeline

    told.say(pipeline.encode(progress=told.progress, **settings).lines)
    return 0


def _count(settings: _Settings, told: _Told) -> int:
    from preprocess import pipeline
    from preprocess.report import in_words, left_out_lines, table

    report = pipeline.count(progress=told.progress, **settings)
    counted = [(source.name, counts) for source, counts in report.sources]
    rows = [["tokens", "documents", "bytes", "file"]]
    for name, counts in [*counted, ("total", report.total())]:
        numbers = (counts.tokens, counts.documents, counts.bytes)
        rows.append([*(f"{number:,}" for number in numbers), name])
    _print(table(rows))
    told.say([in_words(report.total()), *left_out_lines(report.left_out)])
    return 0


def _decode(settings: _Settings, told: _Told) -> int:
    from preprocess.inspect import decoded

    for piece in decoded(**settings):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0


def _inspect(settings: _Settings, told: _Told) -> int:
    from preprocess.inspect import description, facts

    if told.as_json:
        _print_json(facts(**settings))
    else:
        _print(description(**settings))
    return 0


def _compare(settings: _Settings, told: _Told) -> int:
    from preprocess.compare import compare, lines

    found = compare(progress=told.progress, **settings)
    if told.as_json:
        _print_json(found)
    else:
        _print(lines(found))
    return 0


def _verify(settings: _Settings, told: _Told) -> int:
    from preprocess.verify import as_json, verified

    findings = verified(progress=told.progress, **settings)
    if told.as_json:
        _print_json(as_json(findings))
    else:
        _print(finding.line() for finding in findings)
    return 0 if all(finding.sound for finding in findings) else 1


def _doctor(settings: _Settings, told: _Told) -> int:
    from preprocess.doctor import as_json, examined

    checks = examined(Path(settings.get("path", "data")))
    if told.as_json:
        _print_json(as_json(checks))
    else:
        _print([check.line() for check in checks])
    return 0 if all(check.fit for check in checks) else 1


_RUN: dict[str, Callable[[_Settings, _Told], int]] = {
    "build": _build,
    "train": _train,
    "encode": _encode,
    "count": _count,
    "decode": _decode,
    "inspect": _inspect,
    "compare": _compare,
    "verify": _verify,
    "doctor": _doctor,
}


# --- how commands are run
# --------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code."""
    # The 80,000 objects that libraries and a tokenizer consist of are made once and stay. Python
    # would look through all of them again and again while they come, and once more at the end, for
    # cycles that nothing needs any more: a quarter of the time of a short command. Work on text
    # leaves no cycles behind.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
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
    with stopping():
        try:
            return _parsed_and_run(arguments)
        except _UsageError as error:
            return _failed(str(error), 2)
        except TokenbinError as error:
            if "--debug" in arguments:
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
            if "--debug" in arguments:
                raise
            return _failed(f"{type(error).__name__}: {error} (--debug shows where)", 1)
        except Stopped as stopped:
            return _failed(f"stopped ({stopped})", 128 + stopped.number)


class _UsageError(Exception):
    """The arguments are none that a command has."""


class _Parser(argparse.ArgumentParser):
    """argparse's parser, but it raises what it cannot parse, and prints nothing."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own passes over a failure to write.
        (file or sys.stdout).write(message)


class _ShowVersion(argparse.Action):
    """`--version`; to find it out takes longer than everything else that `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"tokenbin {version('tokenbin')}")
        parser.exit()


def _parsed_and_run(arguments: list[str]) -> int:
    if not arguments:
        _parser_of_commands().print_help()
        return 2
    name, *rest = arguments
    if name.startswith("-") and name not in ("-h", "--help", "--version"):
        name, rest = "build", arguments
    try:
        if name not in COMMANDS:
            # Shows what is asked for, or says that there is no such command.
            _parser_of_commands().parse_args([name])
        given = vars(
            _parser_of(name).parse_intermixed_args(for_argparse(rest, COMMANDS[name].parameters))
        )
    except SystemExit:
        # --help or --version.
        return 0
    settings = {key: value for key, value in given.items() if key not in _OF_TELLING}
    with _told(given) as told:
        return _RUN[name](settings, told)


def _parser_of_commands() -> _Parser:
    """The parser of `tokenbin` without a command."""
    parser = _Parser(
        prog="tokenbin",
        usage="tokenbin [COMMAND] [OPTION...]",
        description="Text in, memory-mapped tokens out: train a byte-level BPE, encode a corpus,"
        " look at it.",
        epilog="Options without a command mean build. 'tokenbin COMMAND --help' says more.",
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="Show the version.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help)
    return parser


def _parser_of(name: str) -> _Parser:
    """The parser of what stands behind a command."""
    parameters = COMMANDS[name].parameters
    parser = _Parser(
        prog=f"tokenbin {name}",
        usage=" ".join([f"tokenbin {name} [OPTION...]", *filter(None, map(_in_usage, parameters))]),
        description=COMMANDS[name].help,
        # A shortened option would change its meaning when a longer one comes.
        allow_abbrev=False,
    )
    for parameter in parameters:
        parser.add_argument(*parameter.names, **parameter.how)
    return parser


def _in_usage(parameter: Parameter) -> str:
    """How a parameter is shown in the first line of a command's help; optional ones are not."""
    name, value = parameter.names[0], parameter.how.get("metavar")
    if name.startswith("-"):
        return f"{name} {value}" if parameter.how.get("required") else ""
    shown = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}.get(parameter.how.get("nargs", ""), "{}")
    return shown.format(value)


def for_argparse(arguments: list[str], parameters: Sequence[Parameter]) -> list[str]:
    """Spell arguments so that argparse takes none for what it is not.

    An option may be spelled with underscores. What stands behind one that takes a value is the
    value, and what stands behind `--` are paths, whatever they begin with.

    >>> parameters = COMMANDS["count"].parameters
    >>> for_argparse(["--unit_size", "1_0", "a_b", "--separator", "--", "--", "-c"], parameters)
    ['--unit-size=1_0', 'a_b', '--separator=--', './-c']
    """
    options = {name: each for each in parameters if each.is_option for name in each.names}
    spelled: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--" and not all(each.is_option for each in parameters):
            return [*spelled, *(_as_path(path) for path in left)]
        name, equals, value = argument.partition("=")
        option = options.get(name.replace("_", "-"))
        if option is None:
            before = options.get(spelled[-1]) if spelled else None
            is_first_of_list = before is not None and before.how.get("nargs") == "+"
            spelled.append(_as_path(argument) if is_first_of_list else argument)
            continue
        name = name.replace("_", "-")
        if option.takes_one_value and not equals:
            following = next(left, None)
            equals, value = ("", "") if following is None else ("=", following)
        spelled.append(f"{name}{equals}{value}")
    return spelled


def _as_path(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


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
# Parameters that say how things are told; the others are settings of what is done.
_OF_TELLING = ("debug", "verbose", "quiet", "log_file", "as_json")


class _Told:
    """Where a command's words go."""

    def __init__(
        self, progress: Progress, logger: logging.Logger, *, quiet: bool, as_json: bool
    ) -> None:
        self.progress = progress
        self.as_json = as_json
        self._quiet = quiet
        self._logger = logger

    def say(self, lines: Sequence[str]) -> None:
        """Print the closing lines, and put them in the log file."""
        for line in lines:
            if not self._quiet:
                print(line)
            self._logger.info("%s", line, extra={"only_file": True})


@contextmanager
def _told(given: dict[str, Any]) -> Iterator[_Told]:
    """Connect the loggers of both packages to stderr and the log file while a command runs."""
    from preprocess.progress import Progress
    from preprocess.progress import logger as own

    quiet = "quiet" in given
    log_file = given.get("log_file")
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
    progress = Progress(show, verbose="verbose" in given)
    try:
        yield _Told(progress, own, quiet=quiet, as_json="as_json" in given)
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
