"""Released blocks become a corpus, one record a row, and a snapshot."""

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus import block_builder, writing
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.writing import new_corpus
from realm_jax.snapshots.loading import load_newest
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import WeightsError, importing
from tests.corpus.conftest import text_of
from tests.weights import tf_files as files
from tests.weights.models import import_weights

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


def write(path, records=RECORDS, *, num_blocks=6):
  documents = importing.blocks_of(num_blocks, iter(records), iter(TITLES))
  vocabulary = WordpieceVocabulary(_PIECES)
  with new_corpus(path) as staging:
    importing.write_corpus(
      staging, documents, vocabulary, num_blocks=num_blocks
    )
  return Corpus.open(path)


def test_a_row_is_a_record_whatever_is_in_it(tmp_path, monkeypatch):
  # Two blocks a shard: rows go on through all of them.
  monkeypatch.setattr(block_builder, "DOCUMENTS_PER_CHUNK", 2)
  monkeypatch.setattr(writing, "SHARD_BYTES", 1)
  corpus = write(tmp_path / "c")
  assert corpus.num_blocks == len(RECORDS)
  for row, (record, title) in enumerate(zip(RECORDS, TITLES, strict=True)):
    assert corpus.block(row).text.encode() == record
    assert corpus.block(row).title.encode() == title
    assert corpus.block(row).document_id == str(row)
  corpus.verify()
  assert corpus.block(1).token_ids.tolist() == ids("ada , ada")
  assert corpus.block(1).byte_ranges.tolist() == [[1, 4], [5, 6], [7, 10]]
  # "À" is two bytes of the record, and the answer is as it was written.
  assert text_of(corpus.block(2), 0, 1) == "ÀDA"
  assert corpus.block(0).sentences.tolist() == [[0, 6], [6, 13]]
  assert [len(corpus.block(r).body_token_ids) for r in range(6)] == BODY_LENGTHS
  # The longest is [CLS] of [SEP] the … [SEP].
  assert corpus.block_length == corpus.lengths.max() == 600 + 4
  # Equal texts are blocks of their own.
  assert len(set(corpus.block_ids.tolist())) == len(RECORDS)


def test_what_does_not_agree_leaves_nothing(tmp_path):
  with pytest.raises(WeightsError, match="fewer records or titles"):
    write(tmp_path / "c", num_blocks=5)
  with pytest.raises(WeightsError, match=r"5 is not .* 3 of 4"):
    write(tmp_path / "c", [*RECORDS[:5], b"ok \xff"])
  assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def release(tmp_path_factory):
  """The folder of a release, its vectors and its texts."""
  folder = tmp_path_factory.mktemp("release")
  return folder, *files.write_release(folder)


def _import(folder, tmp_path):
  return import_weights(
    "tf_realm",
    folder,
    tmp_path / "run",
    corpus_dir=tmp_path / "corpus",
    block_records=folder / "blocks.tfr",
    block_titles=folder / "titles.tfr",
    index="exact",
  )


def test_blocks_and_vectors_become_a_corpus_and_snapshot_0(release, tmp_path):
  folder, vectors, texts = release
  report = _import(folder, tmp_path)
  assert "block vectors [30, 8]: published as snapshot 0" in report
  corpus = Corpus.open(tmp_path / "corpus")
  assert [corpus.block(row).text.encode() for row in range(30)] == texts
  assert corpus.block(29).title == "Velt"
  snapshot = load_newest(tmp_path / "run" / "snapshots", corpus=corpus)
  np.testing.assert_array_equal(snapshot.vectors(np.arange(30)), vectors)


def test_a_checkpoint_that_cannot_be_written_takes_all_back(
  release, tmp_path, monkeypatch
):
  manifests = []

  def fail(store, *_):
    manifests.extend(store.directory.parent.glob("snapshots/*/manifest.json"))
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(CheckpointStore, "save", fail)
  with pytest.raises(DiskFullError, match=r"disk of .* is full"):
    _import(release[0], tmp_path)
  # The snapshot is there first: the checkpoint makes a MODEL_DIR.
  assert len(manifests) == 1
  assert not [*tmp_path.iterdir()]
