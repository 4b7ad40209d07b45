"""Queries: their tokens, batches of few shapes, and vectors."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float32, Int32

from realm_jax.evaluation.trained_model import TrainedModel, whole_batch
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import embed_queries, query_tower_parameters
from realm_jax.partitioning import sharding
from realm_jax.text.wordpieces import WordpieceVocabulary

_MAX_BATCH = 16


def encode_queries(
  texts: Sequence[str], words: WordpieceVocabulary, query_length: int
) -> Int32[np.ndarray, "n q"]:
  """Returns `[CLS] x [SEP]` of each text, padded; long texts are cut.

  Raises:
    ValueError: A text has no words.
  """
  queries = np.zeros((len(texts), query_length), np.int32)
  for row, text in zip(queries, texts, strict=True):
    token_ids = words.encode(text)[: query_length - 2]
    if not token_ids:
      raise ValueError(f"the question {text!r} has no words")
    row[: len(token_ids) + 2] = [words.cls_id, *token_ids, words.sep_id]
  return queries


def batches_of(
  queries: Int32[np.ndarray, "n q"],
) -> Iterator[tuple[Int32[np.ndarray, "b q"], int]]:
  """Yields batches of queries, and how many rows of each are no padding.

  The batches have 16 rows, and the last one the next power of two, or the next
  multiple of the devices, so that programs are compiled for five shapes at
  most. Padding repeats the last query.
  """
  for start in range(0, len(queries), _MAX_BATCH):
    rows = queries[start : start + _MAX_BATCH]
    count = len(rows)
    size = whole_batch(1 << (count - 1).bit_length())
    yield np.pad(rows, ((0, size - count), (0, 0)), mode="edge"), count


class QueryEmbedder:
  """Embeds queries on the devices of a model.

  Args:
    model: Checkpoint whose retriever embeds.
    params: Parameters of another query tower; None takes the checkpoint's own.
  """

  def __init__(self, model: TrainedModel, params: Params | None = None):
    retriever = model.models.retriever
    if params is None:
      params = query_tower_parameters(retriever, model.params["retriever"])
    self._params = params
    self._mesh = model.mesh
    self._embed = sharding.jit_on_mesh(
      embed_queries,
      retriever,
      mesh=model.mesh,
      out_shardings=sharding.batch_sharding(model.mesh),
    )

  def __call__(
    self, token_ids: Int32[np.ndarray, "b q"]
  ) -> Float32[np.ndarray, "b d"]:
    """Returns vectors; b must be a multiple of the number of devices."""
    queries = sharding.to_devices({"query": token_ids}, self._mesh)["query"]
    return np.asarray(self._embed(self._params, queries))
