"""Answers to questions: retrieve blocks, read them, find the best span."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.queries import batches_of, encode_queries
from realm_jax.evaluation.ranking import BlockRanker, Ranking
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.loading import Generation
from realm_jax.indexes.protocol import SearchError
from realm_jax.indexes.random import RandomConfig
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.partitioning import sharding
from realm_jax.settings import PositiveInt, require_valid
from realm_jax.text.answer_spans import widen_to_words
from realm_jax.text.answers import normalize_answer
from realm_jax.training.stages.open_qa import OpenQa


@dataclasses.dataclass(frozen=True)
class AnsweringConfig:
  """Which blocks are retrieved for a question, and how many are read.

  Attributes:
    candidates: "index"; "random" for the control that reads random blocks; or
      "gold" for a bound that reads first, of the retrieved blocks, those that
      contain an answer. It takes questions whose answers are known.
    index_scores: Whether the run was trained on the index's own scores (BM25).
    num_searched: Number of blocks retrieved, over which p(z|x) is normalized.
    num_read: Number of the best blocks that the reader reads.
    num_spans: Number of the best spans that are grouped into answers.
    rank_answers_by: "best_span", as in Google's released code, or
      "probability", which sums over all blocks and spans that give an answer,
      as the paper does (equation 1). The probabilities are those of training:
      one softmax over the spans of all blocks that are read.
  """

  candidates: Literal["index", "random", "gold"] = "index"
  index_scores: bool = False
  num_searched: PositiveInt = 20
  num_read: PositiveInt = 5
  num_spans: PositiveInt = 1
  rank_answers_by: Literal["best_span", "probability"] = "best_span"

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer and its place in the corpus.

  Attributes:
    text: Answer as the block spells it.
    row: Row of its block in the corpus.
    start_byte: Offset of its first byte in the block's body, in UTF-8.
    limit_byte: Offset after its last byte.
    score: Score of its best span: the reader's plus the block's.
    probability: Probability of all spans that give this answer.
  """

  text: str
  row: int
  start_byte: int
  limit_byte: int
  score: float
  probability: float


@dataclasses.dataclass(frozen=True)
class Answered:
  """The answers of one question.

  Attributes:
    answers: Answers that differ once normalized, best first. Empty if the
      blocks that were read contain no span.
    ranking: Retrieved blocks, as arrays [k].
  """

  answers: Sequence[Answer]
  ranking: Ranking

  @property
  def prediction(self) -> str:
    """Text of the best answer; empty if there is none."""
    return self.answers[0].text if self.answers else ""


