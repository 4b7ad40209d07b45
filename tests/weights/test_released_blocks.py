"""Released blocks become a corpus, one record a row, and a generation."""

import functools

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus import CorpusError, block_builder
from realm_jax.corpus.store import Corpus
from realm_jax.generations.loading import load_newest
from realm_jax.generations.manifest import GenerationError
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.text.wordpieces import vocabulary_of
from realm_jax.weights import WeightsError, released_blocks
from realm_jax.weights.released_blocks import ReleasedBlocks
from tests.corpus.updated import text_of
from tests.weights import tf_files as files
from tests.weights.models import import_weights, load

pytestmark = pytest.mark.slow

_PIECES = (
  "[PAD] [UNK] [CLS] [SEP] [MASK] ada velt was born in the bridge of "
  "a b c ##d . , 1 9 ##1 ##9 ##0"
).split()
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


def write(path, records=RECORDS, *, num_blocks=6, titles=TITLES, **settings):
  vectors = np.zeros((num_blocks, 2), np.float32)
  texts = None if titles is None else iter(titles)
  released_blocks.write_corpus(
    ReleasedBlocks(path, vectors, iter(records), texts, **settings),
    vocabulary_of(tuple(_PIECES)),
  )
  return Corpus.open(path)


def test_a_row_is_a_record_whatever_is_in_it(tmp_path, monkeypatch):
  # Two blocks a shard: rows go on through all of them.
  monkeypatch.setattr(block_builder, "DOCUMENTS_PER_CHUNK", 2)
  small = functools.partial(released_blocks.write_shards, shard_bytes=1)
  monkeypatch.setattr(released_blocks, "write_shards", small)
  corpus = write(tmp_path / "c")
  assert corpus.num_blocks == len(RECORDS)
  for row, (record, title) in enumerate(zip(RECORDS, TITLES, strict=True)):
    assert corpus.block(row).body.encode() == record
    assert corpus.block(row).title.encode() == title
    assert corpus.block(row).document_id == str(row)
  corpus.verify()
  assert corpus.block(1).token_ids.tolist() == ids("ada , ada")
  assert corpus.block(1).byte_ranges.tolist() == [[1, 4], [5, 6], [7, 10]]
  # "À" is two bytes of the record, and the answer is as it was written.
  assert text_of(corpus.block(2), 0, 1) == "ÀDA"
  assert corpus.block(0).sentences.tolist() == [[0, 6], [6, 13]]
  assert [len(corpus.block(r).body_token_ids) for r in range(6)] == BODY_LENGTHS


def test_a_block_length_cuts_tokens_but_no_text_and_no_id(tmp_path):
  corpus = write(tmp_path / "c", titles=None, block_length=14)
  assert corpus.block_length == 14
  assert corpus.lengths.max() == 14
  assert corpus.block(0).body.encode() == RECORDS[0]
  # [CLS] and two [SEP] leave eleven; the second sentence loses its end.
  assert corpus.block(0).body_token_ids.tolist() == ids(
    "ada was born in velt . the bridge of ada was"
  )
  cut = "ends of blocks longer than the block length"
  assert corpus.summary["skipped"] == {cut: 3}
  whole = write(tmp_path / "whole")
  assert whole.block_ids.tolist() == corpus.block_ids.tolist()
  # Equal texts are blocks of their own.
  assert len(set(whole.block_ids.tolist())) == len(RECORDS)


@pytest.mark.parametrize(
  ("settings", "word"),
  [
    ({"num_blocks": 7}, "fewer records or titles"),
    ({"num_blocks": 5}, "fewer records or titles"),
    ({"titles": TITLES[:-1]}, "fewer records or titles"),
    ({"titles": [b"\xff", *TITLES[1:]]}, "0 is not UTF-8"),
    ({"records": [*RECORDS[:5], b"ok \xff"]}, r"5 is not .* 3 of 4"),
  ],
)
def test_what_does_not_agree_leaves_nothing(tmp_path, settings, word):
  with pytest.raises(WeightsError, match=word):
    write(tmp_path / "c", **settings)
  assert list(tmp_path.iterdir()) == []


# --- The generation -------------------------------------------------------


