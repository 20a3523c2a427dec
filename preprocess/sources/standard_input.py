"""Standard input: the path `-`, read into a file before it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from bpe.errors import CorpusError
from bpe.files.temporary import temporary_directory
from preprocess.documents.batch import ReadOptions
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.registry import open_source
from preprocess.sources.text_file import Bytes, InputFile, open_file

FILE_NAME = "standard-input"
_PIECE_BYTES = 1 << 20


class StandardInput(Source):
    """Stands for standard input among sources until `replace_standard_input`."""

    name, path, n_bytes, stamp, location = FILE_NAME, "-", 0, "", ""
    what = "standard input"
    has_fields = is_sized = False

    def __init__(self, reading: ReadOptions) -> None:
        self.reading = reading

    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        self._refuse()

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        self._refuse()

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes."""
        stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise CorpusError("-: there is no standard input; give files")
        while piece := stream.read(_PIECE_BYTES):
            yield piece

    def kept_in(self, file: InputFile) -> Source:
        """Return the source of a file that has the bytes."""
        found = open_source(file, self.name, self.reading)
        assert isinstance(found, Source)
        return found

    def _refuse(self) -> NoReturn:
        raise CorpusError(
            f"{self.path}: {self.what} cannot be read here; save the text to a file"
        )


def has_standard_input(sources: Iterable[Source]) -> bool:
    """Return True if standard input is among sources."""
    return any(isinstance(source, StandardInput) for source in sources)


def standard_input_of(sources: Iterable[Source]) -> StandardInput:
    """Return the standard input among sources, which is there."""
    return next(source for source in sources if isinstance(source, StandardInput))


def replace_standard_input(sources: MutableSequence[Source], path: Path) -> None:
    """Replace standard input among sources by the file that has its bytes."""
    for number, source in enumerate(sources):
        if isinstance(source, StandardInput):
            try:
                found = source.kept_in(open_file(path))
            except CorpusError as error:  # the file is removed, so it is to be saved
                text = str(error).removeprefix(f"{path}: ").replace(str(path), FILE_NAME)
                raise type(error)(
                    f"{source.path}: {text} (of {source.what}, saved as {FILE_NAME})"
                ) from error
            sources[number] = found


@contextmanager
def standard_input_in_a_file(sources: MutableSequence[Source]) -> Iterator[None]:
    """Replace standard input among sources by a temporary file inside the `with`."""
    if not has_standard_input(sources):
        yield
        return
    with temporary_directory() as directory:
        path = directory / FILE_NAME
        with open(path, "wb") as file:
            file.writelines(standard_input_of(sources).pieces())
        replace_standard_input(sources, path)
        yield