class Answerer:
  """Answers questions with one checkpoint and one generation.

  A span's score is the sum of the reader's and the block's, and the spans of
  all blocks read compete, as in Google's released ORQA. The configuration says
  whether the best answer has the best span or the largest probability.

  Raises:
    SearchError: More blocks are to be read than are retrieved.
  """

  def __init__(
    self, model: TrainedModel, generation: Generation, config: AnsweringConfig
  ):
    self.model = model
    self.generation = generation
    self.corpus = generation.corpus
    self.config = config
    self._ranker = BlockRanker(
      model,
      generation,
      num_searched=config.num_searched,
      index_scores=config.index_scores,
    )
    self.num_searched = self._ranker.num_searched
    if not 1 <= config.num_read <= self.num_searched:
      raise SearchError(
        f"num_read={config.num_read} of num_searched={self.num_searched} "
        f"blocks; choose NUM_READ from 1 to {self.num_searched}, or raise "
        f"NUM_SEARCHED (the corpus has {generation.num_blocks} blocks)"
      )
    reader = model.models.require_reader()
    self._spans_shape = (
      config.num_read,
      model.source.block_length,
      reader.max_answer_width,
    )
    num_spans = min(config.num_spans, int(np.prod(self._spans_shape)))
    self._read = sharding.jit_on_mesh(
      best_spans,
      reader,
      num_spans,
      mesh=model.mesh,
      out_shardings=sharding.batch_sharding(model.mesh),
    )

  def ask(self, question: str) -> Answered:
    """Answers one question.

    Raises:
      ValueError: The question has no words, or the blocks to read depend on
        its answers.
    """
    if self.config.candidates == "gold":
      raise ValueError(
        'CANDIDATES = "gold" reads the blocks that contain an answer, which is '
        "not known here; it is for `realm_jax.evaluate`"
      )
    queries = encode_queries(
      [question], self.corpus.vocabulary, self.model.source.query_length
    )
    ((batch, _),) = batches_of(queries)
    return self.answer(batch, num_questions=1)[0]

  def answer(
    self, token_ids: Int32[np.ndarray, "b q"], *, num_questions: int
  ) -> list[Answered]:
    """Answers a batch from the best blocks of its ranking.

    The first `num_questions` rows are no padding. The number of rows must be a
    multiple of the number of devices.
    """
    ranking = self.rank(token_ids)
    places = np.tile(np.arange(self.config.num_read), (len(token_ids), 1))
    return self.read(
      token_ids, ranking, places=places, num_questions=num_questions
    )

  def rank(self, token_ids: Int32[np.ndarray, "b q"]) -> Ranking:
    """Retrieves the blocks of a batch, best first."""
    return self._ranker.rank(token_ids)

  def read(
    self,
    token_ids: Int32[np.ndarray, "b q"],
    ranking: Ranking,
    *,
    places: Int[np.ndarray, "b r"],
    num_questions: int,
  ) -> list[Answered]:
    """Answers a batch from the blocks at `places` of its ranking.

    As many are read for each question as the configuration says.
    """
    rows = np.take_along_axis(ranking.rows, places, axis=1)
    batch = sharding.to_devices(
      {
        "query": token_ids,
        "candidates": self.corpus.gather(rows, self.model.source.block_length),
        "scores": np.take_along_axis(ranking.scores, places, axis=1),
      },
      self.model.mesh,
    )
    spans, scores, probabilities = map(
      np.asarray, self._read(self.model.params["reader"], **batch)
    )
    return [
      Answered(
        self._group(rows[i], spans[i], scores[i], probabilities[i]),
        ranking.of_query(i),
      )
      for i in range(num_questions)
    ]

  def _group(
    self,
    rows: Int32[np.ndarray, " k"],
    spans: Int[np.ndarray, " n"],
    scores: Float[np.ndarray, " n"],
    probabilities: Float[np.ndarray, " n"],
  ) -> list[Answer]:
    """Groups a question's best spans by the answer they give, best first."""
    block, start, extra_width = np.unravel_index(spans, self._spans_shape)
    answers: dict[str, Answer] = {}
    for j in np.flatnonzero(np.isfinite(scores)).tolist():
      answer = locate_answer(
        self.corpus,
        int(rows[block[j]]),
        start=int(start[j]),
        width=int(extra_width[j]) + 1,
        score=float(scores[j]),
        probability=float(probabilities[j]),
      )
      key = normalize_answer(answer.text)
      if key in answers:
        total = answers[key].probability + answer.probability
        answer = dataclasses.replace(answers[key], probability=total)
      answers[key] = answer
    found = list(answers.values())
    if self.config.rank_answers_by == "probability":
      found.sort(key=lambda answer: answer.probability, reverse=True)
    return found


def best_spans(
  reader: Reader,
  num_spans: int,
  params: Params,
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  scores: Float[Array, "b k"],
) -> tuple[Int[Array, "b n"], Float[Array, "b n"], Float[Array, "b n"]]:
  """Finds the n best spans of k blocks together.

  Google's and Hugging Face's readers choose the block of the best span and
  its place in the block separately. The result is the same unless spans of
  two blocks have exactly equal scores: their two choices may then belong to
  different spans, and this function takes the span of the first block.

  Returns:
    Indices into the flattened [k l w], scores (−∞ where there are fewer than
    n spans), and probabilities, which are the softmax over all spans.
  """
  token_ids, *bodies = reader.join(query, candidates)
  spans = reader.apply(
    {"params": params},
    sequences.padded(token_ids),
    *bodies,
    num_starts=candidates.shape[-1],
    method="spans",
  )
  totals = jnp.where(
    spans.is_span, spans.logits + scores[:, :, None, None], -jnp.inf
  ).reshape(len(query), -1)
  best, indices = jax.lax.top_k(totals, num_spans)
  log_total = jax.nn.logsumexp(totals, axis=-1, keepdims=True)
  return indices, best, jnp.exp(best - log_total)


def locate_answer(
  corpus: Corpus,
  row: int,
  *,
  start: int,
  width: int,
  score: float,
  probability: float,
) -> Answer:
  """Returns the answer of a span of body tokens, widened to whole words."""
  block = corpus.block(row)
  pieces = block.body_token_ids
  start, limit = widen_to_words(
    start, start + width, corpus.vocabulary.is_continuation[pieces]
  )
  ranges = block.byte_ranges
  return Answer(
    text=block.answer_text(start, limit),
    row=row,
    start_byte=int(ranges[start, 0]),
    limit_byte=int(ranges[limit - 1, 1]),
    score=score,
    probability=probability,
  )


def load_answerer(source: ModelSource, config: AnsweringConfig) -> Answerer:
  """Loads a checkpoint and its generation, to answer any number of questions.

  Raises:
    CheckpointError: The checkpoint is missing or does not fit.
    GenerationError: The generation is missing, damaged or of another corpus.
    SearchError: More blocks are to be read than are retrieved.
  """
  model = load_model(source, OpenQa(index_scores=config.index_scores))
  index = RandomConfig() if config.candidates == "random" else None
  return Answerer(model, open_generation(model, index=index), config)
