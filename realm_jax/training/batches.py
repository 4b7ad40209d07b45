"""The batches that the steps of the stages read: typed pytrees.

What an encoder reads is `TokenRows` while a batch is assembled on the host.
The packer lays it out as `Sequences`: rows that each hold one sequence (padded)
or several (packed). A step only ever sees `Sequences`. All arrays have the
global batch, or the sequences of the global batch, in front.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int, UInt32

from realm_jax.indexes import exact_search
from realm_jax.models.arrays import AnyArray
from realm_jax.models.packing import TokenRows
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences
from realm_jax.retrieval.device_candidates import BlockArrays, SearchedVectors

EncoderInput = Sequences | TokenRows


class MaskTargets(NamedTuple):
  """The masked tokens that are scored, and their positions in the query.

  `weights` are 1 for a mask and 0 for padding.
  """

  positions: Int[AnyArray, "b m"]
  token_ids: Int[AnyArray, "b m"]
  weights: Float[AnyArray, "b m"]


class SpanTargets(NamedTuple):
  """Where the masked words of each query stand in the blocks that are read.

  Attributes:
    body_start: Position of a block's body in its joint input.
    body_length: Number of body tokens in the joint input.
    is_answer: Whether the span of a start and a width is what is masked.
  """

  body_start: Int[AnyArray, "b k"]
  body_length: Int[AnyArray, "b k"]
  is_answer: Bool[AnyArray, "b k l w"]


class InverseClozeBatch(NamedTuple):
  """Sentences and, in the same order, the blocks that they come from.

  `removed` tells whether the sentence was removed from its block.
  """

  queries: EncoderInput
  blocks: EncoderInput
  removed: Bool[AnyArray, " b"]


class ReadingBatch(NamedTuple):
  """Masked sentences, each joined with its own block for the reader.

  `spans` is None unless the reader also learns to point.
  """

  joint: EncoderInput
  masks: MaskTargets
  spans: SpanTargets | None = None


class SpanSelectionBatch(NamedTuple):
  """Sentences that lack words, each joined with a text that has them.

  Attributes:
    joint: The b joint inputs of the reader.
    body_start: Position of the text's body in each joint input.
    body_length: Number of body tokens in each joint input.
    is_answer: Whether the span of a start and a width is what is missing.
  """

  joint: EncoderInput
  body_start: Int[AnyArray, "b 1"]
  body_length: Int[AnyArray, "b 1"]
  is_answer: Bool[AnyArray, "b 1 l w"]


class PretrainingBatch(NamedTuple):
  """Masked sentences with the null block and the retrieved blocks.

  Attributes:
    blocks: The distinct candidates of each group of rows (a group is the part
      of one device of the data axis), padded with empty sequences to b · k.
    block_index: Number of each candidate among the blocks of its group.
    joint: The b · k joint inputs of the reader, ordered by query.
    spans: Where the masked words are, if the reader also learns to point.
  """

  queries: EncoderInput
  blocks: EncoderInput
  block_index: Int[AnyArray, "b k"]
  joint: EncoderInput
  masks: MaskTargets
  spans: SpanTargets | None = None


class StoredVectors(NamedTuple):
  """Questions, and the retrieved blocks' vectors as the generation has them."""

  queries: EncoderInput
  vectors: Float[AnyArray, "b n d"]


class IndexScores(NamedTuple):
  """Retrieved blocks' scores by an index without vectors, such as BM25."""

  scores: Float[AnyArray, "b n"]


class OpenQaBatch(NamedTuple):
  """Questions, the retrieved blocks, and where the answers are in them.

  Attributes:
    retrieved: What the retriever's scores of the n blocks are computed from.
    joint: The b · k joint inputs of the reader, ordered by question.
    body_start: Position of the block's body in each joint input.
    body_length: Number of body tokens in each joint input.
    has_answer: Whether each of the n blocks contains an answer.
    is_answer: Whether the span of a start and a width is an answer.
  """

  retrieved: StoredVectors | IndexScores
  joint: EncoderInput
  body_start: Int[AnyArray, "b k"]
  body_length: Int[AnyArray, "b k"]
  has_answer: Bool[AnyArray, "b n"]
  is_answer: Bool[AnyArray, "b k l w"]


class UnretrievedBatch(NamedTuple):
  """Masked sentences whose candidates the step itself retrieves.

  Attributes:
    source_hashes: Content hash of each sentence's block, in two words.
  """

  query: Int[AnyArray, "b q"]
  source_hashes: UInt32[AnyArray, "b 2"]
  masks: MaskTargets


class Searched(NamedTuple):
  """What such a step searches: a generation or the run's own index.

  Attributes:
    query_params: Parameters of the query tower that embeds the queries; none
      if the current parameters do.
    vectors: Vectors of all blocks; None of a run that keeps its own index, for
      they are part of what its steps replace.
  """

  query_params: Params
  vectors: SearchedVectors | None
  blocks: BlockArrays


class RetrievingBatch(NamedTuple):
  """The arguments of a step that retrieves, and the settings of its search."""

  examples: UnretrievedBatch
  searched: Searched
  plan: exact_search.Plan


StepBatch = (
  InverseClozeBatch
  | ReadingBatch
  | SpanSelectionBatch
  | PretrainingBatch
  | OpenQaBatch
  | UnretrievedBatch
  | RetrievingBatch
)
