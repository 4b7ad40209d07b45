"""Blocks that another system cut become a corpus, one record a row."""

import functools

import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google import released_corpus
from realm_jax.corpus import block_builder
from realm_jax.corpus.store import Corpus
from realm_jax.text.wordpieces import WordpieceVocabulary

_PIECES = (
  "[PAD] [UNK] [CLS] [SEP] [MASK] ada velt was born in the bridge of "
  "a b c ##d . , 1 9 ##1 ##9 ##0"
).split()


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> WordpieceVocabulary:
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(_PIECES))
  return WordpieceVocabulary(path)


RECORDS = [
  b"Ada was born in Velt. The bridge of Ada was born.",
  b" ada , ada ",
  "ÀDA was 1910.".encode(),
  b"",
  b"the " * 600,
  b"Ada was born in Velt. The bridge of Ada was born.",
]
TITLES = [b"Velt", b"", b"Ada", b"", b"of", b"Velt"]
# Wordpieces, counted by hand: "1910" is 1 ##9 ##1 ##0.
BODY_LENGTHS = [6 + 7, 3, 2 + 4 + 1, 0, 600, 6 + 7]


def ids(words: str) -> list[int]:
  return [_PIECES.index(word) for word in words.split()]


def write(path, vocabulary, records=RECORDS, **settings) -> Corpus:
  settings = {"num_blocks": len(records)} | settings
  released_corpus.write_released_corpus(
    iter(records), path, vocabulary=vocabulary, **settings
  )
  return Corpus.open(path)


def test_a_row_is_a_record_whatever_is_in_it(tmp_path, vocabulary, monkeypatch):
  # Two blocks a shard: rows go on through all of them.
  monkeypatch.setattr(block_builder, "DOCUMENTS_PER_CHUNK", 2)
  one = functools.partial(released_corpus.write_shards, shard_bytes=1)
  monkeypatch.setattr(released_corpus, "write_shards", one)
  corpus = write(tmp_path / "c", vocabulary, titles=TITLES)
  assert corpus.num_blocks == len(RECORDS)
  for row, (record, title) in enumerate(zip(RECORDS, TITLES, strict=True)):
    assert corpus.block(row).body.encode() == record
    assert corpus.block(row).title.encode() == title
    assert corpus.block(row).document_id == str(row)
  corpus.verify()


def test_tokens_lie_where_the_record_has_them(tmp_path, vocabulary):
  corpus = write(tmp_path / "c", vocabulary, titles=TITLES)
  assert corpus.block(1).token_ids.tolist() == ids("ada , ada")
  assert corpus.block(1).byte_ranges.tolist() == [[1, 4], [5, 6], [7, 10]]
  assert corpus.block(2).token_ids.tolist() == ids(
    "ada ada was 1 ##9 ##1 ##0 ."
  )
  assert corpus.block(2).title_length == 1
  # "À" is two bytes of the record, and the answer is as it was written.
  assert corpus.block(2).answer_text(0, 1) == "ÀDA"
  assert corpus.block(0).sentences.tolist() == [[0, 6], [6, 13]]
  assert [len(corpus.block(r).body_token_ids) for r in range(6)] == BODY_LENGTHS


def test_what_a_block_length_cuts_is_counted_and_its_text_is_whole(
  tmp_path, vocabulary
):
  corpus = write(tmp_path / "c", vocabulary, titles=TITLES, block_length=14)
  assert corpus.block_length == 14
  assert corpus.lengths.max() == 14
  assert corpus.block(0).body.encode() == RECORDS[0]
  # Title, [CLS] and two [SEP] leave ten; the second sentence loses its end.
  assert corpus.block(0).body_token_ids.tolist() == ids(
    "ada was born in velt . the bridge of ada"
  )
  assert corpus.block(0).sentences.tolist() == [[0, 6], [6, 10]]
  assert corpus.summary["skipped"] == {
    "ends of blocks longer than the block length": 3
  }


def test_block_ids_hold_wherever_the_records_are_imported(tmp_path, vocabulary):
  one = write(tmp_path / "a", vocabulary, titles=TITLES)
  other = write(tmp_path / "b", vocabulary, block_length=20)
  assert one.block_ids.tolist() == other.block_ids.tolist()
  # Equal texts are blocks of their own.
  assert len(set(one.block_ids.tolist())) == len(RECORDS)
  assert one.rows_of(other.block_ids).tolist() == list(range(6))


def test_salient_spans_are_in_tokens(tmp_path, vocabulary, monkeypatch):
  def tag(text, title):
    del title
    at = text.find("Velt")
    return [(at, at + 4, "name")] if at >= 0 else []

  monkeypatch.setattr(released_corpus, "tag", tag)
  corpus = write(tmp_path / "c", vocabulary)
  assert corpus.block(0).salient_spans.tolist() == [[4, 5]]
  assert corpus.block(1).salient_spans.tolist() == []
  cut = write(tmp_path / "cut", vocabulary, block_length=8)
  assert cut.block(0).salient_spans.tolist() == [[4, 5]]


@pytest.mark.parametrize(
  ("settings", "found"),
  [
    ({"num_blocks": 7}, "7 vectors, and 6 records"),
    ({"num_blocks": 5}, "5 vectors, and more records"),
    ({"titles": TITLES[:-1]}, "there are 5 titles, and more of the others"),
    ({"titles": [*TITLES, b""]}, "there are 6 records, and more of the others"),
    ({"titles": [b"\xff", *TITLES[1:]]}, "title 0 is not UTF-8"),
    ({"records": [*RECORDS[:5], b"ok \xff"]}, r"record 5 .* \(byte 3 of 4\)"),
    ({"block_length": 5}, "block_length=5 is too short"),
  ],
)
def test_what_does_not_agree_leaves_nothing(
  tmp_path, vocabulary, settings, found
):
  with pytest.raises(ConversionError, match=found):
    write(tmp_path / "c", vocabulary, **settings)
  assert list(tmp_path.iterdir()) == []
