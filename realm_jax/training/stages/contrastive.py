"""Contrastive training of a retriever, on queries with judged passages."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch, QuestionAnswers
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.packing import TokenSequences
from realm_jax.models.retriever import shortened
from realm_jax.objectives.contrastive import BlockHashes, contrastive_loss
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import (
  NonNegativeFloat,
  NonNegativeInt,
  PositiveFloat,
  PositiveInt,
)
from realm_jax.training.encoder_inputs import EncoderInputs, to_words
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)

# Vectors of queries [b d] and of the blocks of each [b k d], and any additions
# of a stage.
_Vectors = tuple[Array, ...]


class ContrastiveBatch(NamedTuple):
  """Queries, each with its block and negatives.

  Attributes:
    blocks: The block of each query, then the task's negatives, then mined ones.
    hashes: Content hashes, to recognize copies of blocks.
    removed: Whether a sentence was removed from its block, in inverse cloze.
    negative_scores: A teacher's scores of the task's negatives, less its score
      of the query's block, for distillation.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b k l"]
  hashes: BlockHashes
  removed: Bool[AnyArray, " b"] | None = None
  negative_scores: Float[AnyArray, "b n"] | None = None


@dataclasses.dataclass(frozen=True)
class Contrastive(Stage):
  """A query learns to find its block among the blocks of the global batch.

  Blocks that the example lists as relevant, and their copies, are not among the
  query's negatives.

  Attributes:
    num_negatives: Number of the task's negatives for each query.
    num_hard_negatives: Number of blocks that are mined for each query from the
      current snapshot, with its query tower (ANCE, Xiong et al. 2020, arXiv
      2007.00808). Relevant blocks are excluded, and so are blocks that contain
      an answer, if the task has answers. With 0 there is no index.
    num_spare: Number of additional blocks to search for, to replace excluded
      ones.
    num_positives: Maximum number of known relevant blocks of a query.
    shared_negatives: Whether negatives of one query are negatives of all.
    temperature: Divisor of the scores, in addition to the retriever's
      `score_scale`.
    negative_margin: Negatives that score higher than the query's block less
      this number are left out; None keeps them.
    symmetric: Whether a block also has to find its query.
    vector_sizes: Smaller sizes to which vectors are also truncated for the
      loss, so that the first elements can be searched alone (Matryoshka,
      Kusupati et al. 2022, arXiv 2205.13147). The losses are added.
  """

  num_negatives: NonNegativeInt = 0
  num_hard_negatives: NonNegativeInt = 0
  num_spare: NonNegativeInt = 2
  num_positives: PositiveInt = 1
  shared_negatives: bool = True
  temperature: PositiveFloat = 1.0
  negative_margin: NonNegativeFloat | None = None
  symmetric: bool = False
  vector_sizes: Sequence[int] = ()
  evaluation = "gin/runs/eval_retrieval.gin"
  compares = True

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever",)

  @property
  def retrieval(self) -> Retrieval | None:
    if not self.num_hard_negatives:
      return None
    return Retrieval(
      self.num_hard_negatives,
      setting="NUM_HARD_NEGATIVES",
      num_spare=self.num_spare,
      drop_source=True,
      current_queries=False,
    )

  @property
  def num_candidates(self) -> int:
    return 1 + self.num_negatives + self.num_hard_negatives

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    size = len(batch.positions)
    sources = batch.array("source_hash").reshape(size, -1)
    blocks, hashes = [batch.array("block")[:, None]], [sources[:, :1]]
    is_block = [np.ones((size, 1), bool)]
    if self.num_negatives:
      negative_hashes = batch.array("negative_hashes")
      blocks.append(batch.array("negatives"))
      hashes.append(negative_hashes)
      is_block.append(negative_hashes != 0)
    if self.retrieval is not None and found is not None:
      has_answer = _has_answer(batch, found.rows, context)
      rows = context.candidate_rows(
        self.retrieval, batch, found.rows, dropped=has_answer
      )
      blocks.append(context.gather(rows))
      hashes.append(context.corpus.content_hashes[rows])
      is_block.append(rows != NULL_ROW)
    joined = BlockHashes(
      to_words(np.concatenate(hashes, axis=1)),
      to_words(sources),
      np.concatenate(is_block, axis=1),
    )
    tokens = np.concatenate(blocks, axis=1)
    return ContrastiveBatch(batch.array("query"), tokens, joined), {}

  def dummy_batch(self, shapes: ExampleArrays) -> ContrastiveBatch:
    size, count, _ = shapes.candidates.shape
    sources = np.zeros((size, self.num_positives, 2), np.uint32)
    hashes = BlockHashes(
      np.zeros((size, count, 2), np.uint32),
      sources,
      np.ones((size, count), bool),
    )
    return ContrastiveBatch(shapes.query, shapes.candidates, hashes)

  def inputs(
    self, components: Components, batch: ContrastiveBatch
  ) -> EncoderInputs:
    retriever, length = components.retriever, batch.blocks.shape[-1]
    if self.vector_sizes and max(self.vector_sizes) >= retriever.vector_size:
      raise RealmError(
        f"vector_sizes={self.vector_sizes}: vectors have "
        f"{retriever.vector_size} elements, and are always compared as a "
        "whole; list smaller sizes"
      )
    return EncoderInputs(
      queries=TokenSequences(retriever.query_input(batch.query)),
      blocks=TokenSequences(
        retriever.block_input(batch.blocks.reshape(-1, length))
      ),
    )

  def loss(
    self, encoders: Encoders, batch: ContrastiveBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    vectors = self.embed(encoders, inputs)
    return self.compare(encoders.components, vectors, batch)

  def embed(self, encoders: Encoders, inputs: EncoderInputs) -> _Vectors:
    """Returns the vectors of queries, and of the blocks of each."""
    queries, blocks = encoders.apply("retriever", inputs.queries, inputs.blocks)
    return queries, blocks.reshape(len(queries), -1, blocks.shape[-1])

  def compare(
    self, components: Components, vectors: _Vectors, batch: ContrastiveBatch
  ) -> WeightedLoss:
    """Returns the loss of the vectors of all examples."""
    retriever = components.retriever
    groups: Mapping[str, Bool[Array, " b"]] = {}
    if batch.removed is not None:
      removed = jnp.asarray(batch.removed)
      groups = {"removed": removed, "kept": ~removed}
    is_negative = batch.hashes.negatives(shared=self.shared_negatives)

    def loss_of(size: int | None) -> WeightedLoss:
      queries, blocks = (shortened(retriever, x, size) for x in vectors)
      return contrastive_loss(
        *(queries, blocks, is_negative),
        shared=self.shared_negatives,
        score_scale=retriever.score_scale / self.temperature,
        margin=self.negative_margin,
        symmetric=self.symmetric,
        groups=groups,
      )

    whole = loss_of(None)
    for size in self.vector_sizes:
      part = loss_of(size)
      total = whole.loss.total + part.loss.total
      accuracy = {f"accuracy_{size}": part.metrics["accuracy"]}
      whole = WeightedLoss(
        Average(total, whole.loss.weight), {**whole.metrics, **accuracy}
      )
    return whole


def _has_answer(
  batch: Batch, rows: Int[np.ndarray, "b n"], context: StageContext
) -> Bool[np.ndarray, "b n"]:
  """Returns which blocks contain an answer of their query, if it has any."""
  answers = batch.host.get("answers")
  if answers is None:
    return np.zeros(rows.shape, bool)
  search = AnswersInBlocks(context.corpus)
  texts = [[text.decode() for text in own if text] for own in answers]
  questions = [QuestionAnswers("string", own, ()) for own in texts]
  contained = map(search.contained, questions, rows)
  return np.stack([*contained])
