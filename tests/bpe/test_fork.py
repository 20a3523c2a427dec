"""A process that is forked while other threads hold locks works as before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import dataset

from bpe import Tokenizer, train_bpe, vocabulary
from bpe.encode import encoder as encoding
from bpe.encode import pretoken_cache
from bpe.train import trainer
from preprocess import Sampler
from preprocess.sampling import fields

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning"
)
TEXT = " ".join(map(str, range(300_000)))


def new_tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(train_bpe(["low lower newest"], 260).vocabulary)


# What a thread is in when the process is forked: the module and name of the function, which is
# called with a lock held.
PLACES: dict[str, tuple[Any, str]] = {
    "tables": (encoding, "EncoderTables"),
    "filling": (encoding, "_fill_tokens"),
    "enlarging": (pretoken_cache, "_enlarged"),
    "emptying": (pretoken_cache, "empty_cache"),
}


def fork_inside(
    place: tuple[Any, str], in_thread: Callable[[], object], in_child: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fork while a thread is in a function; what the child calls there must be true."""
    module, name = place
    function, parent = getattr(module, name), os.getpid()
    inside, go_on = threading.Event(), threading.Event()

    def waits(*arguments: Any, **more: Any) -> Any:
        if os.getpid() == parent and threading.current_thread() is thread:
            inside.set()
            assert go_on.wait(60)
        return function(*arguments, **more)

    monkeypatch.setattr(module, name, waits)
    thread = threading.Thread(target=in_thread)
    thread.start()
    assert inside.wait(60)
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            is_right = in_child()
        finally:
            os._exit(0 if is_right else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("place", PLACES)
def test_an_encoder_in_a_forked_process(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretoken_cache, "_SHORT_ROWS", 4096)
    tokenizer = new_tokenizer()
    text = TEXT[:900_000] if place == "enlarging" else TEXT  # more is for a large cache

    def is_right() -> bool:
        expected = new_tokenizer().encode_to_numpy(text)
        found = tokenizer.encode_to_numpy(text)
        return np.array_equal(found, expected) and tokenizer._encoder.tables().cache.make_room()

    if place != "tables":
        tokenizer.encode("a")
    fork_inside(PLACES[place], lambda: tokenizer.encode_to_numpy(text), is_right, monkeypatch)


# As `PLACES`, of what is computed when it is first used.
LAZY: dict[str, tuple[Any, str]] = {
    "tokens": (vocabulary.FlatTokens, "tokens"),
    "bytes_of_id": (vocabulary, "normalized"),
    "merges": (vocabulary, "merges_of_ranks"),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_vocabulary_in_a_forked_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    first, second = (vocabulary.Vocabulary.from_ranks(ranks, {"<a>": 257}) for _ in range(2))
    fork_inside(
        LAZY[name], lambda: getattr(first, name),
        lambda: bool(getattr(second, name)) and bool(getattr(first, name)), monkeypatch,
    )


def test_training_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> Tokenizer:
        return train_bpe([TEXT[:90_000]], 300, workers=3)

    expected = trained()
    fork_inside((trainer, "_learn"), trained, lambda: trained() == expected, monkeypatch)


def test_packed_windows_in_a_forked_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dataset(tmp_path, [5, 9, 3, 17, 8] * 40)

    def batch() -> Any:
        names = ("inputs", "position_ids")
        return Sampler(file, 2, 8, order="epoch", windows="packed", fields=names).batch(3)

    expected = batch()

    def is_right() -> bool:
        found = batch()
        return all(np.array_equal(found[name], expected[name]) for name in expected)

    fork_inside((fields, "number_positions"), batch, is_right, monkeypatch)
