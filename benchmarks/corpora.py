"""Text to measure with: the default, any text at any size, and the worst cases.

Law: the same arguments give the same bytes.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from benchmarks.job import END_OF_TEXT

MB = 10**6
WORST_BYTES = 10 * MB
LONG_LINE_BYTES = 100 * MB


def default_corpus(directory: Path) -> Path:
    """Write the text that `make preprocess` takes by default to one file."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    texts = [text for _, text in sorted(topics.items())]
    texts += [path.read_text(encoding="utf-8") for path in sorted(library.glob("*.py"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted(library.glob("[a-s]*/*.py"))]
    path = directory / "default.txt"
    path.write_bytes(END_OF_TEXT.join(texts).encode())
    return path


def sized(corpus: Path, n_bytes: int | None, directory: Path) -> Path:
    """A corpus of about so many bytes: whole documents from the beginning, repeated as needed.

    Args:
        corpus: A text file.
        n_bytes: None: the corpus as it is.
        directory: Where the file is made, if it is not there from an earlier call.
    """
    size = corpus.stat().st_size
    if n_bytes is None or n_bytes == size:
        return corpus
    path = directory / f"{corpus.stem}-{n_bytes}.txt"
    if path.exists():
        return path
    separator = END_OF_TEXT.encode()
    with open(corpus, "rb") as file:
        text = file.read(n_bytes)
    if len(text) < size:
        # At the end of a document; else of a line; else of a character.
        cut = max(text.rfind(separator), 0) or text.rfind(b"\n") + 1
        text = text[:cut] if cut else text.decode("utf-8", "ignore").encode()
    with open(path, "wb") as file:
        while file.tell() + len(text) <= n_bytes:
            file.write(separator * bool(file.tell()) + text)
    return path


def worst_cases(corpus: Path, directory: Path) -> dict[str, Path]:
    """Texts that have brought tokenizers down, each as one document.

    Args:
        corpus: Real text, for the line without an end.
        directory: Where the files are made.
    """
    rng = np.random.default_rng(0)
    n = WORST_BYTES
    joined = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}".encode()
    letters = rng.integers(ord("a"), ord("z") + 1, n, dtype=np.uint8).tobytes()
    digits = rng.integers(ord("0"), ord("9") + 1, n, dtype=np.uint8).tobytes()
    random = rng.integers(256, size=n, dtype=np.uint8).tobytes().decode("utf-8", "replace")
    with open(corpus, "rb") as file:
        line = file.read(LONG_LINE_BYTES).replace(END_OF_TEXT.encode(), b" ")
    line = line.replace(b"\n", b" ").replace(b"\r", b" ").decode("utf-8", "ignore").encode()
    texts = {
        "one letter repeated": b"a" * n,
        "spaces": b" " * n,
        "random bytes made UTF-8": random.encode()[:n].decode("utf-8", "ignore").encode(),
        "random letters, no space": letters,
        "digits": digits,
        "emoji with joiners": joined * (n // len(joined)),
        "line of 100 MB": line * (LONG_LINE_BYTES // len(line)),
    }
    paths: dict[str, Path] = {}
    for name, text in texts.items():
        paths[name] = directory / f"worst-{len(paths)}.txt"
        paths[name].write_bytes(text)
    return paths
