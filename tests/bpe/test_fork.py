"""A process that is forked while other threads hold locks works as before."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpe import Tokenizer, train_bpe
from bpe.encode import encoder as encoding
from bpe.encode import pretoken_cache

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked on this system"),
    pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning"),
]
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


@pytest.mark.parametrize("place", PLACES)
def test_an_encoder_in_a_forked_process(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretoken_cache, "_SHORT_ROWS", 4096)
    tokenizer, parent = new_tokenizer(), os.getpid()
    text = TEXT[:900_000] if place == "enlarging" else TEXT  # more is for a large cache
    module, name = PLACES[place]
    function: Callable[..., Any] = getattr(module, name)
    inside, go_on = threading.Event(), threading.Event()

    def waits(*arguments: Any) -> Any:
        if os.getpid() == parent and threading.current_thread() is thread:
            inside.set()
            assert go_on.wait(60)
        return function(*arguments)

    if place != "tables":
        tokenizer.encode("a")
    monkeypatch.setattr(module, name, waits)
    thread = threading.Thread(target=lambda: tokenizer.encode_to_numpy(text))
    thread.start()
    assert inside.wait(60)
    pid = os.fork()
    if not pid:
        expected = new_tokenizer().encode_to_numpy(text)
        found = tokenizer.encode_to_numpy(text)
        has_replaced = tokenizer._encoder.tables().cache.make_room()
        os._exit(0 if np.array_equal(found, expected) and has_replaced else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
