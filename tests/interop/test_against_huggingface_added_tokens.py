"""Tokenizers with added tokens, normalizers and other steps, against Hugging Face's own engine.

Each is made by the library, read by us, and written again.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nasty import WHITE_SPACES, nasty_text
from published import BASE, NATIVE, SIZE, N, both, check_ids, file, token

from bpe import Tokenizer

pytestmark = pytest.mark.usefixtures("few_ranges")

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")


def survives(text: str, directory: Path) -> None:
    """Make sure that what we write says to Hugging Face what the original says."""
    ours, theirs = both(text, directory)
    ours.save(directory / "again.json")
    again = tokenizers.Tokenizer.from_file(str(directory / "again.json"))
    assert json.loads(again.to_str()) == json.loads(theirs.to_str())
    assert Tokenizer.from_file(directory / "again.json") == ours


_contents = st.lists(
    st.one_of(
        st.sampled_from(["<|end|>", "<|", "end", "  ", "    ", "\n\n", " a", "the", "é", "e\u0301",
                         "x ", "ﬁ", "<|end|><|", "0", "'s", "\u0301", "a", "th", "e", "日本"]),
        st.text("<|e> a", min_size=1, max_size=4),
    ),
    unique_by=lambda content: unicodedata.normalize("NFKC", content),
    max_size=6,
)  # fmt: skip
_flags = st.fixed_dictionaries(
    {name: st.booleans() for name in ("special", "lstrip", "rstrip", "single_word", "normalized")}
)


@st.composite
def added_tokens(draw: st.DrawFn) -> list[dict[str, Any]]:
    listed, next_id = [], N
    for content in draw(_contents):
        number = SIZE.get(content, next_id)
        next_id = max(next_id, number + 1)
        listed.append(token(content, number, **draw(_flags)))
    if any(entry["content"][0].isspace() for entry in listed):
        # Refused, for their own engine goes wrong.
        for entry in listed:
            entry["rstrip"] = False
    return listed


_normalizers = st.sampled_from(
    [None, None, {"type": "NFC"}, {"type": "NFKC"}, {"type": "NFD"},
     {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]},
     {"type": "Sequence", "normalizers": []}]
)  # fmt: skip


@settings(max_examples=120, phases=[Phase.generate])
@given(data=st.data())
def test_any_added_tokens_normalizers_and_prefix(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    added = data.draw(added_tokens())
    text = file(
        added,
        normalizer=data.draw(_normalizers),
        pre_tokenizer=BASE["pre_tokenizer"] | {"add_prefix_space": data.draw(st.booleans())},
        model={"ignore_merges": data.draw(st.booleans())},
    )
    directory = tmp_path_factory.mktemp("any")
    ours, theirs = both(text, directory)
    contents = [entry["content"] for entry in added] or ["x"]
    piece = st.one_of(
        st.sampled_from(contents),
        st.sampled_from([" ", "  ", "\n", "the", "a", "é", "_", *WHITE_SPACES[:9]]),
        nasty_text(2),
    )
    texts = data.draw(st.lists(st.lists(piece, max_size=8).map("".join), max_size=5))
    check_ids(ours, theirs, texts)
    survives(text, directory)


def test_long_text_is_cut_only_where_it_may_be(tmp_path: Path) -> None:
    text = "The quick  brown\n    fox e\u0301é <tool> jumps over 12345 dogs. " * 20
    for family in NATIVE.values():
        ours, theirs = both(family, tmp_path)
        theirs.encode_special_tokens = True
        data = np.frombuffer(text.encode(), np.uint8)
        place = 0
        while (place := ours.safe_cut(data, place + 1, len(data))) < len(data):
            before, behind = bytes(data[:place]).decode(), bytes(data[place:]).decode()
            if not any(t in text[max(0, len(before) - 30) :] for t in ours.atomic_texts):
                ids = theirs.encode(before, add_special_tokens=False).ids
                ids += theirs.encode(behind, add_special_tokens=False).ids
                assert ids == theirs.encode(text, add_special_tokens=False).ids


def test_a_gap_before_a_token_of_the_model_moves_no_other(tmp_path: Path) -> None:
    model = {"vocab": {**SIZE, "</s>": N + 10}}
    added = [token("</s>", N + 10), token("<new>", N + 1), token("<other>", N + 2, special=False)]
    text = file(added, model=model)
    ours, theirs = both(text, tmp_path)
    check_ids(ours, theirs, ["a<new>b</s>c<other>", "<other><new></s>"])
    survives(text, tmp_path)


def test_a_token_that_text_spells_otherwise_is_not_cut(tmp_path: Path) -> None:
    # "e" and an accent are the token when they are normalized, so a cut inside it goes unseen.
    late = [token("qé a b", N, normalized=True)]
    data = np.frombuffer("qe\u0301 a b".encode() * 9, np.uint8)
    for form, cuts in (("NFC", False), ("NFD", False), (None, True)):
        ours, _ = both(file(late, normalizer=form and {"type": form}), tmp_path)
        assert (ours.safe_cut(data, 1, len(data)) < len(data)) == cuts
    plain, _ = both(file([token("   ", N, normalized=True)], normalizer={"type": "NFC"}), tmp_path)
    assert plain.safe_cut(data, 1, len(data)) < len(data)
