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
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from bpe.errors import ArgumentError, TokenmillError, options_as_in_command
from preprocess.report.console import error_of, logging_to, standard_streams
from preprocess.report.progress import OutOfTimeError, Progress, Show, logger
from preprocess.run.signals import Stopped, stopping

if TYPE_CHECKING:
    from preprocess.options import ConsoleSettings
    from preprocess.settings import Option

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
    page: str = ""  # file that is written without --json, if --out names no other

    def options(self) -> list[Option[Any, Any]]:
        """Return the options, in the order of the help."""
        own, console = _declared(self.settings).values(), _declared("ConsoleSettings")
        return [*(x for x in own if x.in_command), *map(console.__getitem__, self.console.split())]

    def call(self, given: dict[str, Any], console: _Console) -> bool:
        """Call the function with given options, and show the result; False for exit code 1."""
        if "progress" in _declared(self.settings):
            given["progress"] = console.progress
        if self.page and not console.settings.json:
            given.setdefault("out", self.page)
        if console.settings.dry_run:
            return console.report(imported("preprocess.check.preview.preview_build")(**given))
        return self.show(console, imported(self.function)(**given))


def imported(name: str) -> Any:
    """Import what has a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _declared(settings: str) -> dict[str, Option[Any, Any]]:
    """Return the options of a class in `preprocess.options` by name."""
    from preprocess.settings import options_of

    return options_of(imported(f"preprocess.options.{settings}"))


class _Console(NamedTuple):
    """Output of a command."""

    progress: Progress
    settings: ConsoleSettings

    def show(self, value: object, lines: Iterable[str]) -> bool:
        """Print a result, `value` as JSON with --json, else `lines`; return True."""
        if self.settings.json:
            import codecs
            import json

            is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
            lines = [json.dumps(value, ensure_ascii=not is_utf8, indent=2, default=os.fspath)]
        for line in lines:
            print(line)
        return True

    def report(self, lines: Iterable[str]) -> bool:
        """Print and log the closing lines; return True."""
        for line in lines:
            if not self.settings.quiet:
                print(line)
            logger.info("%s", line, extra={"only_file": True})
        return True

    def counts(self, report: Any) -> bool:
        """Show the counts of sources."""
        from preprocess.report.summary import format_counts, format_left_out, table

        counted = [*((x.name, counts) for x, counts in report.sources), ("total", report.total())]
        rows = [[f"{x.tokens:,}", f"{x.documents:,}", f"{x.bytes:,}", name] for name, x in counted]
        self.show({}, table([["tokens", "documents", "bytes", "file"], *rows]))
        return self.report([format_counts(report.total()), *format_left_out(report.left_out)])

    def text(self, pieces: Iterable[bytes]) -> bool:
        """Write text as it is, until it cannot be written."""
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            if error_of(sys.stdout):
                break
        sys.stdout.flush()
        return error_of(sys.stdout) is None

    def facts(self, found: dict[str, Any]) -> bool:
        """Show the description of a file."""
        lines = imported("preprocess.check.inspect.format_lines")(found)
        return self.show(found, lines) and not found.get("bad_files")

    def checks(self, checks: Sequence[Any], name: str, ok: str, problem: str) -> bool:
        """Print checks, which are (subject, is ok, text, ...); return True if all are ok."""
        lines = []
        for each in checks:
            wrong = problem if getattr(each, "checked", True) else "NOT CHECKED"
            lines.append(f"{'ok     ' if each[1] else wrong}  {each[0]}: {each[2]}")
        all_ok = all(each[1] for each in checks)
        return self.show({ok: all_ok, name: [x._asdict() for x in checks]}, lines) and all_ok


def _formatted(formatter: str) -> Callable[[_Console, Any], bool]:
    """Return what shows a result as JSON, or as the lines that a function makes of it."""
    return lambda console, found: console.show(found, imported(formatter)(found))


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
        "preprocess.pipeline.count", "CountSettings", _RUN, _Console.counts,
        "Count the documents, bytes and tokens of text; writes nothing.",
    ),
    "merge": Command(
        "preprocess.run.merge.merge_parts", "MergeSettings", "debug quiet log_file",
        lambda console, result: console.report(
            f"{name}: {found.n_documents:,} documents, {found.n_tokens:,} tokens in"
            f" {len(found.shards):,} shards"
            for name, found in result.items()
        ),
        "Combine the parts built by tasks into one dataset, without copying data.",
    ),
    "rows": Command(
        "preprocess.rows.write.write_rows", "RowsSettings", _RUN,
        lambda console, result: console.report(each.line for each in result),
        "Write rows of a dataset to Parquet, Arrow, JSON Lines, NPZ or pickled files.",
    ),
    "export": Command(
        "preprocess.export.write.export_tokens", "ExportSettings", _RUN,
        lambda console, result: console.report(line for each in result for line in each.lines),
        "Write a dataset as files of Megatron, llm.c, datatrove, MDS, litdata or NumPy.",
    ),
    "import": Command(
        "preprocess.imports.write.import_tokens", "ImportSettings", _RUN,
        lambda console, result: console.report([result.line]),
        "Write a dataset from token ids that another program made.",
    ),
    "append": Command(
        "preprocess.edit.append.append", "AppendSettings", _RUN,
        lambda console, found: console.report([
            f"{found.n_documents:,} documents, {found.n_tokens:,} tokens in {len(found.shards):,}"
            " shards"
        ]),
        "Append documents to a dataset, as new shards.",
    ),
    "drop": Command(
        "preprocess.edit.drop.drop", "DropSettings", _RUN,
        lambda console, found: console.report([
            f"{found.n_documents:,} documents, {found.n_tokens:,} tokens remain"
        ]),
        "Write a dataset without some of its documents, and list those that were dropped.",
    ),
    "decode": Command(
        "preprocess.check.decode.decode_range", "DecodeSettings", "debug", _Console.text,
        "Print the text of a token file, special tokens included.",
    ),
    "search": Command(
        "preprocess.find.search.search", "SearchSettings", f"json {_RUN}",
        _formatted("preprocess.find.search.format_lines"),
        "Find texts, ids or evaluation items in a dataset, and print where they occur.",
    ),
    "where": Command(
        "preprocess.find.where.where", "WhereSettings", "json debug",
        _formatted("preprocess.find.where.format_places"),
        "Find the document and source of a token, and show the text around it.",
    ),
    "show": Command(
        "preprocess.find.steps.show", "ShowSettings", "json debug",
        _formatted("preprocess.find.steps.format_rows"),
        "Show the rows of a training step: documents, sources, text and loss masks.",
    ),
    "inspect": Command(
        "preprocess.check.inspect.facts", "InspectSettings", "json debug", _Console.facts,
        "Describe a token file, a tokenizer or a directory of outputs.",
    ),
    "view": Command(
        "preprocess.view.server.open_viewer", "ViewSettings", "debug",
        lambda console, viewer: viewer.serve(),
        "Show datasets and tokenizers on a page in the browser.",
    ),
    "compare": Command(
        "preprocess.check.compare.compare", "CompareSettings", f"json {_RUN}",
        _formatted("preprocess.check.compare.format_lines"),
        "Encode the same text with two tokenizers, and compare tokens and speed.",
    ),
    "vocab-curve": Command(
        "preprocess.check.vocab_curve.vocab_curve", "VocabCurveSettings", f"json {_RUN}",
        _formatted("preprocess.check.vocab_curve.format_lines"),
        "Train once, compare sizes of the vocabulary on held-out text, and recommend one.",
    ),
    "report": Command(
        "preprocess.check.report_numbers.report", "ReportSettings", "json debug",
        lambda console, found: console.show(
            found, imported("preprocess.check.report_numbers.format_lines")(found)
        ) and not found["bad_files"],
        "Write a page that reports leaks, copies, lengths and unused tokens of datasets.",
        "report.html",
    ),
    "verify": Command(
        "preprocess.check.verify.verify", "VerifySettings", f"json {_RUN}",
        lambda console, result: console.checks(result, "findings", "sound", "DAMAGED"),
        "Check token files against their manifests; exit code 1 if something is wrong.",
    ),
    "diff": Command(
        "preprocess.check.diff.diff", "DiffSettings", f"json {_RUN}",
        lambda console, found: console.show(
            found, imported("preprocess.check.diff.format_lines")(found)
        ) and found["same"],
        "Compare the documents of two datasets, in any order; exit code 1 if they differ.",
    ),
    "doctor": Command(
        "preprocess.check.doctor.run_doctor", "DoctorSettings", "json debug",
        lambda console, result: console.checks(result, "checks", "fit", "PROBLEM"),
        "Check whether this machine is fit for a long job; exit code 1 if something is not.",
    ),
}


# --- parsing ---


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ArgumentError."""

    def error(self, message: str) -> NoReturn:
        """Raise ArgumentError."""
        raise ArgumentError(f"{message:.300}; see {self.prog} --help")


