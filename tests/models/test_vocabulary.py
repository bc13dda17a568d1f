"""Vocabularies cut texts as the libraries do that made them: SentencePiece, and tokenizers for byte pairs."""

import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volta import models
from volta.core.errors import ArgumentError, FormatError
from volta.models.vocabulary import from_metadata

RECORD = json.loads((Path(__file__).parent / "vocabularies.json").read_text())


def made(kind, **changed):
    values = {**RECORD[kind]["metadata"], "add_bos_token": False, **changed}
    return from_metadata({f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None})


VOCABULARIES = {kind: made(kind) for kind in RECORD}


@pytest.mark.parametrize("kind", RECORD)
def test_texts_are_cut_as_on_record(kind):
    v = VOCABULARIES[kind]
    assert len(RECORD[kind]["texts"]) > 90
    for text, tokens, again in RECORD[kind]["texts"]:
        assert v.encode(text) == tokens, text
        assert v.decode(tokens) == again, text


@given(st.text(max_size=40), st.sampled_from(sorted(RECORD)))
def test_any_text_comes_back(text, kind):
    v = VOCABULARIES[kind]
    text = text.replace("\u2581", "_")  # which SentencePiece takes for a space
    assert v.decode(v.encode(text)) == text


@given(st.lists(st.integers(-5, 500)), st.sampled_from(sorted(RECORD)))
def test_any_tokens_have_a_text(tokens, kind):
    assert isinstance(VOCABULARIES[kind].decode(tokens), str)


def test_texts_begin_as_models_want_it():
    v = made("llama", add_bos_token=None)
    assert (v.begin, v.end) == (1, 2)
    assert v.encode("ab") == [1, *VOCABULARIES["llama"].encode("ab")] and v.decode(v.encode("ab")) == "ab"
    assert made("gpt-2", add_bos_token=None).encode("ab") == VOCABULARIES["gpt-2"].encode("ab")
    assert made("llama-bpe", add_bos_token=None, bos_token_id=7).encode("ab")[0] == 7


def test_tokens_that_steer_are_not_made_of_text():
    for kind, text in (("llama", "<s>"), ("gpt-2", "<|endoftext|>")):
        assert len(VOCABULARIES[kind].encode(text)) > 2


def test_of_files(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m", "llama")
    own = RECORD["llama"]["metadata"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(own["tokens"])
    writer.add_token_scores(own["scores"])
    writer.add_token_types(own["token_type"])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert models.vocabulary(tmp_path / "m").encode("Hello world") == VOCABULARIES["llama"].encode("Hello world")


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"model": "bert"}, "no vocabulary of the kind llama or gpt2"),
        ({"tokens": None}, "no vocabulary of the kind"),
        ({"tokens": [1, 2]}, "no vocabulary of the kind"),
        ({"token_type": [1]}, "420 tokens have 1 kinds"),
    ],
)
def test_vocabularies_that_are_not_there(changed, why):
    with pytest.raises(ArgumentError, match=why):
        made("gpt-2", **changed)


def test_other_rules_are_refused_and_files_named(tmp_path):
    with pytest.raises(ArgumentError, match="cut by the rules 'bloom', and Volta has gpt-2, llama-bpe, qwen2"):
        made("gpt-2", pre="bloom").encode("x")
    gguf_of_nothing = gguf.GGUFWriter(tmp_path / "m", "llama")
    gguf_of_nothing.write_header_to_file()
    gguf_of_nothing.write_kv_data_to_file()
    gguf_of_nothing.close()
    with pytest.raises(FormatError, match="m: no vocabulary"):
        models.vocabulary(tmp_path / "m")
