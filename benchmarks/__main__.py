"""The command: which work, on which text, with which tokenizers; see the package's docstring."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import report
from benchmarks.corpora import MB, default_corpus, sized
from benchmarks.formats import formats, json_lines
from benchmarks.job import END_OF_TEXT, OURS, SIDES, Job, installed
from benchmarks.packing import packing
from benchmarks.remote import remote
from benchmarks.rounds import (
    MODULES,
    WORK,
    Comparison,
    MeasurementError,
    compare,
    measure,
    peers_of,
)
from benchmarks.rows import rows
from benchmarks.sampling import prefetch
from benchmarks.studies import STUDIES, Table

STUDIES["formats"] = formats
STUDIES["prefetch"] = prefetch
STUDIES["packing"] = packing
STUDIES["rows"] = rows
STUDIES["remote"] = remote
# What depends on a factor, and the values that it takes beside the usual one.
SIZES = (10 * MB, 100 * MB, 1000 * MB)
VOCABULARIES = (10_000, 32_000, 100_000)
PATTERNS = ("gpt2", "o200k")
DEPENDS = {
    "size": {"train", "count", "encode", "encode-texts", "to-bin"},
    "vocabulary": {"train", "encode", "encode-texts", "encode-one-thread", "to-bin"},
    "pattern": {"train", "count", "split", "encode", "encode-one-thread", "to-bin"},
}


@dataclass(frozen=True)
class Setting:
    """What is measured on: the values of all factors.

    Attributes:
        corpus: A text file.
        n_bytes: It is cut or repeated to this; None: as it is.
        vocab_size: Of the tokenizer; None: GPT-2's own.
        pattern: Of the tokenizer.
    """

    corpus: Path
    n_bytes: int | None
    vocab_size: int | None
    pattern: str

    @property
    def vocabulary(self) -> str:
        """What the vocabulary is called."""
        return "GPT-2" if self.vocab_size is None else f"{self.vocab_size:,}"


def varied(usual: Setting, factors: list[str], gpt2: bool) -> Iterator[tuple[str, Setting]]:
    """Settings in which one factor differs from the usual, with its name."""
    if "size" in factors:
        for n_bytes in SIZES:
            yield "size", replace(usual, n_bytes=n_bytes)
    if "vocabulary" in factors:
        for vocab_size in (*VOCABULARIES, *([None] if gpt2 else [])):
            yield "vocabulary", replace(usual, vocab_size=vocab_size)
    if "pattern" in factors:
        for pattern in PATTERNS:
            yield "pattern", replace(usual, pattern=pattern)


def versions_elsewhere(pythons: dict[str, Path]) -> dict[str, str | None]:
    """Versions of the packages of peers that have an interpreter of their own."""
    return {
        sides[peer].package: installed(sides[peer].package, python)
        for peer, python in pythons.items()
        for sides in SIDES.values()
        if peer in sides
    }


class Run:
    """All measurements of one command; what is found is printed and written at once."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self._arguments = arguments
        self._directory = directory
        self._about = report.circumstances(
            arguments.rounds, arguments.threads, versions_elsewhere(arguments.python)
        )
        self._comparisons: list[Comparison] = []
        self._tables: list[tuple[str, Table]] = []
        self.failures: list[str] = []
        self._table_open = False

    def start(self) -> None:
        """Print under what circumstances."""
        print(report.heading(self._about), flush=True)

    def _tokenizer(self, setting: Setting) -> Path:
        """The tokenizer of a setting, trained on its text if it is not there yet."""
        from bpe import Tokenizer, train_bpe

        name = f"{setting.corpus.stem}-{setting.vocabulary}-{setting.pattern}.json"
        path = self._directory / name
        if path.exists():
            return path
        if setting.vocab_size is None:
            Tokenizer.from_gpt2_files(*self._arguments.gpt2).save(path)
        else:
            train_bpe(
                setting.corpus,
                setting.vocab_size,
                [END_OF_TEXT],
                pattern=setting.pattern,
                tie_break="huggingface",
                min_frequency=1,
            ).save(path)
        return path

    def _job(self, setting: Setting, work: str) -> Job:
        return Job(
            work=work,
            side=OURS,
            corpus=sized(setting.corpus, setting.n_bytes, self._directory),
            tokenizer=self._tokenizer(setting),
            vocab_size=setting.vocab_size or 50257,
            pattern=setting.pattern,
            threads=self._arguments.threads,
            directory=self._directory,
        )

    def compare(self, setting: Setting, work: str) -> None:
        """Measure ours beside each peer."""
        if work == "train" and setting.vocab_size is None:
            return  # GPT-2's was trained on something else
        job = self._job(setting, work)
        for peer in peers_of(work, setting.pattern):
            how = SIDES[work][peer]
            wanted = self._arguments.peer
            python = self._arguments.python.get(peer)
            if (wanted and peer not in wanted) or installed(how.package, python) is None:
                continue
            corpus = job.corpus
            if how.at_most is not None and corpus.stat().st_size > how.at_most:
                corpus = sized(setting.corpus, how.at_most, self._directory)
            if work in ("jsonl-to-bin", "jsonl-to-rows"):
                corpus = json_lines(corpus, job.threads, self._directory)
            ours = replace(job, corpus=corpus, threads=how.threads or job.threads)
            names = (setting.corpus.stem, setting.vocabulary)
            try:
                if work == "first-batch":
                    measure(replace(ours, work="build-first"))
                theirs = replace(ours, side=peer)
                found = compare(ours, theirs, self._arguments.rounds, names, python)
            except MeasurementError as error:
                self._failed(f"{work} / {peer}: {str(error).strip()}")
                continue
            if not self._table_open:
                print(f"\n{report.table_head()}")
                self._table_open = True
            for comparison in found:
                print(report.row(comparison), flush=True)
            if any(comparison.equal is False for comparison in found):
                self._failed(f"{work} / {peer}: the results differ, so the figures mean nothing")
            self._comparisons += found
            self._write()

    def study(self, setting: Setting, name: str) -> None:
        """Do a study of ours alone."""
        try:
            table = STUDIES[name](self._job(setting, name), self._arguments.rounds)
        except MeasurementError as error:
            self._failed(f"{name}: {str(error).strip()}")
            return
        self._table_open = False
        print(f"\n{report.study(table)}", flush=True)
        self._tables.append((setting.corpus.stem, table))
        self._write()

    def _failed(self, what: str) -> None:
        print(what, file=sys.stderr, flush=True)
        self.failures.append(what)
        self._write()

    def _write(self) -> None:
        if self._arguments.out:
            report.write(
                self._arguments.out, self._about, self._comparisons, self._tables, self.failures
            )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, and refuse what makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--corpus",
        type=Path,
        action="append",
        help="a text file; may be repeated (default: text Python ships with)",
    )
    add("--size", help="cut or repeat each text to so many bytes, such as 100MB")
    add("--vocab-size", type=int, default=32_000, help="of the tokenizers (default: 32000)")
    add("--pattern", default="gpt2", help="of the tokenizers (default: gpt2)")
    add("--gpt2", type=Path, nargs=2, metavar=("VOCAB_JSON", "MERGES_TXT"), help="GPT-2's files")
    add("--work", nargs="+", choices=[*WORK, *STUDIES], help="what to measure (default: all)")
    add("--peer", nargs="+", help="beside whom (default: all that are installed)")
    add(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="the interpreter of a peer whose pins exclude others; may be repeated",
    )
    add("--vary", nargs="+", choices=[*DEPENDS], default=[], help="one factor at a time")
    add("--rounds", type=int, default=5, help="pairs of measurements (default: 5)")
    add("--threads", type=int, default=2, help="processors for each side (default: 2)")
    add("--out", type=Path, help="a directory for benchmark.md and benchmark.json")
    parsed = parser.parse_args(arguments)
    for name in ("rounds", "threads"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name} must be at least 1")
    for path in [*(parsed.corpus or []), *(parsed.gpt2 or [])]:
        if not path.is_file():
            parser.error(f"{path} is not a file")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if parsed.threads > (usable or 1):
        parser.error(f"--threads {parsed.threads} is more than the {usable} processors there are")
    if parsed.size is not None:
        from preprocess.settings import size_in_bytes

        try:
            parsed.size = size_in_bytes(parsed.size)
        except ValueError as error:
            parser.error(f"--size {parsed.size}: {error}")
    for module in sorted(set(MODULES.values())):
        importlib.import_module(module)
    peers = {name for sides in SIDES.values() for name in sides} - {OURS}
    for peer in parsed.peer or []:
        if peer not in peers:
            parser.error(f"--peer {peer}: expected some of {', '.join(sorted(peers))}")
    pythons: dict[str, Path] = {}
    for value in parsed.python:
        peer, equals, path = value.partition("=")
        if not equals:
            parser.error(f"--python {value}: expected PEER=PATH")
        if peer not in peers:
            parser.error(f"--python {value}: expected a peer of {', '.join(sorted(peers))}")
        if not Path(path).is_file():
            parser.error(f"--python {value}: {path or 'the path'} is not a file")
        pythons[peer] = Path(path)
    parsed.python = pythons
    return parsed


def main() -> None:
    """Measure everything that is asked for."""
    arguments = parse()
    with tempfile.TemporaryDirectory() as name:
        run = Run(arguments, Path(name))
        run.start()
        chosen = arguments.work or [*WORK, *STUDIES]
        for corpus in arguments.corpus or [default_corpus(Path(name))]:
            usual = Setting(corpus, arguments.size, arguments.vocab_size, arguments.pattern)
            settings = list(varied(usual, arguments.vary, arguments.gpt2 is not None))
            for work in chosen:
                if work in STUDIES:
                    run.study(usual, work)
                    continue
                run.compare(usual, work)
                for factor, setting in settings:
                    if setting != usual and work in DEPENDS[factor]:
                        run.compare(setting, work)
    sys.exit(1 if run.failures else 0)


if __name__ == "__main__":
    main()
