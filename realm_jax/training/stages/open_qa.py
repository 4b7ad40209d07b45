"""Open QA: fine-tuning on questions whose answers are spans of blocks."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.answers.spans import TokenSpans, find_token_spans
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch, QuestionAnswers
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.packing import TokenSequences
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import relevance
from realm_jax.objectives.open_qa import open_qa_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import NonNegativeInt, OfRun, PositiveInt
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.retrieval import Retrieval, take_candidates
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


class OpenQaBatch(NamedTuple):
  """Questions, the retrieved blocks, and where the answers are in them.

  Attributes:
    query: Questions.
    retrieved: Inputs of the retriever's scores of the n blocks: their vectors
      in the snapshot, or scores of an index without vectors, such as BM25. If
      the devices hold the vectors, the host puts rows here (see
      `StageContext.vectors`).
    blocks: Tokens of the best k blocks, for the reader or, before that, for the
      cross-encoder that reorders them.
    has_answer: Whether each of the n blocks contains an answer.
    is_answer: Whether the span of a start and a width is an answer.
  """

  query: Int[AnyArray, "b q"]
  retrieved: (
    Float[AnyArray, "b n d"] | Float[AnyArray, "b n"] | Int[AnyArray, "b n"]
  )
  blocks: Int[AnyArray, "b k l"]
  has_answer: Bool[AnyArray, "b n"]
  is_answer: Bool[AnyArray, "b k l w"]


@dataclasses.dataclass(frozen=True)
class OpenQa(Stage):
  """Fine-tuning on questions, as in ORQA; there is no null block.

  The retriever learns from `num_searched_blocks`, scored with the snapshot's
  stored vectors, and the reader from the best `num_read`. For the retriever, a
  block contains an answer if the answer's characters occur in its text or, for
  a regular expression, if it matches there. The reader learns from spans with
  the answer's tokens, or from the tokens that a match covers.

  Attributes:
    num_searched_blocks: Number of blocks in the retriever's loss; a smaller
      corpus is searched whole.
    num_read: Number of the best blocks that the reader reads.
    rerank_depth: Number of the best blocks from which a frozen cross-encoder,
      the component `reranker` of the initial checkpoint, chooses `num_read`.
      The loss still uses the retriever's scores. 0 disables reranking.
    index_scores: Whether a block's score is the index's score times a trainable
      scale, for an index without vectors (BM25).
    initial_scale: Initial value of the scale.
    current_queries: Whether questions are embedded for the search with the
      current parameters instead of the snapshot's query tower.
    hard_em: Whether the reader learns only from the correct span that is
      currently most likely, instead of all correct spans (Min et al. 2019).
    read_gold: Whether the reader gets blocks that contain an answer first: an
      upper bound for a better retriever.
  """

  num_searched_blocks: PositiveInt = 5000
  num_read: Annotated[PositiveInt, OfRun()] = 5
  rerank_depth: Annotated[NonNegativeInt, OfRun()] = 0
  index_scores: Annotated[bool, OfRun()] = False
  initial_scale: float = 0.1
  current_queries: bool = True
  hard_em: bool = False
  read_gold: bool = False
  needs_answers = True
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    if 0 < self.rerank_depth < self.num_read:
      raise RealmError(
        f"RERANK_DEPTH={self.rerank_depth} with NUM_READ={self.num_read}; want "
        "RERANK_DEPTH=0, or at least NUM_READ blocks to choose from"
      )

  @property
  def components(self) -> tuple[str, ...]:
    reranker = (RERANKER,) if self.rerank_depth else ()
    return (*super().components, *reranker)

  @property
  def frozen(self) -> tuple[str, ...]:
    return (RERANKER,) if self.rerank_depth else ()

  @property
  def retrieval(self) -> Retrieval:
    return Retrieval(
      max(self.num_searched_blocks, self.num_candidates),
      setting="RERANK_DEPTH" if self.rerank_depth else "NUM_READ",
      num_required=self.num_candidates,
      current_queries=self.current_queries,
      reads="scores" if self.index_scores else "vectors",
    )

  @property
  def num_candidates(self) -> int:
    return max(self.num_read, self.rerank_depth)

  def init(
    self,
    components: Components,
    query_length: int,
    block_length: int,
    key: jax.Array,
  ) -> Params:
    params = super().init(components, query_length, block_length, key)
    if self.index_scores:
      params["retriever"] = {"scale": jnp.float32(self.initial_scale)}
    return params

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    assert context.answers is not None
    questions = batch.answers
    contained = map(context.answers.contained, questions, found.rows)
    has_answer = np.stack([*contained])
    recall = has_answer[:, :5].any(axis=1).mean()
    preferred = has_answer if self.read_gold else None
    positions = context.candidate_positions(
      self.retrieval, batch, found.rows, preferred
    )
    rows, scores, has_answer = (
      np.take_along_axis(array, positions, axis=1)
      for array in (found.rows, found.scores, has_answer)
    )
    # Only the blocks that are read are loaded from disk.
    read = rows[:, : self.num_candidates]
    features = OpenQaBatch(
      batch.arrays["query"],
      scores if self.index_scores else context.vectors(rows),
      context.gather(read),
      has_answer,
      answer_spans(questions, read, context),
    )
    return features, {"recall_at_5": float(recall)}

  def dummy_batch(self, shapes: ExampleArrays) -> OpenQaBatch:
    searched, components = shapes.num_searched, shapes.components
    scored: tuple[int, ...] = (len(shapes.query), searched)
    if not self.index_scores:
      scored = (*scored, components.retriever.vector_size)
    spans = (*shapes.candidates.shape, components.span_reader.max_answer_width)
    return OpenQaBatch(
      query=shapes.query,
      retrieved=np.zeros(scored, np.float32),
      blocks=shapes.candidates,
      has_answer=np.zeros(scored[:2], bool),
      is_answer=np.zeros(spans, bool),
    )

  def rerank(self, encoders: Encoders, batch: OpenQaBatch) -> OpenQaBatch:
    """Reorders the blocks by the cross-encoder, and keeps the best to read."""
    if not self.rerank_depth:
      return batch
    scores = encoders.pair_scores(
      batch.query, batch.blocks, at_once=self.num_read
    )
    order = jnp.argsort(-scores, axis=1, stable=True)
    rest = jnp.arange(order.shape[1], batch.has_answer.shape[1])
    rest = jnp.broadcast_to(rest, (len(order), len(rest)))
    whole = jnp.concatenate([order, rest], axis=1)
    best = order[:, : self.num_read]
    return batch._replace(
      retrieved=take_candidates(batch.retrieved, whole),
      has_answer=take_candidates(batch.has_answer, whole),
      blocks=take_candidates(batch.blocks, best),
      is_answer=take_candidates(batch.is_answer, best),
    )

  def inputs(self, components: Components, batch: OpenQaBatch) -> EncoderInputs:
    # Blocks are reranked by now, unless only their lengths are wanted.
    blocks = batch.blocks[:, : self.num_read]
    read = components.token_reader.join(batch.query, blocks)
    queries = None
    if not self.index_scores:
      query = components.retriever.query_input(batch.query)
      queries = TokenSequences(query)
    return EncoderInputs(queries, reader=read)

  def loss(
    self, encoders: Encoders, batch: OpenQaBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns ORQA's loss, from stored vectors or from the index's scores.

    Stored vectors stay fixed; only the query tower is trained. With
    `index_scores`, `scale` is the retriever's only parameter.
    """
    retrieved = jnp.asarray(batch.retrieved)
    if self.index_scores:
      scores = encoders.params["retriever"]["scale"] * retrieved
    else:
      queries = encoders.apply(
        "retriever", inputs.queries, method="embed_queries"
      )
      scale = encoders.components.retriever.score_scale
      scores = relevance(queries, retrieved, score_scale=scale)
    spans = encoders.apply(
      "reader",
      inputs.reader,
      num_starts=batch.blocks.shape[-1],
      method="spans",
    )
    return open_qa_loss(
      scores,
      batch.has_answer,
      spans.logits,
      spans.is_span,
      batch.is_answer,
      hard_em=self.hard_em,
    )


