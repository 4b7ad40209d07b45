"""Rows of TFDS data sets, which TFDS's own builders describe and write."""

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.inputs import seqio_rows
from tests.corpus.conftest import text_of

# TFDS asks protobuf what this version of it would rather be asked elsewhere.
pytestmark = pytest.mark.filterwarnings(
  "ignore:.*label.. is deprecated:DeprecationWarning"
)

_SPANS = "salient_span_wikipedia/documents"


def _record(text: str, sentences: list, spans: list = (), title="Velt") -> dict:
  names = ("start", "limit", "type")
  return {
    "title": title,
    "text": text,
    "spans": [dict(zip(names, span, strict=True)) for span in spans],
    "sentences": [dict(zip(names[:2], s, strict=True)) for s in sentences],
  }


# é takes two bytes. The second sentence is one that no rule would end there,
# and &amp; stays, for the offsets count it.
FIRST = "The Café &amp; Ada Stone. was in 1987 by. Velt. "
RECORDS = [
  _record(
    FIRST,
    [(0, 26), (27, 48)],
    [(4, 9, "ORG"), (16, 25, "PER"), (34, 38, "DATE")],
  ),
  _record("Ada.", [(0, 4)]),
  _record("Ada.", [(0, 4)], [(0, 3, "PER")]),
  _record("Ada.", [(0, 4)], title="List of Velt"),
  _record("Ada.", [(0, 4)]),
]


def _prepare(directory) -> None:
  """Writes the records as the builder's own data."""
  builder = tfds.builder(_SPANS, data_dir=directory)
  tfds.dataset_builders.store_as_tfds_dataset(
    builder.name,
    config=builder.builder_config.name,
    version=builder.version,
    features=builder.info.features,
    split_datasets={"train": [*enumerate(RECORDS)]},
    data_dir=directory,
    disable_shuffling=True,
  )


def _build(tmp_path, vocab_file, source, **arguments) -> Corpus:
  seqio_rows._open.cache_clear()
  arguments = {"vocab": vocab_file, "name": "corpus"} | arguments
  build_corpus([source], tmp_path / "corpus", **arguments)
  return Corpus.open(tmp_path / "corpus")


def test_documents_of_salient_span_wikipedia_are_blocks(
  tmp_path, vocab_file, monkeypatch
):
  directory = tmp_path / "tfds"
  monkeypatch.setenv("TFDS_DATA_DIR", str(directory))
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(directory))
  _prepare(directory)
  corpus = _build(
    tmp_path,
    vocab_file,
    f"tfds:{_SPANS}",
    drop_titles=["wikipedia"],
    shard_bytes=1,
    # The first block has 17 wordpieces, and a title.
    block_length=20,
  )
  blocks = [*map(corpus.block, range(corpus.num_blocks))]
  assert [block.text for block in blocks] == [FIRST, "Ada.", "Ada.", "Ada."]
  kinds = [corpus.span_kinds[k] for k in blocks[0].salient_span_kinds]
  spans = blocks[0].salient_spans.tolist()
  assert [
    (text_of(blocks[0], *span), kind)
    for span, kind in zip(spans, kinds, strict=True)
  ] == [("Café", "ORG"), ("Ada Stone", "PER"), ("1987", "DATE")]
  # Rows with the same contents have ids of their own.
  names = [block.document_id for block in blocks]
  assert names[2:] == [f"{names[1]}-1", f"{names[1]}-2"]
  assert len(set(corpus.block_ids.tolist())) == 4
  # No rule adds spans to those that were published.
  assert [len(block.salient_spans) for block in blocks] == [3, 0, 1, 0]
  assert corpus.lengths.max() == 20
  assert corpus.summary["duplicate_blocks"] == 2
  # The ends of blocks that are too long are left out, but not of their text.
  assert corpus.summary["skipped"] == {
    "title with 'List of'": 1,
    "ends of blocks longer than the block length": 1,
  }


def test_a_seqio_source(tmp_path, vocab_file):
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
  finally:
    seqio.TaskRegistry.remove("texts_of_a_test")
  blocks = map(corpus.block, range(2))
  assert [(block.document_id, block.text) for block in blocks] == [
    ("7", "ada."),
    ("8", "Stone."),
  ]
