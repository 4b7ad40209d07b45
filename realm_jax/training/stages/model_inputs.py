"""What the encoders of a stage read, made on the host from padded arrays."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.models.arrays import AnyArray
from realm_jax.models.packing import TokenRows, content_numbers
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning.sharding import ONE_GROUP, RowGroups
from realm_jax.training.batches import MaskTargets, PretrainingBatch


class Models(NamedTuple):
  """The two modules of a run; inverse cloze has no reader."""

  retriever: Retriever
  reader: Reader | None

  def for_corpus(self, corpus: Corpus) -> "Models":
    """Returns the same models for the vocabulary of a corpus.

    Raises:
      ValueError: They are configured for another vocabulary.
    """
    words = corpus.vocabulary
    vocabulary = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
    return Models(
      self.retriever.for_vocabulary(**vocabulary),
      None if self.reader is None else self.reader.for_vocabulary(**vocabulary),
    )

  def require_reader(self) -> Reader:
    """Returns the reader; raises a ValueError where there is none."""
    if self.reader is None:
      raise ValueError("this stage trains a reader; bind TrainConfig.reader")
    return self.reader


class JointRows(NamedTuple):
  """Joint inputs of the reader, and where the bodies lie in them."""

  rows: TokenRows
  body_start: Int[np.ndarray, "b k"]
  body_length: Int[np.ndarray, "b k"]


@dataclasses.dataclass(frozen=True)
class ModelInputs:
  """Makes encoder inputs from padded queries and blocks.

  Attributes:
    models: Models of the run, for the vocabulary of its corpus.
    groups: Groups of rows that a batch has, and those of this process.
  """

  models: Models
  groups: RowGroups = ONE_GROUP

  def queries(self, query: Int[np.ndarray, "b q"]) -> TokenRows:
    """Returns what the query tower reads."""
    return self._numbered(self.models.retriever.query_input(query))

  def blocks(self, block: Int[np.ndarray, "b l"]) -> TokenRows:
    """Returns what the block tower reads, a sequence for each block."""
    return self._numbered(self.models.retriever.block_input(block))

  def distinct_blocks(
    self, candidates: Int[np.ndarray, "b k l"]
  ) -> tuple[TokenRows, Int[np.ndarray, "b k"]]:
    """Returns what the block tower reads, each distinct block once.

    Several queries may have the same candidate, above all the null block. A
    block gets the same number, and so the same dropout mask, wherever it is.

    Returns:
      Each group's distinct blocks, padded with empty sequences to the number
      of candidates, and the number of each candidate in its group.
    """
    blocks, index = _distinct(candidates, len(self.groups.own))
    is_block = blocks.any(axis=1, keepdims=True)
    # A block prefix must not turn padding into a sequence.
    tokens = np.asarray(self.models.retriever.block_input(blocks)) * is_block
    return TokenRows(tokens, content_numbers(tokens)), index

  def joint(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
  ) -> JointRows:
    """Returns what the reader reads, ordered by query."""
    joint = self.models.require_reader().join(query, candidates)
    return JointRows(
      self._numbered(joint.token_ids.reshape(-1, joint.token_ids.shape[-1])),
      np.asarray(joint.body_start, np.int32),
      np.asarray(joint.body_length, np.int32),
    )

  def pretraining(
    self,
    query: Int[np.ndarray, "b q"],
    candidates: Int[np.ndarray, "b k l"],
    masks: MaskTargets,
    *,
    joint: JointRows | None = None,
  ) -> PretrainingBatch:
    """Returns a batch of pre-training, for which `joint` may be made before."""
    blocks, block_index = self.distinct_blocks(candidates)
    if joint is None:
      joint = self.joint(query, candidates)
    return PretrainingBatch(
      queries=self.queries(query),
      blocks=blocks,
      block_index=block_index,
      joint=joint.rows,
      masks=masks,
    )

  def _numbered(self, token_ids: Int[AnyArray, "n l"]) -> TokenRows:
    # Sequences are numbered over the batches of all processes.
    total = len(token_ids) // len(self.groups.own) * self.groups.count
    numbers = self.groups.own_rows(total).astype(np.uint32)
    return TokenRows(np.asarray(token_ids), numbers)


def _distinct(
  candidates: Int[np.ndarray, "b k l"], groups: int
) -> tuple[Int[np.ndarray, "n l"], Int[np.ndarray, "b k"]]:
  """Returns each group's distinct blocks, and each candidate's number there."""
  batch, num_candidates, length = candidates.shape
  blocks = np.zeros(
    (groups, batch // groups * num_candidates, length), np.int32
  )
  index = np.zeros((batch, num_candidates), np.int32)
  for group in range(groups):
    known: dict[bytes, int] = {}
    rows = slice(group * batch // groups, (group + 1) * batch // groups)
    flat = candidates[rows].reshape(-1, length)
    numbers = [known.setdefault(row.tobytes(), len(known)) for row in flat]
    index[rows] = np.reshape(numbers, (-1, num_candidates))
    blocks[group, numbers] = flat
  return blocks.reshape(-1, length), index
