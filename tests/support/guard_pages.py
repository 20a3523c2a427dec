"""Runs every kernel on text between two unreadable pages; a wrong read ends the process.

The ids, too, are written where an unreadable page follows.

Bounds checks do not look inside the machine words that read 8 or 64 bytes at once; this does.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from bpe.encode.encoder import Encoder, EncoderTables
from bpe.split.patterns import PATTERNS
from bpe.split.pretokenizer import Pretokenizer
from bpe.text.search import find_all
from bpe.text.utf8 import is_utf8
from bpe.train.counts import PretokenCounts
from bpe.vocabulary import Vocabulary

PAGE = mmap.PAGESIZE
TEXTS = [
    "The quick brown fox's 12 don't\u3000\u00a0'll été 日本語 😀  \n" * 5,
    "a" * 220,
    " " * 220,
    "\u00a0" * 110,
    "日" * 80,
    "'s'll" * 50,
    "привет" * 20,
    # What is no token, more than eight of it.
    "ab c!d " * 40,
    "😀😁" * 30,
    "!\n/\u0301日AB\n  '\u017f12345٣" * 12,
    "<|endoftext|>" * 20,
]


def main() -> None:
    """Try every length at both ends of a readable page."""
    memory = mmap.mmap(-1, 5 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (address, address + 2 * PAGE, address + 4 * PAGE):
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    page = np.frombuffer(memory, np.uint8)[PAGE : 2 * PAGE]
    before_guard = np.frombuffer(memory, np.uint8)[: 4 * PAGE]
    pretokenizers = [Pretokenizer(pattern) for pattern in PATTERNS]
    tables = EncoderTables(Vocabulary.from_merges([(b"a", b"a")]), "gpt2")
    tables.fill_tokens()
    encoders = [Encoder(tables, None, np.dtype(dtype)) for dtype in (np.uint16, np.uint32)]
    counts = PretokenCounts(special_tokens=["<|endoftext|>"])
    for text in TEXTS:
        whole = text.encode()
        for length in range(201):
            # Also cut inside a character: what is not UTF-8 must be as harmless.
            for place in (slice(0, length), slice(PAGE - length, PAGE)):
                page[place] = np.frombuffer(whole[:length], np.uint8)
                buffer = page[place]
                offsets = np.array([0, length])
                for pretokenizer in pretokenizers:
                    pretokenizer.boundaries(buffer, offsets)
                    for position in range(0, length, 50):
                        pretokenizer.safe_cut(buffer, position, length)
                apart = np.array([0, length // 3, length // 2, length])
                for encoder in encoders:
                    # As many ids as there can be, and what copies write behind them.
                    around = {"prefix_id": 1, "suffix_id": 2, "memory": lambda n: before_guard[-n:]}
                    encoder.encode(buffer, offsets.reshape(1, 2), **around)
                    encoder.encode(buffer, apart.reshape(2, 2), **around)
                counts.add(buffer, offsets)
                find_all(buffer, b"<|endoftext|>")
                is_utf8(buffer)
    print("every length from 0 to 200")


if __name__ == "__main__":
    main()