class _Formatter(argparse.HelpFormatter):
    """A formatter that does not break lines inside of options."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Split a help text into lines."""
        import textwrap  # as argparse does, only for a help

        return textwrap.wrap(text, width, break_on_hyphens=False)


def _parser_of(name: str, command: Command) -> _Parser:
    """Make the parser of a command from its options, in the order of its help, and its usage."""
    # An abbreviation could become ambiguous when options are added.
    parser = _Parser(
        prog=f"tokenmill {name}", description=command.summary, allow_abbrev=False,
        formatter_class=_Formatter,
    )
    usage = [f"tokenmill {name} [OPTION...]"]
    for option in command.options():
        default = f" [default: {option.shown_default}]" if option.shown_default else ""
        # argparse formats help with %.
        text = f"{option.help}{default}".replace("%", "%%")
        how: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
        if option.is_switch:
            how |= {"dest": option.name, "action": "store_true"}
        elif not option.kw_only:
            shown = f"{option.metavar}{'...' * option.is_list}"
            usage.append(shown if option.is_required else f"[{shown}]")
            how |= {"metavar": option.metavar, "nargs": "*" if option.is_list else "?"}
        else:
            usage += [f"{option.flag} {option.metavar}"] * option.is_required
            how |= {"dest": option.name, "metavar": option.metavar, "type": option.parse}
            if option.is_list:
                many = option.is_location
                how |= {"action": "extend", "nargs": "+"} if many else {"action": "append"}
        parser.add_argument(option.flag, **how)
    parser.usage = " ".join(usage)
    return parser


