"""Builds that are killed again and again end in the bytes of one that was left in peace.

    python tests/support/torture.py --builds 200 --seed 1

Every build is killed with SIGKILL at random moments, either at a call that changes the disk (when a
write was half done) or after a random time, and started again with the same command; the workers
and the size of units change between the runs, because they may. Says what it did, exits with 1 if
bytes differ. It forks: a run then costs as little as its work.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import faults
import format_files

from bpe.errors import TokenmillError
from preprocess import pipeline
from preprocess.run import count_pass, journal, shuffle
from preprocess.run import memory_limit as memory

WORDS = ["the", "low", "lower", "newest", "it's", "naïve", "日本語", "42", "—", "<|pad|>", "\n"]
WORDS.append("  ")
END = "<|endoftext|>"


def documents(chosen: random.Random, n: int) -> str:
    """Documents of words, some empty, some long."""
    lengths = (chosen.choice([0, 1, 30, 300]) for _ in range(n))
    return END.join(
        " ".join(chosen.choice(WORDS) + str(chosen.randrange(50)) for _ in range(length))
        for length in lengths
    )


def write_corpus(root: Path) -> None:
    """several/: five files, one of them empty; one.txt: a single document; val.txt."""
    chosen = random.Random(0)
    (root / "several").mkdir()
    for number in range(5):
        text = documents(chosen, 60) if number != 2 else ""
        (root / "several" / f"{number}.txt").write_text(text)
    (root / "one.txt").write_text(" ".join(chosen.choice(WORDS) for _ in range(30_000)))
    (root / "val.txt").write_text(documents(chosen, 20))
    given = documents(chosen, 200).split(format_files.END)
    for suffix in ("jsonl", "txt.zst", "json.gz"):
        format_files.write(root / f"x.{suffix}", given)


def kinds(root: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Name -> the function and its options, but for where outputs go."""
    several, one, val = root / "several", root / "one.txt", root / "val.txt"
    tokenizer = root / "tokenizer.json"
    return {
        "several files": (pipeline.build, {"train": several, "val": val, "vocab_size": 300}),
        "one large document": (pipeline.build, {"train": [one, several], "vocab_size": 290,
                                                "val_fraction": 0.3}),
        "skipping": (pipeline.build, {"train": [several, one], "val": val, "vocab_size": 280,
                                      "on_invalid_utf8": "skip", "separator": "\n"}),
        "encode": (pipeline.encode, {"paths": [several, one], "tokenizer": tokenizer}),
        "shards": (pipeline.build, {"train": [several, one], "val": val, "tokenizer": tokenizer,
                                    "shard_tokens": 5000}),
        "split documents": (pipeline.build, {"train": [one, several], "tokenizer": tokenizer,
                                             "shard_tokens": 9000, "split_documents": True}),
        "train": (pipeline.train, {"paths": [several, one], "vocab_size": 300}),
        "json lines": (pipeline.build, {"train": root / "x.jsonl", "val": val, "vocab_size": 290,
                                        "strip": True, "min_length": 9}),
        "selected": (pipeline.build, {"train": [several, root / "x.jsonl", several], "val": val,
                                      "vocab_size": 290, "deduplicate": True,
                                      "shuffle_documents": 7, "start_character": 100}),
        "compressed": (pipeline.build, {"train": [root / "x.txt.zst", root / "x.json.gz"],
                                        "tokenizer": tokenizer, "val_fraction": 0.2}),
    }  # fmt: skip


def where(kind: str, directory: Path) -> dict[str, Path]:
    names = {"encode": "x.bin", "train": "tokenizer.json"}
    return {"out": directory / names[kind] if kind in names else directory}


def contents(directory: Path, *others: str) -> dict[str, bytes]:
    """All files but the statistics, of which times are a part, and others that end with a name."""
    told = "stats.json", *others
    found = [x for x in directory.rglob("*") if x.is_file() and not x.name.endswith(told)]
    return {x.relative_to(directory).as_posix(): x.read_bytes() for x in found}


def remove(directory: Path) -> None:
    shutil.rmtree(directory)


kept_in_memory = memory.bytes_for_tables


def kept_in_files(limit: int | None, workers: int, unit_size: int) -> float:
    """Every few units counts go to a file."""
    return 600_000


def in_a_child(run: Any, kill_at: int, kill_after: float | None) -> int:
    """Run a function in a forked process and return how that ended: 0, 1 or -9."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faults.install(faults.System(kill_at, faults.die))
            run()
            code = 0
        except (TokenmillError, OSError):
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def tortured(
    chosen: random.Random, kind: str, root: Path, directory: Path, length: tuple[int, float]
) -> tuple[int, str]:
    """Build with kills; returns how many there were and what went wrong, if anything did.

    Args:
        chosen: Decides everything.
        kind: What is built.
        root: The corpus.
        directory: Where it is built.
        length: Calls that change the disk, and seconds, of a build that is left in peace.
    """
    function, options = kinds(root)[kind]
    most_kills = chosen.choice([1, 1, 2, 5])
    kills = 0
    while True:
        journal.SECONDS_BETWEEN_COMMITS = chosen.choice([0.0, 0.0, 0.01, 1.0])
        journal._LONG_BYTES = chosen.choice([1 << 20, 3000])
        shuffle._PIECE_TOKENS = chosen.choice([8 << 20, 9000])
        count_pass._WORK_PER_SAVING = chosen.choice([0, 40])
        count_pass.bytes_for_tables = chosen.choice([kept_in_memory, kept_in_files])
        workers, unit_size = chosen.choice([1, 2]), chosen.choice([500, 4000, 30_000])
        by_call = chosen.random() < 0.7
        at = chosen.randrange(1, length[0] + 2) if kills < most_kills and by_call else 0
        after = chosen.uniform(0, length[1]) if kills < most_kills and not by_call else None

        run = partial(
            function, **options, **where(kind, directory), workers=workers, unit_size=unit_size,
        )
        code = in_a_child(run, at, after)
        if code == 0:
            return kills, ""
        if code != -signal.SIGKILL:
            return kills, f"it ended with {code} after {kills} kills"
        kills += 1


def main(arguments: list[str] | None = None) -> int:
    """Torture builds and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--builds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    chosen = random.Random(given.seed)
    failures = kills = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_corpus(root)
        pipeline.train(paths=root / "several", out=root / "tokenizer.json", vocab_size=280)
        expected, lengths = {}, {}
        for kind, (function, options) in kinds(root).items():
            directory = root / f"peace {kind}"
            directory.mkdir()
            journal.SECONDS_BETWEEN_COMMITS = 0.0
            system = faults.System()
            faults.install(system)
            began = time.monotonic()
            function(**options, **where(kind, directory), workers=1, unit_size=4000)
            lengths[kind] = (len(system.calls), time.monotonic() - began)
            expected[kind] = contents(directory)
        for number in range(given.builds):
            kind = chosen.choice(list(expected))
            directory = root / str(number)
            directory.mkdir()
            n_kills, wrong = tortured(chosen, kind, root, directory, lengths[kind])
            kills += n_kills
            if not wrong and contents(directory) != expected[kind]:
                wrong = f"after {n_kills} kills other bytes: {sorted(contents(directory))}"
            if wrong:
                failures += 1
                print(f"build {number} ({kind}): {wrong}")
    print(f"{given.builds} builds, {kills} kills, {failures} failures (seed {given.seed})")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
