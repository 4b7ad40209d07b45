"""SentencePieces: the ids that seqio gives, sentinels, and what is no model."""

import json
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import seqio
from hypothesis import strategies

from realm_jax.errors import RealmError
from realm_jax.text.sentencepieces import (
  SentencePieceVocabulary,
  read_sentencepieces,
  train_sentencepieces,
)
from realm_jax.text.vocabulary import SPECIAL_PIECES, encode_texts
from realm_jax.text.wordpieces import WordpieceVocabulary
from tests.json_lines import read_lines

# A model of 26 pieces, and of T5's normalization, that the wheel of seqio has.
MODEL = Path(seqio.__file__).parent / "test_data/sentencepiece"
MODEL /= "sentencepiece.model"
TEXTS = ["who wrote it ?", "the river", "a city in the north of the river"]


@pytest.fixture(scope="module")
def pages(project_dir) -> list[str]:
  """The documents of the project."""
  paths = sorted((project_dir / "docs").glob("*.md"))
  return [path.read_text("utf-8") for path in paths]


@pytest.fixture(scope="module")
def vocabulary(pages) -> SentencePieceVocabulary:
  """1,000 pieces of English."""
  return train_sentencepieces(pages, 1_000)


@pytest.fixture(scope="module")
def theirs(vocabulary, tmp_path_factory) -> seqio.SentencePieceVocabulary:
  path = tmp_path_factory.mktemp("model") / "spiece.model"
  path.write_bytes(vocabulary.model)
  return seqio.SentencePieceVocabulary(str(path), extra_ids=100)


def test_real_texts_have_the_ids_of_seqio(vocabulary, theirs, shared_data):
  articles = read_lines(shared_data / "wikitext2" / "articles.jsonl")[::20]
  questions = read_lines(shared_data / "nq_open" / "NQ-open.dev.jsonl")[::20]
  texts = [q["question"] for q in questions] + [
    text for article in articles for text in article["paragraphs"]
  ]
  for path in (shared_data / "xquad").iterdir():
    data = json.loads(path.read_text())["data"]
    texts += [p["context"] for d in data[::10] for p in d["paragraphs"]]
  assert len(texts) > 200
  for text in texts:
    ids = vocabulary.encode(text)
    assert ids == theirs.encode(text)
    assert vocabulary.decode(ids) == theirs.decode(ids)


@hypothesis.given(
  strategies.text() | strategies.text("the river \u00a0\t\n▁ﬁ.,'½é")
)
def test_any_text_has_the_ids_of_seqio(vocabulary, theirs, text):
  assert vocabulary.encode(text) == theirs.encode(text)
  theirs = seqio.SentencePieceVocabulary(str(MODEL), extra_ids=100)
  assert read_sentencepieces(MODEL).encode(text) == theirs.encode(text)


def test_sentinels_are_the_last_ids_and_words_of_their_own(vocabulary, theirs):
  assert vocabulary.size == theirs.vocab_size == 1_100
  assert [*vocabulary.sentinels[:2], vocabulary.sentinels[99]] == [
    *(1_099, 1_098, 1_000)
  ]
  for text in (
    "<extra_id_0> of the <extra_id_1> in it <extra_id_99>",
    "It was <extra_id_7>ly in <extra_id_100>.",
    "  <extra_id_3>  ",
  ):
    assert vocabulary.encode(text) == theirs.encode(text)
  # Within words, where seqio spells them, the other tokens stay what they were.
  whole = vocabulary.encode("It was in the 'north'.")
  ids = vocabulary.encode("It was in the '<extra_id_0>'.")
  place = ids.index(1_099)
  assert whole[:place] == ids[:place]
  assert whole[place + 1 - len(ids) :] == ids[place + 1 :]
  text = "<extra_id_0> the river <extra_id_1><extra_id_1>"
  ids = [*vocabulary.encode(text), vocabulary.eos_id, 0, 0]
  again = "<extra_id_0> the river <extra_id_1> <extra_id_1>"
  assert vocabulary.decode(np.array(ids)) == again
  # A padded model may predict what no vocabulary has.
  assert vocabulary.decode([1_101]) == vocabulary.decode([2])


def test_a_model_keeps_the_sentinels_that_it_has(theirs):
  ours = SentencePieceVocabulary(theirs.sp_model)
  assert (ours.size, *ours.sentinels) == (1_100, *range(1_099, 999, -1))
  text = "the <extra_id_1> river"
  assert ours.encode(text) == theirs.encode(text)


def test_texts_of_a_batch_end_and_are_padded(vocabulary):
  ids = encode_texts(vocabulary, TEXTS, 6)
  assert ids.dtype == np.int32
  for row, text in zip(ids.tolist(), TEXTS, strict=True):
    expected = [*vocabulary.encode(text)[:5], 1]
    assert row == expected + [0] * (6 - len(expected))


def test_wordpieces_may_have_sentinels():
  """As Megatron adds them to BERT's, after the pieces."""
  plain = WordpieceVocabulary([*SPECIAL_PIECES, "the", "river", "(", ")"])
  assert (plain.pad_id, plain.eos_id, plain.sentinels) == (0, plain.sep_id, ())
  added = ["<extra_id_0>", "<extra_id_1>"]
  vocabulary = WordpieceVocabulary([*plain.pieces, *added])
  assert vocabulary.sentinels == (9, 10)
  text = "the (<extra_id_1>) River"
  assert vocabulary.encode(text) == [5, 7, 10, 8, 6]
  assert encode_texts(vocabulary, [text], 7).tolist() == [
    [5, 7, 10, 8, 6, vocabulary.sep_id, 0]
  ]


def test_what_is_no_model_is_refused(tmp_path, vocabulary):
  from sentencepiece import SentencePieceTrainer

  (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_PIECES))
  (tmp_path / "empty.model").touch()
  (tmp_path / "cut.model").write_bytes(vocabulary.model[:-1000])
  # Its padding is no piece, and 0 is unknown.
  (tmp_path / "text").write_text("the river of the north\n" * 9)
  SentencePieceTrainer.Train(
    input=str(tmp_path / "text"),
    model_prefix=str(tmp_path / "llama"),
    vocab_size=20,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  for name, message in (
    ("vocab.txt", r"vocab.txt: .* no SentencePiece model"),
    ("empty.model", r"empty.model: .* no SentencePiece model"),
    ("cut.model", r"cut.model: .* no SentencePiece model"),
    ("llama.model", "has -1 as the id of padding and 2"),
    ("absent.model", r"no SentencePiece model at .*absent.model"),
    ("", r"no SentencePiece model at .*spiece.model"),
  ):
    with pytest.raises(RealmError, match=message):
      read_sentencepieces(tmp_path / name)
  (tmp_path / "spiece.model").write_bytes(vocabulary.model)
  assert read_sentencepieces(tmp_path).digest == vocabulary.digest


def test_a_model_is_learned_from_texts(vocabulary, pages):
  assert (vocabulary.pad_id, vocabulary.eos_id) == (0, 1)
  again = train_sentencepieces(iter(pages), 1_000)
  assert again.digest == vocabulary.digest
  text = max(pages, key=len)
  ids = vocabulary.encode(text)
  assert ids.count(2) < 1e-3 * len(ids)
  assert 2 * len(ids) < len(text)
  # Few texts have fewer pieces.
  assert train_sentencepieces(TEXTS, 500).size < 150
  with pytest.raises(RealmError, match=r"model of 9 pieces .* larger size"):
    train_sentencepieces(pages, 9)