def _for_argparse(
    arguments: list[str], options: Sequence[Option[Any, Any]], ignored: list[str],
    fail: Callable[[str], object],
) -> list[str]:
    """Rewrite arguments that argparse would misinterpret, and options of other programs.

    Underscores in option names become hyphens; the argument after an option with a value is its
    value, and arguments after `--` are paths, even if they begin with a hyphen. Why options of
    other programs are ignored is added to `ignored`; `fail` gets what is wrong with unknown ones.

    >>> given = ["--unit_size", "1_0", "a_b", "--input", "d", "--separator", "--", "--", "-c"]
    >>> _for_argparse(given, COMMANDS["count"].options(), [], print)
    ['--unit-size=1_0', 'a_b', 'd', '--separator=--', './-c']
    """
    from bpe.arguments import alike
    from preprocess.settings import OTHER_NAMES

    named = {each.flag: each for each in options if each.kw_only}
    own = {each.name: each for each in options}
    spelled: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--" and any(not each.kw_only for each in options):
            has_texts = any(not each.kw_only and not each.is_location for each in options)
            return [*spelled, "--", *left] if has_texts else [*spelled, *map(_as_path, left)]
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        other = OTHER_NAMES.get(_as_name(name), "") if name.startswith("--") else ""
        same = own.get(other) or next(map(own.__getitem__, alike(other, own)), None)
        option = named.get(name) or same
        if option is None and other.startswith("ignored: "):
            ignored.append(f"{name} is {other}")
            _ = equals or next(left, None)
        elif option is None:
            before = named.get(spelled[-1]) if spelled else None
            if argument[:2] == "--" and argument != "--help" and not (before and before.is_list):
                fail(f"unrecognized arguments: {argument}{_advice(name, options)}")
            spelled.append(_as_path(argument) if before and before.is_list else argument)
        elif not option.kw_only:
            spelled.append(_as_path(value if equals else next(left, "")))
        else:
            takes_one = not option.is_switch and not (option.is_list and option.is_location)
            if takes_one and not equals and (following := next(left, None)) is not None:
                equals, value = "=", following
            spelled.append(f"{option.flag}{equals}{value}")
    return spelled


