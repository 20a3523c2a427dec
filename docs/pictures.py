"""Draw the pictures of docs/how-it-works.md: `python docs/pictures.py`.

What they show is computed: tokens are those of a tokenizer that is trained here, windows are those
of samplers of a dataset that is built here.
"""

from __future__ import annotations

import contextlib
import html
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bpe import Tokenizer, train_bpe
from preprocess import Sampler, TokenFile, build, open_tokens

DIRECTORY = Path(__file__).parent / "pictures"
WIDTH = 640
DOCUMENTS = ("tea", "a loaf", "two", "bread and jam")
COLORS = ("#c7dbf5", "#fbdcb5", "#cdeac8", "#f3cbd9")
SPECIAL, PADDING, INK, LINE = "#d9d2ea", "#f0f0f0", "#1b1f24", "#57606a"
END = "■"  # stands for the end-of-text token


class Picture:
    """An SVG of boxes, texts and arrows."""

    def __init__(self, title: str, height: int) -> None:
        self.height, self.parts = height, [f"<title>{html.escape(title)}</title>"]
        self.box(0, 0, WIDTH, height, "#ffffff", stroke="#d0d7de", radius=8)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = "",
        *, stroke: str = LINE, radius: float = 3, size: int = 15,
    ) -> None:
        """Draw a rectangle, with lines of text in its middle."""
        self.parts.append(
            f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{width - 1:g}" height="{height - 1:g}"'
            f' rx="{radius:g}" fill="{fill}" stroke="{stroke}"/>'
        )
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            middle = y + height / 2 + (i - (len(lines) - 1) / 2) * size * 1.25
            self.text(x + width / 2, middle + size * 0.35, line, size=size, anchor="middle")

    def text(
        self, x: float, y: float, text: str, *, size: int = 15, anchor: str = "start",
        color: str = INK,
    ) -> None:
        """Draw a text on a base line."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}"'
            f' xml:space="preserve">{html.escape(text, quote=False)}</text>'
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line through points, with a head at its end."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="{LINE}" stroke-width="1.5"'
            ' marker-end="url(#head)"/>'
        )

    def cells(
        self, x: float, y: float, texts: Sequence[str], fills: Sequence[str], width: float = 26
    ) -> None:
        """Draw a row of cells of one width."""
        for i, (text, fill) in enumerate(zip(texts, fills, strict=True)):
            self.box(x + i * width, y, width, 28, fill, text, radius=0, size=14)

    def svg(self) -> str:
        """The text of the file."""
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker>'
            "</defs>"
        )
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}"'
            f' width="{WIDTH}" height="{self.height}" font-family="ui-monospace, monospace">',
            head, *self.parts, "</svg>\n",
        ])  # fmt: skip


def pipeline() -> str:
    """From text to batches."""
    picture = Picture("From text to batches", 296)
    boxes = {
        "text": (16, 24, COLORS[1], "text\nJSON Lines\nParquet ..."),
        "documents": (176, 24, COLORS[0], "documents"),
        "counts": (336, 24, COLORS[0], "counts of\npre-tokens"),
        "tokenizer": (496, 24, COLORS[2], "tokenizer\n.json"),
        "ids": (336, 120, COLORS[0], "token ids"),
        "dataset": (496, 120, COLORS[2], ".bin .docs\n.json"),
        "batches": (496, 216, COLORS[3], "batches\nrows, files"),
    }
    for x, y, fill, text in boxes.values():
        picture.box(x, y, 128, 64, fill, text)
    for y in (56, 152):
        picture.arrow((464, y), (496, y))
    picture.arrow((144, 56), (176, 56))
    picture.arrow((304, 56), (336, 56))
    picture.arrow((240, 88), (240, 152), (336, 152))
    picture.arrow((528, 88), (528, 104), (400, 104), (400, 120))
    picture.arrow((560, 184), (560, 216))
    picture.text(16, 156, "1  count, train", color=LINE)
    picture.text(16, 180, "2  encode", color=LINE)
    picture.text(16, 204, "3  sample, export, look", color=LINE)
    return picture.svg()


def tokens() -> str:
    """From a text to ids: pre-tokens, bytes, merges."""
    words = "low lower lowest newer newest wider widest " * 9
    tokenizer = train_bpe([words + "new low slow show "], vocab_size=266)
    shown = "the slowest"
    picture = Picture("From a text to ids", 344)
    picture.text(16, 36, "text", color=LINE)
    picture.text(120, 36, f'"{shown}"')
    picture.text(16, 84, "pre-tokens", color=LINE)
    spans = [shown[:3], shown[3:]]  # as the pattern gpt2 splits
    assert [x for each in spans for x in tokenizer.encode(each)] == tokenizer.encode(shown)
    x = 120
    for span, fill in zip(spans, COLORS, strict=False):
        picture.box(x, 62, 30 * len(span), 32, fill, span.replace(" ", "␣"))
        x += 30 * len(span) + 12
    picture.text(16, 132, "merges of", color=LINE)
    picture.text(16, 154, "the second", color=LINE)
    y = 110
    for parts in merging(tokenizer, spans[1].encode()):
        x = 120
        for part in parts:
            width = 30 * len(part)
            picture.box(x, y, width, 30, COLORS[1], part.decode().replace(" ", "␣"))
            x += width + 6
        y += 36
    picture.text(16, y + 26, "ids", color=LINE)
    picture.text(120, y + 26, " ".join(map(str, tokenizer.encode(shown))))
    assert y + 46 <= 344
    return picture.svg()


def merging(tokenizer: Tokenizer, text: bytes) -> list[list[bytes]]:
    """The parts of a pre-token before and after each merge, in the order of ranks."""
    parts = [text[i : i + 1] for i in range(len(text))]
    steps = [parts]
    for left, right in tokenizer.merges:
        merged, i = list[bytes](), 0
        while i < len(parts):
            is_pair = parts[i : i + 2] == [left, right]
            merged.append(left + right if is_pair else parts[i])
            i += 2 if is_pair else 1
        if merged != parts:
            steps.append(parts := merged)
    assert [tokenizer.vocab.get(i) for i in tokenizer.encode(text.decode())] == parts
    return steps


def files() -> str:
    """The files of a dataset."""
    picture = Picture("The files of a dataset", 244)
    with dataset() as file:
        texts, fills = content(file, np.arange(len(file)))
        ends, dtype = file.document_ends.tolist(), file.manifest.dtype
    width = 608 / len(texts)
    picture.text(16, 32, "train.bin: token ids, here one for each letter")
    picture.cells(16, 44, texts, fills, width)
    for end in ends:
        picture.arrow((16 + width * end, 96), (16 + width * end, 74))
        picture.text(16 + width * end, 112, str(end), anchor="end")
    picture.text(16, 136, "train.docs: where documents end")
    picture.text(16, 176, "train.json: the manifest")
    facts = f"{dtype}, {len(texts)} tokens, {len(ends)} documents, sources, digests"
    picture.box(16, 188, 608, 40, PADDING, facts)
    return picture.svg()


def windows() -> str:
    """Windows of one dataset, of each kind."""
    kinds: dict[str, dict[str, Any]] = {
        'windows="stride"': {"windows": "stride"},
        'windows="documents"': {"windows": "documents"},
        'windows="packed", strategy="best_fit"': {"windows": "packed", "strategy": "best_fit"},
    }
    rows = []
    with dataset() as file:
        for title, options in kinds.items():
            sampler = Sampler(
                file, 1, 8, order="sequential", drop_last=False, **options,
                fields=("inputs", "segment_ids"),
            )  # fmt: skip
            batches = [sampler.batch(i) for i in range(len(sampler))]
            rows.append((title, [colored(file, x["inputs"][0], x["segment_ids"][0] == 0)
                                 for x in batches]))  # fmt: skip
    lines = [-(-len(found) // 2) for _, found in rows]  # of two windows
    picture = Picture("Windows of each kind", 24 + sum(48 + 36 * n for n in lines))
    y = 40
    for (title, found), n in zip(rows, lines, strict=True):
        picture.text(16, y, title)
        for i, (texts, fills) in enumerate(found):
            picture.cells(16 + i % 2 * 312, y + 12 + 36 * (i // 2), texts, fills, 36)
        y += 48 + 36 * n
    return picture.svg()


def resuming() -> str:
    """A run that is killed and resumed."""
    picture = Picture("A run that is killed, and resumed by the same command", 236)
    picture.text(16, 36, "first run")
    for i in range(4):
        picture.box(120 + 88 * i, 16, 88, 32, COLORS[0], "units", radius=0)
        picture.arrow((208 + 88 * i, 48), (208 + 88 * i, 76))
    picture.box(472, 16, 48, 32, COLORS[3], "✗", radius=0)
    picture.text(536, 38, "killed", color=LINE)
    picture.text(16, 96, "journal")
    for i in range(4):
        picture.box(176 + 88 * i, 76, 64, 32, COLORS[2], f"{i + 1} s")
    picture.arrow((472, 108), (472, 140))
    picture.text(16, 160, "same command")
    picture.box(472, 140, 88, 32, COLORS[0], "units", radius=0)
    picture.arrow((560, 156), (584, 156))
    picture.text(588, 161, "...")
    picture.text(16, 208, "at the end")
    picture.box(176, 188, 128, 32, PADDING, "work files")
    picture.arrow((304, 204), (368, 204))
    picture.box(368, 188, 256, 32, COLORS[2], "final names, manifest last")
    return picture.svg()


@contextlib.contextmanager
def dataset() -> Iterator[TokenFile]:
    """A dataset whose tokens are letters, in a directory that is removed."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "text").write_text("<|endoftext|>".join(DOCUMENTS), "utf-8")
        build(train=root / "text", val_fraction=0, vocab_size=257, out=root, progress=False)
        yield open_tokens(root / "train.bin")


