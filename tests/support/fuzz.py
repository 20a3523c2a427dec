"""Damaged and hostile files, for as long as one likes: documented errors, soon, in bounded memory.

    python tests/support/fuzz.py --minutes 60 --seed 1

Whatever stands in a tokenizer.json, a manifest, a journal or a .docs, its readers give a result or
raise what they document, a `TokenmillError`; they take seconds of a processor at most, and no more
than `MEMORY` on top of what the process has. `verify` reports every damage, with the very blocks.
Hypothesis draws the files; what fails is made small and printed, and the exit code is 1.
The suite does a little of it: tests/faults/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import trained
import xxhash
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bpe import Tokenizer
from bpe.errors import TokenmillError
from bpe.formats.hf_write import TokenizerParts, tokenizer_json
from bpe.vocabulary import Vocabulary
from preprocess import build, open_tokens
from preprocess.check.decode import decode_range
from preprocess.check.inspect import facts, format_lines
from preprocess.check.verify import verify
from preprocess.dataset.columns import BLOCK_BYTES
from preprocess.dataset.manifest import Manifest
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import count_pass, journal
from preprocess.run.journal import read_entries
from preprocess.storage import JOURNAL_FILE

# What one file may take: of a processor's time, and of memory.
SECONDS = 20.0
MEMORY = 2 << 30
# Wall time after which a process that does nothing is ended, with a traceback of all threads.
_STUCK_SECONDS = 1200

END = "<|endoftext|>"
SAMPLE = f"Some words, it's naïve: 日本語 12345 \r\n\n  {END} \U0001f600."
SOUND_TOKENIZER: dict[str, Any] = json.loads(
    tokenizer_json(TokenizerParts(Vocabulary.from_merges(trained.merges()[:40], [END]), "llama3"))
)

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=6),
    st.sampled_from(["\ud800", "gpt2", "BPE", "Isolated", "(" * 200, "a" * 20_000, "(?i:", "[[["]),
    st.sampled_from([[], {}, [[]], [None], {"type": "Sequence"}, [1, 2], ["a", "b"], {"a": {}}]),
    st.sampled_from(
        [{"type": kind} for kind in ("Split", "ByteLevel", "Digits", "NFC", "TemplateProcessing")]
    ),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, those of a few entries of long lists."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key in [*list(value)[:12], *list(value)[-3:]]:
            found += places_in(value[key], (*path, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) // 2, len(value) - 1} & set(range(len(value)))):
            found += places_in(value[index], (*path, index))
    return found


def changed(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A document with another value at a place, without it, or with one more key."""
    result = copy.deepcopy(document)
    at = result
    for step in path[:-1]:
        at = at[step]
    if how == "remove":
        del at[path[-1]]
    elif how == "add" and isinstance(at, dict):
        at["new key"] = value
    else:
        at[path[-1]] = value
    return result


def odd_document(data: st.DataObject, sound: Any) -> Any:
    """A document with one to three odd values."""
    for _ in range(data.draw(st.integers(1, 3))):
        places = places_in(sound)
        if not places:
            return sound
        path = data.draw(st.sampled_from(places))
        near = _near(sound, path, data.draw(st.integers(-2, 2)))
        value = data.draw(st.one_of(odd_values, st.just(near)))
        how = data.draw(st.sampled_from(["set", "set", "remove", "add"]))
        sound = changed(sound, path, how, value)
    return sound


def _near(document: Any, path: tuple[Any, ...], n: int) -> Any:
    """A number close to the one that stands at a place; else what stands there, twice."""
    for step in path:
        document = document[step]
    if isinstance(document, int):
        return document + n
    return document + document if isinstance(document, str | list) else document


def odd_bytes(data: st.DataObject, sound: bytes) -> bytes:
    """The bytes of a file with one to four pieces taken out, put in or replaced."""
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        junk = data.draw(
            st.one_of(st.binary(max_size=9), st.sampled_from([b"[" * 3000, b"\0" * 99]))
        )
        content[place : place + data.draw(st.integers(0, 9))] = junk
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    return bytes(content)


def as_text(document: Any) -> bytes:
    """JSON, with whatever Unicode it has."""
    return json.dumps(document, indent=2).encode()


def manifest_text(document: Any) -> bytes:
    """The text of a manifest with a right digest of its own, whatever else is wrong with it."""
    text = json.dumps(document, indent=2)
    if not isinstance(document, dict) or len(document) < 2:
        return text.encode()
    text = text.removesuffix("\n}")
    digest = xxhash.xxh3_128_hexdigest(text.encode())
    return f'{text},\n  "manifest_digest": "{digest}"\n}}\n'.encode()


