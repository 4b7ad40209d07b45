"""Open QA: a question, the retrieved blocks, and the spans of the best few."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from realm_jax.answers.distinct import QuestionAnswers
from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.answers.of_task import answers_of_batch
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.settings import Fraction, OfRun, PositiveInt, require_valid
from realm_jax.text.answer_spans import TokenSpans, find_token_spans
from realm_jax.training import stage_losses
from realm_jax.training.batches import IndexScores, OpenQaBatch, StoredVectors
from realm_jax.training.stages import protocol
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.renaming import renaming_of


@dataclasses.dataclass(frozen=True)
class OpenQa(protocol.Stage):
  """Fine-tuning on questions, as in ORQA; there is no null block.

  The retriever learns from `num_searched_blocks`, against the generation's
  stored vectors, and the reader from the best `num_read`. For the retriever, a
  block contains an answer whose characters occur in its text, or that is a
  regular expression and matches there. The reader learns from an answer's
  tokens, and from the token spans that matches cover.

  Attributes:
    num_searched_blocks: Number of blocks that the retriever's loss is over, or
      all blocks of a smaller corpus.
    num_read: Number of the best blocks that the reader reads.
    index_scores: Whether a block's score is the index's times a trainable
      scale, for an index without vectors (BM25).
    initial_scale: Initial value of that scale.
    max_answer_width: Width of the widest answer, in tokens, as in the reader.
    current_queries: Whether questions are embedded for the search with the
      current parameters instead of the generation's query tower.
    hard_em: Whether the reader learns from the correct span that is most likely
      now, instead of from all correct spans (Min et al. 2019).
    read_gold: Whether the reader reads, of the searched blocks, those first
      that contain an answer: a bound on what a better retriever would give.
    renamed_share: Share of the examples whose names are exchanged for the
      reader (`renaming`), so that it does not memorize answers.
  """

  num_searched_blocks: PositiveInt = 5000
  num_read: Annotated[PositiveInt, OfRun()] = 5
  index_scores: Annotated[bool, OfRun()] = False
  initial_scale: float = 0.1
  max_answer_width: PositiveInt = 10
  current_queries: bool = True
  hard_em: bool = False
  read_gold: bool = False
  renamed_share: Fraction = 0.0
  needs_index = True
  reads_vectors = True
  needs_answers = True

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def num_candidates(self) -> int:
    return self.num_read

  def init(
    self, models: Models, lengths: protocol.Lengths, key: jax.Array
  ) -> Params:
    params = super().init(models, lengths, key)
    if self.index_scores:
      params["retriever"] = {"scale": jnp.float32(self.initial_scale)}
    return params

  def loss(self, models: Models) -> stage_losses.Loss[OpenQaBatch]:
    reader = models.require_reader()
    width = self.max_answer_width
    if reader.max_answer_width != width:
      raise ValueError(
        f"Reader.max_answer_width={reader.max_answer_width}, but "
        f"OpenQa.max_answer_width={width}; bind both to the same"
      )
    return shared_partial(
      stage_losses.open_qa, models.retriever, reader, hard_em=self.hard_em
    )

  def num_searched(self, num_blocks: int) -> int:
    if self.num_read > num_blocks:
      raise ValueError(
        f"num_read={self.num_read} exceeds the corpus's {num_blocks} blocks; "
        "lower NUM_READ"
      )
    return min(max(self.num_searched_blocks, self.num_read), num_blocks)

  def assemble(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> protocol.Assembled:
    has_answer, is_answer = self._answers(batch, retrieved, context)
    recall = has_answer[:, :5].any(axis=1).mean()
    if self.read_gold:
      retrieved = _gold_first(retrieved, has_answer)
      has_answer, is_answer = self._answers(batch, retrieved, context)
    query, rows = batch.arrays["query"], retrieved.rows
    if self.index_scores:
      scored = IndexScores(retrieved.scores)
    else:
      assert context.generation is not None
      vectors = context.generation.vectors(rows)
      scored = StoredVectors(context.inputs.queries(query), vectors)
    candidates = context.gather(rows[:, : self.num_read])
    if self.renamed_share:
      query, candidates = self._renamed(batch, candidates, context.corpus)
    joint = context.inputs.joint(query, candidates)
    made = OpenQaBatch(scored, *joint, has_answer, is_answer)
    return made, {"recall_at_5": float(recall)}

  def _renamed(
    self, batch: Batch, candidates: Int[np.ndarray, "b k l"], corpus: Corpus
  ) -> tuple[Int[np.ndarray, "b q"], Int[np.ndarray, "b k l"]]:
    """Exchanges the names in a share of the examples."""
    renaming = renaming_of(corpus)
    query, candidates = batch.arrays["query"].copy(), candidates.copy()
    for row, position in enumerate(batch.positions.tolist()):
      generator = np.random.default_rng(position + 1)
      if generator.random() < self.renamed_share:
        new_ids = renaming.permutation(generator)
        query[row] = new_ids[query[row]]
        candidates[row] = new_ids[candidates[row]]
    return query, candidates

  def example(
    self, shapes: protocol.ExampleArrays, inputs: ModelInputs
  ) -> OpenQaBatch:
    blocks = (len(shapes.query), shapes.num_searched)
    if self.index_scores:
      scored = IndexScores(np.zeros(blocks, np.float32))
    else:
      size = inputs.models.retriever.vector_size
      vectors = np.zeros((*blocks, size), np.float32)
      scored = StoredVectors(inputs.queries(shapes.query), vectors)
    spans = (*shapes.candidates.shape, self.max_answer_width)
    return OpenQaBatch(
      scored,
      *inputs.joint(shapes.query, shapes.candidates),
      has_answer=np.zeros(blocks, bool),
      is_answer=np.zeros(spans, bool),
    )

  def _answers(
    self, batch: Batch, retrieved: SearchResult, context: protocol.StageContext
  ) -> tuple[Bool[np.ndarray, "b n"], Bool[np.ndarray, "b k l w"]]:
    """Returns which blocks contain an answer, and which spans are answers.

    Of the searched blocks, those that are read alone are taken from disk.
    """
    answers = context.answers
    assert answers is not None
    num_queries = len(retrieved.rows)
    width, length = self.max_answer_width, context.block_length
    has_answer = np.zeros(retrieved.rows.shape, bool)
    is_answer = np.zeros((num_queries, self.num_read, length, width), bool)
    for query, question in enumerate(answers_of_batch(batch)):
      rows = retrieved.rows[query]
      has_answer[query] = answers.contained(question, rows)
      spans = _spans(answers, question, rows[: self.num_read])
      fits = (spans.start < length) & (spans.width <= width)
      is_answer[
        query, spans.block[fits], spans.start[fits], spans.width[fits] - 1
      ] = True
    return has_answer, is_answer


def _gold_first(
  retrieved: SearchResult, has_answer: Bool[np.ndarray, "b n"]
) -> SearchResult:
  """Returns the same blocks, first those that contain an answer."""
  order = np.argsort(~has_answer, axis=1, kind="stable")
  return SearchResult(
    rows=np.take_along_axis(retrieved.rows, order, axis=1),
    scores=np.take_along_axis(retrieved.scores, order, axis=1),
  )


def _spans(
  answers: AnswersInBlocks,
  question: QuestionAnswers,
  rows: Int[np.ndarray, " k"],
) -> TokenSpans:
  """Returns the token spans of a question's answers in the blocks to read."""
  if question.kind == "string":
    flat, offsets = answers.corpus.body_tokens_flat(rows)
    return find_token_spans(flat, offsets, question.tokens)
  found = [
    (block, start, limit - start)
    for block, row in enumerate(rows.tolist())
    for start, limit in answers.pattern_spans(sorted(question.patterns), row)
  ]
  return TokenSpans(*np.array(found, np.int64).reshape(-1, 3).T)