def _as_path(path: str) -> str:
    return f"./{path}" if path.startswith("-") and path != "-" else path


def _advice(name: str, own: Iterable[Option[Any, Any]]) -> str:
    """Format what stands for an unknown option, to end a message; "" if nothing is known."""
    from preprocess.settings import advice

    known, *others = (
        [_as_name(x.flag) for x in options if x.kw_only]
        for options in (own, *(each.options() for each in COMMANDS.values()))
    )
    elsewhere = {f"tokenmill {x}": names for x, names in zip(COMMANDS, others, strict=True)}
    return advice(_as_name(name), known, elsewhere, lambda x: f"--{x.replace('_', '-')}")


def _as_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


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
    with standard_streams(), stopping(), options_as_in_command():
        try:
            return _parse_and_run(arguments)
        except Stopped as stopped:
            return _failed(f"stopped ({stopped})", 128 + stopped.number)
        except (TokenmillError, OSError, MemoryError) as error:
            if "--debug" in arguments:
                if not isinstance(error, ArgumentError):
                    raise
                traceback.print_exc()
            if isinstance(error, OutOfTimeError):
                print(f"tokenmill: {error}", file=sys.stderr)
                return 3
            if isinstance(error, TokenmillError):
                return _failed(str(error), 2 if isinstance(error, ArgumentError) else 1)
            return _failed(f"{type(error).__name__}: {error} (--debug shows where)", 1)


def _parse_and_run(arguments: list[str]) -> int:
    if not arguments:
        _parser_of_commands().print_help()
        return 2
    name, *rest = arguments
    if name.startswith("-") and name not in ("-h", "--help", "--version"):
        name, rest = "build", arguments
    ignored: list[str] = []
    try:
        if name not in COMMANDS:
            if not name.startswith("-"):
                from bpe.arguments import nearest

                near = nearest(name, COMMANDS)
                question = f"; did you mean {near}?" if near else ""
                raise ArgumentError(f"there is no command {name!r}{question}; see tokenmill --help")
            # Prints the help or the version.
            _parser_of_commands().parse_args([name])
            # Slower than all other work of `--help`.
            from importlib.metadata import version

            print(f"tokenmill {version('tokenmill')}")
            return 0
        command, options = COMMANDS[name], COMMANDS[name].options()
        parser = _parser_of(name, command)
        spelled = _for_argparse(rest, options, ignored, parser.error)
        given = vars(parser.parse_intermixed_args(spelled))
        needed = [each for each in options if each.is_required and each.name not in given]
        if missing := [each.flag if each.kw_only else each.metavar for each in needed]:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
    except SystemExit:  # --help
        return 0
    from preprocess.options import ConsoleSettings

    settings = ConsoleSettings(**{x: given.pop(x) for x in command.console.split() if x in given})
    with logging_to(settings.log_file, settings.quiet):
        for line in dict.fromkeys(ignored):
            logger.info("%s", line)
        show: Show = "nothing" if settings.quiet else "bars" if sys.stderr.isatty() else "lines"
        progress = Progress(show, verbose=settings.verbose)
        return 0 if command.call(given, _Console(progress, settings)) else 1


def _failed(message: str, code: int) -> int:
    # One line, even if a file name has line breaks.
    print(f"tokenmill: error: {' '.join(message.splitlines())}", file=sys.stderr)
    return code