class Ground:
    """What is damaged: outputs and unfinished runs in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "text").mkdir()
        texts = [f"document {i} of many: {i * i}, naïve" for i in range(60)]
        (root / "text" / "a.txt").write_text(END.join(texts[:40]))
        (root / "text" / "b.txt").write_text(END.join(texts[40:]))
        self.options = {"train": root / "text", "val_fraction": 0.2, "vocab_size": 280,
                        "unit_size": 300, "workers": 1}  # fmt: skip
        self.small = root / "small"
        build(**self.options, out=self.small)
        self.sound = {path.name: path.read_bytes() for path in self.small.iterdir()}
        self.unfinished = self._unfinished()
        self._large: Path | None = None

    @property
    def large(self) -> Path:
        """Outputs whose .bin and .docs have several blocks."""
        if self._large is None:
            text = self.root / "numbers.txt"
            text.write_text(END.join(f"{number:x}" for number in range(1_100_000)))
            self._large = self.root / "large"
            build(train=text, val_fraction=0, out=self._large, vocab_size=258)
        return self._large

    def _unfinished(self) -> list[dict[str, bytes]]:
        """The work directory of a build at several moments: name -> content."""
        found = []
        out = self.root / "unfinished"
        before = journal.SECONDS_BETWEEN_COMMITS, count_pass._WORK_PER_SAVING
        journal.SECONDS_BETWEEN_COMMITS, count_pass._WORK_PER_SAVING = 0.0, 0
        try:
            for _ in count():
                ticks = count(0.0, 1.0)
                try:
                    progress = Progress(clock=ticks.__next__)
                    build(**self.options, out=out, max_minutes=0.15, progress=progress)
                    break
                except OutOfTimeError:
                    work = out / ".build.partial"
                    found.append({path.name: path.read_bytes() for path in work.iterdir()})
        finally:
            journal.SECONDS_BETWEEN_COMMITS, count_pass._WORK_PER_SAVING = before
        return found


def reads_or_refuses(read: Callable[[], object]) -> bool:
    """Whether something can be read; a refusal has a text."""
    try:
        read()
    except TokenmillError as error:
        assert str(error)
        return False
    return True


# --- what is damaged ---


def tokenizer(data: st.DataObject, ground: Ground) -> None:
    """A tokenizer.json is read, and encodes and decodes, or is refused."""
    path = ground.root / "odd.json"
    if data.draw(st.booleans()):
        path.write_bytes(as_text(odd_document(data, SOUND_TOKENIZER)))
    else:
        path.write_bytes(odd_bytes(data, as_text(SOUND_TOKENIZER)))

    def use() -> None:
        found = Tokenizer.from_file(path)
        found.decode(found.encode_ordinary(SAMPLE))
        found.save(ground.root / "saved.json")

    reads_or_refuses(use)


def manifest(data: st.DataObject, ground: Ground) -> None:
    """A manifest is read or refused, and reported by `verify`, also where its digest is right."""
    sound = json.loads(ground.sound["train.json"])
    kind = data.draw(st.sampled_from(["forged", "changed", "bytes"]))
    if kind == "forged":
        del sound["manifest_digest"]
        content = manifest_text(odd_document(data, sound))
    elif kind == "changed":
        content = as_text(odd_document(data, sound))
    else:
        content = odd_bytes(data, ground.sound["train.json"])
    path = ground.small / "train.json"
    reads_or_refuses(lambda: Manifest.from_json(content.decode("utf-8", "replace"), path))
    # A manifest that says something else, but has a right digest, is believed.
    _with_content(path, content, ground, is_damage=kind != "forged")


def docs(data: st.DataObject, ground: Ground) -> None:
    """Ends of documents that are none."""
    sound = np.frombuffer(ground.sound["train.docs"], np.uint64).copy()
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 5))):
            end = data.draw(
                st.one_of(st.integers(0, 2**64 - 1), st.integers(0, int(sound[-1]) + 2))
            )
            sound[data.draw(st.integers(0, len(sound) - 1))] = end
        content = sound.tobytes()
    else:
        content = odd_bytes(data, ground.sound["train.docs"])
    _with_content(ground.small / "train.docs", content, ground)


def _with_content(path: Path, content: bytes, ground: Ground, is_damage: bool = True) -> None:
    """Read everything with another content of one file."""
    path.write_bytes(content)
    try:
        findings = verify(ground.small, deep=True)
        if is_damage and content != ground.sound[path.name]:
            assert not all(each.sound for each in findings)
        bin_path = path.with_suffix(".bin")
        reads_or_refuses(lambda: open_tokens(bin_path).document_ends)
        reads_or_refuses(lambda: facts(ground.small))
        reads_or_refuses(lambda: format_lines(facts(bin_path)))
        reads_or_refuses(lambda: sum(map(len, decode_range(bin_path))))
    finally:
        path.write_bytes(ground.sound[path.name])


def journal_file(data: st.DataObject, ground: Ground) -> None:
    """A journal is read, or refused: whatever its bytes are, and whatever its entries say."""
    work = ground.unfinished[data.draw(st.integers(0, len(ground.unfinished) - 1))]
    content, is_forged = work[JOURNAL_FILE], data.draw(st.booleans())
    if is_forged:
        entries = [entry for entry, _, _ in read_entries(content, "journal")]
        number = data.draw(st.integers(0, len(entries) - 1))
        entries[number] = odd_document(data, entries[number])
        check, odd = "", b""
        for entry in entries:
            line, check = journal._line(entry, check)
            odd += line
    else:
        odd = odd_bytes(data, content)
    out = ground.root / "resumed"
    shutil.rmtree(out, ignore_errors=True)
    (out / ".build.partial").mkdir(parents=True)
    for name, each in (work | {JOURNAL_FILE: odd}).items():
        (out / ".build.partial" / name).write_bytes(each)
    reads_or_refuses(lambda: format_lines(facts(out)))
    # An entry that has the right check was written by us, and is believed.
    if not is_forged:
        if not reads_or_refuses(lambda: build(**ground.options, out=out)):
            build(**ground.options, out=out, overwrite=True)
        outputs = [*(set(ground.sound) - {"stats.json"})]
        assert all((out / name).read_bytes() == ground.sound[name] for name in outputs)


def damage(data: st.DataObject, ground: Ground) -> None:
    """A flipped bit, a truncation, an extension, two pieces swapped: `verify` names the blocks."""
    name = data.draw(st.sampled_from(["train.bin", "train.docs", "train.json", "tokenizer.json"]))
    how = data.draw(st.sampled_from(["flip", "cut", "extend", "swap"]))
    path = ground.large / name
    is_data = path.suffix in (".bin", ".docs")
    with _kept(path) as before:
        n_blocks = -(-len(before) // BLOCK_BYTES)
        place = data.draw(st.integers(0, len(before) - 1))
        blocks: set[int] = set()
        content = bytearray(before)
        if how == "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
            blocks = {place // BLOCK_BYTES}
        elif how == "cut":
            del content[place:]
            blocks = set(range(place // BLOCK_BYTES, n_blocks))
        elif how == "extend":
            content += data.draw(st.binary(min_size=1, max_size=BLOCK_BYTES // 1000))
        elif is_data:
            one = data.draw(st.integers(0, n_blocks - 2))
            other = data.draw(st.integers(one + 1, n_blocks - 1))
            pieces = [before[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(n_blocks)]
            pieces[one], pieces[other] = pieces[other], pieces[one]
            content[:] = b"".join(pieces)
            # The last may be shorter, and then what lies between them is moved.
            last_is_short = other == n_blocks - 1 and len(before) % BLOCK_BYTES
            blocks = set(range(one, other + 1)) if last_is_short else {one, other}
        else:
            size = data.draw(st.integers(1, 64))
            starts = data.draw(st.tuples(*[st.integers(0, len(before) // size - 1)] * 2))
            one, other = (slice(start * size, (start + 1) * size) for start in starts)
            content[one], content[other] = before[other], before[one]
        if bytes(content) == before:
            return
        path.write_bytes(content)
        findings = verify(ground.large)
        assert not all(finding.sound for finding in findings)
        if is_data:
            assert {n for each in findings for n in each.blocks if each.path == path} == blocks


@contextmanager
def _kept(path: Path) -> Iterator[bytes]:
    """The content of a file, which it has again afterwards."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


