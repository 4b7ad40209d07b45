"""A tiny model of this project's own, saved and exported."""

import functools

import jax
import numpy as np
import safetensors.numpy

from realm_jax.checkpoints.store import CheckpointStore, loop_record
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import vocabulary_of
from realm_jax.weights import exporting
from realm_jax.weights.model import BoundModel, nested, parameter_shapes
from realm_jax.weights.tables import PARTS
from tests.weights import hf_files as files

BERT = BertConfig(
  hidden_size=8,
  num_layers=2,
  num_heads=2,
  intermediate_size=12,
  max_positions=64,
)
RETRIEVER = Retriever(bert=BERT, projection_size=4)
READER = Reader(bert=BERT, joint_length=40, span_size=6, max_answer_width=4)


def vocabulary():
  """Returns the vocabulary of the tiny world."""
  return vocabulary_of(tuple(files.pieces()))


@functools.cache
def _params(retriever, reader):
  """Random parameters, none of them zero or one."""
  bound = BoundModel.of(retriever, reader, vocabulary())
  shapes = parameter_shapes(bound.retriever, bound.reader, PARTS)
  rng = np.random.default_rng(3)
  return nested(
    {
      path: rng.normal(0, 0.5, shape).astype(np.float32)
      for path, shape in shapes.items()
    }
  )


def save(model_dir, retriever=RETRIEVER, reader=READER):
  """Writes a run of this project, with its vocabulary."""
  params = _params(retriever, reader)
  store = CheckpointStore(model_dir)
  loop = loop_record(None, vocabulary=vocabulary().sha256)
  store.save(7, {**params, "loop": loop})
  store.close()
  lines = "\n".join(files.pieces()) + "\n"
  (model_dir / "vocab.txt").write_text(lines, encoding="utf-8")
  return params


def export(
  model_dir,
  output_dir,
  retriever=RETRIEVER,
  reader=READER,
  *,
  vocab=None,
  **choices,
):
  """Exports with choices that have the names of the command's flags."""
  return exporting.export_weights(
    model_dir, retriever, reader, output_dir, vocab=vocab, **choices
  )


def assert_same_bits(one, two):
  """Checks that two trees have the same leaves, dtypes included."""
  assert jax.tree.structure(one) == jax.tree.structure(two)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def tensors(directory):
  """Reads the tensors that an export wrote."""
  return safetensors.numpy.load_file(directory / "model.safetensors")


def model(retriever):
  """Returns a model of a retriever and READER for the plan of an export."""
  return BoundModel.of(retriever, READER, vocabulary())