def answer_spans(
  questions: Sequence[QuestionAnswers],
  rows: Int[np.ndarray, "b k"],
  context: StageContext,
) -> Bool[np.ndarray, "b k l w"]:
  """Returns whether the span at a start and of a width is an answer."""
  assert context.answers is not None
  width = context.components.span_reader.max_answer_width
  length = context.block_length
  is_answer = np.zeros((*rows.shape, length, width), bool)
  for query, question in enumerate(questions):
    spans = _spans(context.answers, question, rows[query])
    fits = (spans.start < length) & (spans.width <= width)
    is_answer[
      query, spans.block[fits], spans.start[fits], spans.width[fits] - 1
    ] = True
  return is_answer


def _spans(
  answers: AnswersInBlocks,
  question: QuestionAnswers,
  rows: Int[np.ndarray, " k"],
) -> TokenSpans:
  """Returns the token spans of a question's answers in the blocks to read."""
  if question.kind == "string":
    flat, offsets = answers.corpus.body_tokens_flat(rows)
    return find_token_spans(flat, offsets, question.tokens)
  spans = [
    (block, start, limit - start)
    for block, row in enumerate(rows.tolist())
    for start, limit in answers.pattern_spans(sorted(question.patterns), row)
  ]
  return TokenSpans(*np.array(spans, np.int64).reshape(-1, 3).T)
