"""Byte offsets to tokens, compared with decoding prefixes of the ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trained
from hypothesis import given
from hypothesis import strategies as st

from bpe import Tokenizer, train_bpe
from bpe.errors import EncodingError
from preprocess.documents.batch import DocumentBatch
from preprocess.documents.token_offsets import token_lengths, tokens_at
from preprocess.run.encoding import EncodedBatch, SpecialIds

texts = st.text(st.sampled_from("the low er\n日é🎉<|endoftext|>"), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(trained.documents(), 800, special_tokens=["<|endoftext|>"])


@given(documents=st.lists(texts, min_size=1, max_size=5), data=st.data())
def test_every_byte_is_in_the_token_that_spells_it(
    tokenizer: Tokenizer, documents: list[str], data: st.DataObject
) -> None:
    gap, begins = data.draw(st.binary(max_size=2)), data.draw(st.booleans())
    starts_mid_document, ends_mid_document = data.draw(st.booleans()), data.draw(st.booleans())
    end = tokenizer.special_tokens["<|endoftext|>"]
    special = SpecialIds(end, end if begins else None)
    pieces = [document.encode() for document in documents]
    starts = np.cumsum([0, *(len(piece) + len(gap) for piece in pieces)])[:-1]
    bounds = np.stack([starts, starts + [len(piece) for piece in pieces]], 1).ravel()
    buffer = np.frombuffer(gap.join(pieces), np.uint8)
    ids, offsets = tokenizer.new_encoder().encode(
        buffer,
        bounds.reshape(-1, 2),
        prefix_id=end if begins else -1,
        suffix_id=end,
        starts_mid_document=starts_mid_document,
        ends_mid_document=ends_mid_document,
    )
    batch = DocumentBatch(buffer, bounds, starts_mid_document, ends_mid_document)
    encoded = EncodedBatch(batch, ids, offsets, special, lambda: token_lengths(tokenizer))
    positions, expected = [], []
    for number, (document, start) in enumerate(zip(pieces, starts.tolist(), strict=True)):
        first = int(offsets[number]) + (begins and not (starts_mid_document and number == 0))
        stop = int(offsets[number + 1]) - (number < batch.n_ended)
        for token in range(first, stop):
            before, after = (tokenizer.decode_bytes(ids[first:n]) for n in (token, token + 1))
            positions += range(start + len(before), start + len(after))
            expected += [token] * (len(after) - len(before))
        assert tokenizer.decode_bytes(ids[first:stop]) == document
    assert encoded.tokens_at(np.array(positions)).tolist() == expected
    for outside in (-1, len(buffer), int(bounds[1]) if gap and len(pieces) > 1 else -1):
        with pytest.raises(ValueError, match=r"position -?[\d,]+ is not inside a document"):
            encoded.tokens_at(np.array([outside]))


def test_tokens_that_spell_something_else() -> None:
    with pytest.raises(EncodingError, match="the documents have 4 bytes, and their tokens 3"):
        tokens_at(np.array([0]), np.array([0, 4]), np.array([1, 3]))


def test_a_tokenizer_that_changes_text_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "nfc.json").write_text(json.dumps(content | {"normalizer": {"type": "NFC"}}))
    with pytest.raises(EncodingError, match=r"changes text before encoding it \(normal forms"):
        token_lengths(Tokenizer.from_file(tmp_path / "nfc.json"))