def _import(tmp_path, **options):
  given = {
    "corpus_dir": tmp_path / "corpus",
    "block_records": str(tmp_path / "in" / "blocks.tfr"),
    "index": "exact",
  }
  return import_weights(
    "tf_realm", tmp_path / "in", tmp_path / "run", **given | options
  )


@pytest.mark.parametrize("index", ["exact", "scann"])
def test_blocks_and_vectors_become_a_corpus_and_generation_0(tmp_path, index):
  vectors, texts = files.write_release(tmp_path / "in")
  titles = str(tmp_path / "in" / "titles.tfr")
  given = {"block_titles": titles, "index": index}
  if index == "scann":
    array = np.array(texts, object)
    np.save(tmp_path / "in" / "records.npy", array, allow_pickle=True)
    given["block_records"] = tmp_path / "in" / "records.npy"
  report = _import(tmp_path, **given)
  assert "block vectors [30, 8]: published as generation 0" in report
  corpus = Corpus.open(tmp_path / "corpus")
  assert [corpus.block(row).body.encode() for row in range(30)] == texts
  assert corpus.block(29).title == "Velt"
  generation = load_newest(tmp_path / "run" / "generations", corpus=corpus)
  assert generation.manifest.index_kind == index
  np.testing.assert_array_equal(generation.vectors(np.arange(30)), vectors)
  # The generation's own query tower embeds queries as the model does.
  model = load(tmp_path / "run")
  tokens = np.array([[2, 9, 11, 3], [2, 14, 3, 0]], np.int32)
  mine, theirs = (
    np.asarray(
      model.retriever.apply({"params": p}, tokens, method="embed_queries")
    )
    for p in (model.params["retriever"], generation.query_params)
  )
  np.testing.assert_array_equal(mine, theirs)
  found = generation.index.search(QueryBatch(tokens, mine), 3)
  best = np.argsort(-(mine @ vectors.T), axis=1)[:, :3]
  assert found.rows.tolist() == best.tolist()


def test_a_checkpoint_that_cannot_be_written_takes_all_back(
  tmp_path, monkeypatch
):
  files.write_release(tmp_path / "in")
  found = []

  def fail(store, *_):
    found.extend(store.directory.parent.glob("generations/*/manifest.json"))
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(CheckpointStore, "save", fail)
  with pytest.raises(DiskFullError, match=r"disk of .* is full"):
    _import(tmp_path)
  # The generation is there first: the checkpoint makes a MODEL_DIR.
  assert len(found) == 1
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_vector_that_is_not_finite_is_not_published(tmp_path):
  vectors, _ = files.write_release(tmp_path / "in")
  encoded = tmp_path / "in" / "embedder" / "encoded" / "encoded.ckpt"
  broken = vectors.copy()
  broken[17, 3] = np.nan
  files.save(encoded, {"block_emb": broken})
  with pytest.raises(GenerationError, match="block 17 is not finite"):
    _import(tmp_path)
  assert not (tmp_path / "run").exists()
  # Nor does its corpus stand in the way of the next attempt.
  assert not (tmp_path / "corpus").exists()
  files.save(encoded, {"block_emb": vectors})
  _import(tmp_path)
  assert Corpus.open(tmp_path / "corpus").num_blocks == 30


@pytest.mark.parametrize(
  ("options", "error", "word"),
  [
    ({"block_records": None}, WeightsError, "pass --block_records"),
    ({"block_records": "in/none.tfr"}, WeightsError, "no file of blocks at"),
    ({"block_records": "in/few.npy"}, WeightsError, "30 vectors"),
    ({"parts": ["reader"]}, WeightsError, "has none"),
    ({"corpus_dir": "in"}, CorpusError, "is no corpus"),
  ],
)
def test_blocks_that_do_not_agree_leave_nothing(tmp_path, options, error, word):
  files.write_release(tmp_path / "in")
  files.write_records(tmp_path / "in" / "titles.tfr", [b"Velt"] * 29)
  few = np.array([b"a", b"b"], object)
  np.save(tmp_path / "in" / "few.npy", few, allow_pickle=True)
  files.write_module(tmp_path / "in" / "bert", files.bert())
  for name in ("block_records", "corpus_dir"):
    if options.get(name):
      options = {**options, name: tmp_path / options[name]}
  with pytest.raises(error, match=word):
    _import(tmp_path, **options)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]
