"""The matrix products of a step's mathematics, forward and backward, each once.

What a program computes again is no part of them.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from realm_jax.models.bert import BertConfig
from realm_jax.models.packing import TokenRows
from realm_jax.models.retriever import Retriever
from realm_jax.training import batches
from realm_jax.training.batches import StepBatch
from realm_jax.training.stages.model_inputs import Models

# A product is differentiated by two more.
_FORWARD_AND_BACKWARD = 3

Lengths = Mapping[str, Int[np.ndarray, " n"]]


def sequence_lengths(batch: StepBatch) -> Lengths:
  """Returns the padded length of each sequence of a batch not yet laid out."""
  return {
    name: np.full(len(rows.token_ids), rows.token_ids.shape[1])
    for name, rows in _encoder_fields(batch).items()
  }


def _encoder_fields(batch: StepBatch) -> dict[str, TokenRows]:
  fields = dict(batch._asdict())
  retrieved = fields.pop("retrieved", None)
  if isinstance(retrieved, batches.StoredVectors):
    fields["queries"] = retrieved.queries
  return {k: v for k, v in fields.items() if isinstance(v, TokenRows)}


def step_flops(models: Models, batch: StepBatch, lengths: Lengths) -> int:
  """Returns the operations of a step on a batch.

  Args:
    models: Models of the run.
    batch: Batch that gives the numbers of queries, candidates and masks.
    lengths: Tokens of each sequence of each encoder input, by its name.
  """
  total = _pair_flops(models.retriever, batch)
  for name in ("queries", "blocks"):
    if name in lengths:
      total += tower_flops(models.retriever, lengths[name])
  if "joint" in lengths:
    bert = models.require_reader().bert
    total += encoder_flops(bert, lengths["joint"], first_only=False)
    total += _head_flops(models, batch, lengths["joint"])
  return _FORWARD_AND_BACKWARD * total


def encoder_flops(
  config: BertConfig, lengths: Int[np.ndarray, " n"], *, first_only: bool
) -> int:
  """Returns the operations of BERT's layers, forward.

  With `first_only` the last layer computes only each sequence's first token.
  """
  size, inner = config.hidden_size, config.intermediate_size
  tokens, squares = (
    int(lengths.sum()),
    int((lengths.astype(np.int64) ** 2).sum()),
  )
  sequences = int(np.count_nonzero(lengths))
  layer = 2 * tokens * (4 * size**2 + 2 * size * inner) + 4 * squares * size
  if not first_only:
    return config.num_layers * layer
  last = (
    2 * tokens * 2 * size**2
    + 2 * sequences * (2 * size**2 + 2 * size * inner)
    + 4 * tokens * size
  )
  return (config.num_layers - 1) * layer + last


def tower_flops(retriever: Retriever, lengths: Int[np.ndarray, " n"]) -> int:
  """Returns the operations that embed sequences, forward."""
  config = retriever.bert
  size, sequences = config.hidden_size, int(np.count_nonzero(lengths))
  total = encoder_flops(config, lengths, first_only=retriever.pooling != "mean")
  if retriever.pooling == "pooler":
    total += 2 * sequences * size**2
  if retriever.projection_size is not None:
    total += 2 * sequences * size * retriever.projection_size
  return total


def _pair_flops(retriever: Retriever, batch: StepBatch) -> int:
  """Returns the operations of the inner products."""
  size = retriever.vector_size
  match batch:
    case batches.InverseClozeBatch(removed=removed):
      return 2 * len(removed) ** 2 * size
    case batches.PretrainingBatch(block_index=index):
      return 2 * index.size * size
    case batches.OpenQaBatch(retrieved=batches.StoredVectors(vectors=vectors)):
      return 2 * vectors.size
  return 0


def _head_flops(
  models: Models, batch: StepBatch, joint: Int[np.ndarray, " n"]
) -> int:
  """Returns the operations of the reader's head."""
  reader = models.require_reader()
  size = reader.bert.hidden_size
  match batch:
    case (
      batches.PretrainingBatch(masks=masks) | batches.ReadingBatch(masks=masks)
    ):
      queries, num_masks = masks.positions.shape
      candidates = 1
      if isinstance(batch, batches.PretrainingBatch):
        candidates = batch.block_index.shape[1]
      vocabulary = reader.bert.vocab_size or 0
      positions = queries * candidates * num_masks
      return 2 * positions * size * (size + vocabulary)
  return 2 * int(joint.sum()) * size * 2 * reader.span_size