TARGETS: dict[str, Callable[[st.DataObject, Ground], None]] = {
    "tokenizer.json": tokenizer, "manifest": manifest, "journal": journal_file, ".docs": docs,
    "damage": damage,
}


def run(target: str, ground: Ground, examples: int, number: int) -> int:
    """Try a target with so many files, all drawn from one seed; returns how many there were.

    Raises:
        Exception: What one of them led to.
    """
    tried = 0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(data=st.data())
    def example(data: st.DataObject) -> None:
        nonlocal tried
        tried += 1
        began = time.process_time()
        TARGETS[target](data, ground)
        took = time.process_time() - began
        assert took < SECONDS, f"it took {took:.0f} seconds of a processor"

    example()
    return tried


def main(arguments: list[str] | None = None) -> int:
    """Fuzz for so many minutes and say what became of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args(arguments)
    until = time.monotonic() + 60 * wanted.minutes
    tried, failures = dict.fromkeys(TARGETS, 0), 0
    with tempfile.TemporaryDirectory() as directory:
        ground = Ground(Path(directory))
        for number in count(wanted.seed):
            if number == wanted.seed + 1:  # everything is loaded and compiled
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                most = pages * resource.getpagesize() + MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            for target in TARGETS:
                faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True, file=sys.__stderr__)
                try:
                    tried[target] += run(target, ground, 200, number)
                except Exception:  # noqa: BLE001 - it is shown, and the others go on
                    failures += 1
                    print(f"--- {target}, seed {number} ---\n{traceback.format_exc()}", flush=True)
            said = ", ".join(f"{n:,} of {target}" for target, n in tried.items())
            print(f"{said}: {failures} failures (seeds {wanted.seed} to {number})", flush=True)
            if time.monotonic() > until:
                break
    faulthandler.cancel_dump_traceback_later()
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
