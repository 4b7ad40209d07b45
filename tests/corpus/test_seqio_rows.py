"""Rows of TFDS data sets, which TFDS's own builders describe and write."""

import numpy as np
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from realm_jax.corpus import InputError, seqio_rows
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import RowReader
from realm_jax.corpus.sources import DocumentSource
from realm_jax.corpus.store import Corpus

# TFDS asks protobuf what this version of it would rather be asked elsewhere.
pytestmark = pytest.mark.filterwarnings(
  "ignore:.*label.. is deprecated:DeprecationWarning"
)

_SPANS = "salient_span_wikipedia/documents"


def _spans(*found: tuple[int, int, str]) -> dict[str, list]:
  starts, limits, kinds = zip(*found, strict=True) if found else ((), (), ())
  return {"start": starts, "limit": limits, "type": kinds}


def _record(text: str, spans: dict, *sentences: tuple[int, int]) -> dict:
  return {
    "title": "Velt",
    "text": text,
    "spans": spans,
    "sentences": {
      "start": [start for start, _ in sentences],
      "limit": [limit for _, limit in sentences],
    },
  }


# é takes two bytes. The second sentence is one that no rule would end there,
# and &amp; stays, for the offsets count it.
FIRST = "The Café &amp; Ada Stone. was in 1987 by. Velt. "
RECORDS = [
  _record(
    FIRST,
    _spans((4, 9, "ORG"), (16, 25, "PER"), (34, 38, "DATE")),
    (0, 26),
    (27, 48),
  ),
  _record("Ada.", _spans(), (0, 4)),
  _record("Ada.", _spans((0, 3, "PER")), (0, 4)),
  {**_record("Ada.", _spans(), (0, 4)), "title": "List of Velt"},
  _record("Ada.", _spans(), (0, 4)),
]


@pytest.fixture
def prepare(tmp_path, monkeypatch):
  """`prepare(name, shards)` writes records as the builder's own data."""
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
  seqio_rows._open.cache_clear()

  def write(name: str, shards: list[list[dict]]) -> None:
    builder = tfds.builder(name, data_dir=tmp_path / "tfds")
    builder.data_path.mkdir(parents=True)
    lengths, num_bytes = [], 0
    for index, records in enumerate(shards):
      path = builder.data_path / (
        f"{builder.name}-train.tfrecord-{index:05d}-of-{len(shards):05d}"
      )
      with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
          features = builder.info.features
          encoded = features.serialize_example(features.encode_example(record))
          writer.write(encoded)
          num_bytes += len(encoded)
      lengths.append(len(records))
    template = tfds.core.ShardedFileTemplate(
      data_dir=builder.data_path,
      dataset_name=builder.name,
      split="train",
      filetype_suffix="tfrecord",
    )
    split = tfds.core.SplitInfo(
      name="train",
      shard_lengths=lengths,
      num_bytes=num_bytes,
      filename_template=template,
    )
    builder.info.set_splits(tfds.core.splits.SplitDict([split]))
    builder.info.write_to_directory(builder.data_path)

  return write


def _build(tmp_path, vocab_file, source, **arguments) -> Corpus:
  arguments = {"vocab": vocab_file, "name": "corpus"} | arguments
  build_corpus([source], tmp_path / "corpus", **arguments)
  return Corpus.open(tmp_path / "corpus")


def test_documents_of_salient_span_wikipedia_are_blocks(
  prepare, tmp_path, vocab_file
):
  prepare(_SPANS, [RECORDS[:2], RECORDS[2:]])
  corpus = _build(
    tmp_path,
    vocab_file,
    f"tfds:{_SPANS}",
    drop_titles=["wikipedia"],
    shard_bytes=1,
  )
  bodies = [corpus.block(row).body for row in range(corpus.num_blocks)]
  assert bodies == [FIRST, "Ada.", "Ada.", "Ada."]
  kinds = [corpus.span_kinds[k] for k in corpus.block(0).salient_span_kinds]
  spans = [
    corpus.block(0).answer_text(start, limit)
    for start, limit in corpus.block(0).salient_spans.tolist()
  ]
  assert (kinds, spans) == (
    ["ORG", "PER", "DATE"],
    ["Café", "Ada Stone", "1987"],
  )
  sentences = [
    corpus.block(0).answer_text(start, limit)
    for start, limit in corpus.block(0).sentences.tolist()
  ]
  assert sentences == ["The Café &amp; Ada Stone.", "was in 1987 by. Velt."]
  # Rows with the same contents have ids of their own.
  names = [corpus.block(row).document_id for row in range(4)]
  assert names[2:] == [f"{names[1]}-1", f"{names[1]}-2"]
  assert len(set(corpus.block_ids.tolist())) == 4
  # No rule adds spans to those that were published.
  assert [len(corpus.block(row).salient_spans) for row in range(4)] == [
    3,
    0,
    1,
    0,
  ]
  assert corpus.summary["duplicate_blocks"] == 2
  assert corpus.summary["skipped"] == {"title with 'List of'": 1}


def test_a_published_block_that_is_too_long_keeps_its_text(
  prepare, tmp_path, vocab_file
):
  prepare(_SPANS, [RECORDS])
  corpus = _build(tmp_path, vocab_file, f"tfds:{_SPANS}:train", block_length=12)
  assert corpus.block(0).body == FIRST
  assert corpus.lengths.max() == 12
  reason = "ends of blocks longer than the block length"
  assert corpus.summary["skipped"][reason] == 1
  assert corpus.block(0).sentences.tolist()[-1][1] == 8


def test_a_seqio_source(tmp_path, vocab_file):
  seqio_rows._open.cache_clear()

  def read(split, shuffle_files, seed=None):
    del shuffle_files, seed
    rows = {"title": ["Velt", "Ada"], "text": [f"{split}.", "Stone."]}
    return tf.data.Dataset.from_tensor_slices({**rows, "id": [7, 8]})

  seqio.TaskRegistry.add(
    "texts_of_a_test",
    source=seqio.FunctionDataSource(read, splits=["train", "ada"]),
    preprocessors=[],
    output_features={},
  )
  try:
    source = f"seqio:{__name__}:texts_of_a_test:ada"
    corpus = _build(tmp_path, vocab_file, source)
    with pytest.raises(InputError, match=r"no split 'no'.*ada, train"):
      DocumentSource([f"seqio:{__name__}:texts_of_a_test:no"], RowReader())
    with pytest.raises(InputError, match="no task named 'none' in"):
      DocumentSource([f"seqio:{__name__}:none"], RowReader())
  finally:
    seqio.TaskRegistry.remove("texts_of_a_test")
  assert [corpus.block(row).body for row in range(2)] == ["ada.", "Stone."]
  assert [corpus.block(row).document_id for row in range(2)] == ["7", "8"]


def test_a_record_without_text_is_named(prepare):
  name = "tfds:wikipedia/20230601.en"
  with pytest.raises(InputError, match="no 'text' among 'title'; want"):
    RowReader().read({"title": b"Velt"})
  with pytest.raises(InputError, match=r"'title' is not UTF-8 \(byte 2\)"):
    RowReader().read({"title": b"V\xff", "text": np.bytes_(b"")})
  prepare(name.removeprefix("tfds:"), [[{"title": "Velt", "text": "Ada."}]])
  source = DocumentSource([name], RowReader())
  (row,) = source.rows()
  assert row.place == f"{name} shard 0:1"
  assert [document.text for document in source.documents()] == ["Ada."]
