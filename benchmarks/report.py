"""What a run found, as Markdown and as JSON; and on what machine.

Law: a figure whose results differ is not shown.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.corpora import MB
from benchmarks.job import installed
from benchmarks.rounds import Comparison
from benchmarks.studies import Table

_PACKAGES = (
    "numpy", "numba", "llvmlite", "regex", "gigatoken", "gigabpe", "fastokens", "snaptokens",
    "tokenizers", "tiktoken", "rustbpe", "bpeasy", "ffbpe", "pyarrow", "datasets", "datatrove",
    "torch", "litdata", "megatron-core", "mosaicml-streaming", "grain",
)  # fmt: skip
_COLUMNS = [
    "work", "text", "MB", "vocabulary", "pattern", "beside", "tokenmill MB/s", "peer MB/s",
    "times as fast (lowest to highest)",
    "in CPU seconds", "peak MB", "peer's", "equal",
]  # fmt: skip


def circumstances(
    rounds: int, threads: int, elsewhere: dict[str, str | None] | None = None
) -> dict[str, Any]:
    """Date, machine, versions and command.

    Args:
        rounds: Pairs of measurements.
        threads: Processors for each side.
        elsewhere: Versions of packages that other interpreters have.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "machine": _processor(),
        "processors": os.cpu_count(),
        "threads": threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in _PACKAGES} | (elsewhere or {}),
        "rounds": rounds,
        "memory_is": "peak RssAnon of the process while the clock runs",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except FileNotFoundError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def heading(about: dict[str, Any]) -> str:
    """The circumstances in Markdown."""
    packages = ", ".join(f"{name} {found}" for name, found in about["packages"].items() if found)
    lines = [
        f"`{about['command']}`",
        f"{about['date']}; {about['machine']}, {about['processors']} processors, "
        f"{about['memory_bytes'] / 2**30:.0f} GiB, load {about['load_before']:.1f} before; "
        f"{about['system']}; Python {about['python']}; {packages}.",
        f"{about['threads']} threads where nothing else is said, {about['rounds']} rounds, medians."
        f" Memory is {about['memory_is']}.",
    ]
    return "\n\n".join(lines)


def table_head() -> str:
    """The first two lines of the table of comparisons."""
    return f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def row(found: Comparison) -> str:
    """One comparison as a line of the table."""
    if found.equal is False:
        rate = their_rate = cpu = "-"
        ratio = "results differ"
    else:
        rate = f"{found.n_bytes / MB / statistics.median(found.ours):,.1f}"
        their_rate = f"{found.n_bytes / MB / statistics.median(found.theirs):,.1f}"
        lowest, highest = min(found.ratios), max(found.ratios)
        cpu = f"{found.cpu_ratio:.2f}"
        ratio = f"**{found.ratio:.2f}** ({lowest:.2f} to {highest:.2f})"
    if found.figure in ("load", "first use"):  # does not depend on the text
        rate = f"{statistics.median(found.ours):.3f} s"
        their_rate = f"{statistics.median(found.theirs):.3f} s"
    memory = [
        f"{statistics.median(m) / MB:,.0f}" if m else "-"
        for m in (found.our_memory, found.their_memory)
    ]
    equal = {True: "yes", False: "NO", None: "time only"}[found.equal]
    work = found.work if found.figure in found.work else f"{found.work}, {found.figure}"
    cells = [
        work, found.text, f"{found.n_bytes / MB:,.0f}", found.vocabulary, found.pattern,
        found.peer, rate, their_rate, ratio, cpu, *memory, equal,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def study(table: Table) -> str:
    """A study in Markdown."""
    lines = [f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in table.rows]
    return f"### {table.title}\n\n" + "\n".join(lines) + f"\n\n{table.note}"


def write(
    directory: Path,
    about: dict[str, Any],
    comparisons: list[Comparison],
    tables: list[tuple[str, Table]],
    failures: list[str],
) -> None:
    """Write `benchmark.md` and `benchmark.json` with everything found so far."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = [heading(about)]
    if comparisons:
        parts.append("\n".join([table_head(), *map(row, comparisons)]))
    parts += [f"{study(table)}\n\nText: {text}." for text, table in tables]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(f"- {failure}" for failure in failures))
    (directory / "benchmark.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    everything = {
        "about": about,
        "comparisons": [comparison.to_json() for comparison in comparisons],
        "studies": [{"text": text, **asdict(table)} for text, table in tables],
        "failures": failures,
    }
    (directory / "benchmark.json").write_text(
        json.dumps(everything, indent=1) + "\n", encoding="utf-8"
    )
