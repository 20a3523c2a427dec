"""The side-by-side run; see the package's docstring."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.work import END_OF_TEXT, VOCAB_SIZE, WORK


def default_corpus(directory: Path) -> Path:
    """Write the text that `make preprocess` takes by default to one file."""
    import sysconfig
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    texts = [text for _, text in sorted(topics.items())]
    texts += [path.read_text(encoding="utf-8") for path in sorted(library.glob("*.py"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted(library.glob("[a-s]*/*.py"))]
    path = directory / "corpus.txt"
    path.write_text(END_OF_TEXT.join(texts), encoding="utf-8")
    return path


def measure(work: str, side: str, corpus: Path, tokenizer: Path) -> dict[str, object]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.work", work, side, str(corpus), str(tokenizer)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{finished.stderr}")
    measured: dict[str, object] = json.loads(finished.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Measure everything and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="a text file (default: text Python ships with)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements (default: 5)")
    parser.add_argument("--work", choices=sorted({work for work, _ in WORK}), action="append")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")

    with tempfile.TemporaryDirectory() as name:
        corpus = arguments.corpus or default_corpus(Path(name))
        if not corpus.is_file():
            parser.error(f"--corpus {corpus} is not a file")
        tokenizer = Path(name, "tokenizer.json")
        from bpe import train_bpe

        train_bpe(corpus, VOCAB_SIZE, [END_OF_TEXT]).save(tokenizer)
        print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, ", end="")
        print(f"{os.cpu_count()} processors, Python {platform.python_version()}, ", end="")
        peers = ["numba", *sorted({side for _, side in WORK} - {"tokenbin"})]
        print(", ".join(f"{peer} {version(peer)}" for peer in peers))
        print(f"{corpus.stat().st_size / 1e6:.0f} MB, {arguments.rounds} rounds\n")
        print("| work | tokenbin MB/s | peer MB/s | times as fast (lowest to highest) | equal |")
        print("|---|---|---|---|---|", flush=True)
        for work in arguments.work or ["split", "encode", "train"]:
            (peer,) = [side for w, side in WORK if w == work and side != "tokenbin"]
            ours, theirs, ratios = [], [], []
            equal = True
            for _ in range(arguments.rounds):
                a = measure(work, "tokenbin", corpus, tokenizer)
                b = measure(work, peer, corpus, tokenizer)
                equal &= a["digest"] == b["digest"]
                ours.append(float(a["bytes"]) / float(a["seconds"]) / 1e6)  # type: ignore[arg-type]
                theirs.append(float(b["bytes"]) / float(b["seconds"]) / 1e6)  # type: ignore[arg-type]
                ratios.append(ours[-1] / theirs[-1])
            print(
                f"| {work} / {peer} | {statistics.median(ours):.0f} |"
                f" {statistics.median(theirs):.1f} |"
                f" **{statistics.median(ratios):.1f}** ({min(ratios):.1f} to {max(ratios):.1f}) |"
                f" {'yes' if equal else 'NO'} |",
                flush=True,
            )
            if not equal:
                sys.exit(f"{work}: the results differ, so the figures mean nothing")


if __name__ == "__main__":
    main()
