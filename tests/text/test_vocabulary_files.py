"""Vocabulary files: ids stay, and files say how text is normalized."""

import json
import logging
import re

import pytest

from realm_jax.storage.json_files import write_json
from realm_jax.text.normalization import Normalization
from realm_jax.text.vocabulary import SPECIAL_PIECES, VocabularyError
from realm_jax.text.vocabulary_files import read_vocabulary, write_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary

PIECES = [*SPECIAL_PIECES, "the", "café", "##s"]


@pytest.fixture
def vocab(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(PIECES), encoding="utf-8")
  return path


@pytest.mark.parametrize(
  ("line", "piece"), [(6, ""), (7, "the")], ids=["blank", "twice"]
)
def test_advice_about_a_line_keeps_the_id_of_every_piece(vocab, line, piece):
  lines = [*PIECES[: line - 1], piece, *PIECES[line - 1 :]]
  vocab.write_text("\n".join(lines) + "\n", encoding="utf-8")
  with pytest.raises(VocabularyError) as refused:
    read_vocabulary(vocab)
  # Who does what it says has a vocabulary of the same ids.
  advice = re.search(r"write (\S+) on line (\d+) instead", str(refused.value))
  assert advice is not None
  lines[int(advice[2]) - 1] = advice[1]
  vocab.write_text("\n".join(lines) + "\n", encoding="utf-8")
  pieces = read_vocabulary(vocab).pieces
  assert [pieces.index(p) for p in ("the", "##s")] == [
    len(lines) - 1 - lines[::-1].index(p) for p in ("the", "##s")
  ]


def test_pieces_of_hugging_face_have_the_ids_that_its_files_give(tmp_path):
  ids = {piece: number for number, piece in enumerate(PIECES)}
  ids["##s"] = 9  # No piece has the ids 7 and 8.
  fast = {"model": {"type": "WordPiece", "vocab": ids}}
  write_json(tmp_path / "tokenizer.json", fast)
  pieces = read_vocabulary(tmp_path).pieces
  assert pieces[9] == "##s" and len({*pieces}) == len(pieces) == 10
  # Pieces beside a vocab.txt.
  (tmp_path / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
  write_json(tmp_path / "added_tokens.json", {"[ENT]": 9})
  decoder = {"0": {"content": "[PAD]"}, "8": {"content": "[X]"}}
  config = {"do_lower_case": True, "added_tokens_decoder": decoder}
  write_json(tmp_path / "tokenizer_config.json", config)
  assert read_vocabulary(tmp_path).pieces == (*PIECES, "[X]", "[ENT]")
  write_json(tmp_path / "added_tokens.json", {"[ENT]": 5})
  with pytest.raises(VocabularyError, match=r"'\[ENT\]' with the id 5.*'the'"):
    read_vocabulary(tmp_path)


def test_a_tokenizer_without_pieces_is_refused(tmp_path):
  fast = {"model": {"type": "WordPiece", "vocab": {}}}
  write_json(tmp_path / "tokenizer.json", fast)
  with pytest.raises(VocabularyError, match=r"tokenizer.json has no \[PAD\]"):
    read_vocabulary(tmp_path)


@pytest.mark.parametrize(
  ("files", "arguments", "expected"),
  [
    ({}, {}, Normalization()),
    ({}, {"normalizer": "bert"}, Normalization("bert")),
    ({}, {"cased": True}, Normalization("bert", False, False)),
    (
      {"tokenizer_config": {"do_lower_case": True, "strip_accents": False}},
      {},
      Normalization("bert", True, False),
    ),
    (
      {"tokenizer_config": {"do_lower_case": True}},
      {"normalizer": "tensorflow_text"},
      Normalization(),
    ),
    ({"tokenizer": {"normalizer": {"lowercase": False}}}, {}, "cased"),
    (
      {
        "vocab": {"normalizer": "bert"},
        "tokenizer_config": {"do_lower_case": 1},
      },
      {"normalizer": "tensorflow_text"},
      Normalization("bert"),
    ),
  ],
)
def test_the_files_beside_a_vocabulary_say_how_text_is_normalized(
  vocab, files, arguments, expected
):
  for name, content in files.items():
    write_json(vocab.parent / f"{name}.json", content)
  vocabulary = read_vocabulary(vocab, **arguments)
  if expected == "cased":
    expected = Normalization.of(cased=True)
  assert vocabulary.normalization == expected
  write_vocabulary(vocab.parent, vocabulary)
  again = read_vocabulary(vocab)
  assert (again.pieces, again.normalization) == (vocabulary.pieces, expected)
  assert again.digest == vocabulary.digest
  # Another normalization is another vocabulary.
  hashes = {
    WordpieceVocabulary(PIECES, one).digest
    for one in (Normalization(), Normalization("bert"), expected)
  }
  assert len(hashes) == 2 + (
    expected not in (Normalization(), Normalization("bert"))
  )


def test_a_vocabulary_that_says_nothing_is_guessed_with_a_warning(
  vocab, caplog
):
  vocab.write_text("\n".join([*PIECES, "The"]), encoding="utf-8")
  with caplog.at_level(logging.WARNING):
    assert read_vocabulary(vocab).cased
  assert "pieces have capitals" in caplog.text
  caplog.clear()
  # A stray capital need not decide.
  assert not read_vocabulary(vocab, cased=False).cased
  assert not caplog.text


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("vocab.json", "{", "vocab.json cannot be read"),
    ("vocab.json", {"normalizer": "nfkc"}, "vocab.json cannot be used"),
    ("vocab.json", {"case": True}, "want an object such as"),
    ("vocab.json", {"lowercase": False}, "always removes capitals"),
    ("tokenizer_config.json", {"do_lower_case": "yes"}, "want true or false"),
    ("tokenizer_config.json", {"do_lower_case": False}, "--nocased"),
    ("added_tokens.json", {"[ENT]": None}, "pieces without an id"),
  ],
)
def test_files_that_contradict_are_refused(vocab, name, content, message):
  text = content if isinstance(content, str) else json.dumps(content)
  (vocab.parent / name).write_text(text, encoding="utf-8")
  with pytest.raises(VocabularyError, match=message):
    read_vocabulary(vocab, cased=False)