def content(file: TokenFile, places: np.ndarray) -> tuple[list[str], list[str]]:
    """The letters and the colors of tokens of the dataset."""
    documents = np.searchsorted(file.document_ends, places, "right")
    end = file.manifest.end_of_text_id
    ids = file[:][places]
    return (
        [END if i == end else chr(i).replace(" ", "␣") for i in ids.tolist()],
        [SPECIAL if i == end else COLORS[d] for i, d in zip(ids, documents, strict=True)],
    )


def colored(file: TokenFile, ids: np.ndarray, padded: np.ndarray) -> tuple[list[str], list[str]]:
    """The letters and colors of a window: of each run of tokens, where it is in the dataset."""
    texts, fills, stream = [], [], file[:].tolist()
    starts = [0, *(np.flatnonzero(ids[:-1] == file.manifest.end_of_text_id) + 1).tolist(), len(ids)]
    for start, stop in itertools.pairwise(starts):
        run = ids[start:stop][~padded[start:stop]].tolist()
        place = next(i for i in range(len(stream)) if stream[i : i + len(run)] == run)
        found = content(file, np.arange(place, place + len(run)))
        n_padded = stop - start - len(run)
        texts += [*found[0], *[""] * n_padded]
        fills += [*found[1], *[PADDING] * n_padded]
    return texts, fills


PICTURES: dict[str, Callable[[], str]] = {
    "pipeline": pipeline, "tokens": tokens, "files": files, "windows": windows,
    "resuming": resuming,
}  # fmt: skip

if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (DIRECTORY / f"{name}.svg").write_text(draw(), "utf-8")
