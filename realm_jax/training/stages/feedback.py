"""Trains the retriever with clients' feedback on lists that it has served."""

import dataclasses
import functools
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import PRECISION, START_RETRIEVER
from realm_jax.objectives.feedback import (
  ServedLists,
  contrastive,
  divergence,
  pairwise,
  policy_gradient,
)
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import NonNegativeFloat, PositiveInt, Range
from realm_jax.training.encoder_inputs import (
  Candidates,
  EncoderInputs,
  retriever_inputs,
)
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)

FeedbackLoss = Literal["contrastive", "pairwise", "policy_gradient"]


class FeedbackBatch(NamedTuple):
  """Queries, the candidates of the served lists, and the lists."""

  query: Int[AnyArray, "b q"]
  candidates: Candidates
  lists: ServedLists


@dataclasses.dataclass(frozen=True)
class FeedbackLearning(Stage):
  """Learning from the rewards of a feedback log (`realm_jax/feedback`).

  The candidates of a list are the blocks that were retrieved when it was
  served. They are embedded again, with the text of the newest corpus version. A
  list is left out if one of its blocks is gone or has another text, if it is
  too long, or if it lacks the probability or the passage rewards that the loss
  needs; the metric `left_out` is the share of such lists.

  Attributes:
    feedback_loss: "policy_gradient" learns from lists whose order was drawn;
      "contrastive" and "pairwise" from lists with rewards for each passage
      (`objectives/feedback.py`).
    pool_size: Maximum number of candidates of a list.
    num_shown: Maximum number of candidates that were shown.
    clip_ratio: Upper bound of the importance ratios.
    start_weight: Weight of the divergence from the initial retriever, the
      component `start_retriever`, over the blocks of the whole batch, or of a
      micro-batch. 0 disables it.
  """

  feedback_loss: FeedbackLoss = "contrastive"
  pool_size: PositiveInt = 20
  num_shown: PositiveInt = 10
  clip_ratio: Annotated[float, Range(above=1)] = 4.0
  start_weight: NonNegativeFloat = 0.0
  evaluation = "gin/runs/eval_retrieval.gin"

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", *self.frozen)

  @property
  def frozen(self) -> tuple[str, ...]:
    return (START_RETRIEVER,) if self.start_weight else ()

  @property
  def num_candidates(self) -> int:
    return self.pool_size

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    del found
    ids, hashes = batch.array("pool_ids"), batch.array("pool_hashes")
    corpus = context.corpus
    rows, is_same = _rows_of(corpus, ids, hashes)
    if not is_same.all():
      # The service may use a newer version.
      corpus = _in_use(corpus.newest())
      rows, is_same = _rows_of(corpus, ids, hashes)
    temperature = batch.array("temperature")
    # Longer lists have been truncated.
    fits = batch.array("num_candidates") <= self.pool_size
    fits &= batch.array("num_shown") <= self.num_shown
    is_learned = is_same & fits & batch.is_real
    if self.feedback_loss == "policy_gradient":
      is_learned &= temperature > 0
    else:
      is_learned &= batch.array("is_of_passages") > 0
    # Only at the start, so that clients' requests cannot end the run later.
    is_first = batch.positions.min() < len(ids)
    if is_first and not is_learned.any():
      raise RealmError(self._reason(batch))
    lists = ServedLists(
      ids != 0,
      batch.array("pool_scores"),
      # In the batch, positions begin at 1, so that 0 is padding.
      np.where(fits[:, None], batch.array("shown") - 1, -1),
      np.where(temperature > 0, temperature, 1).astype(np.float32),
      batch.array("advantages"),
      batch.array("rewards"),
      is_learned.astype(np.float32),
    )
    candidates = Candidates.of(corpus.gather(rows, context.block_length))
    metrics = {
      "reward": float(batch.array("reward").mean()),
      "left_out": float(1 - is_learned.mean()),
    }
    return FeedbackBatch(batch.array("query"), candidates, lists), metrics

  def _reason(self, batch: Batch) -> str:
    """Explains why nothing can be learned from a batch."""
    for name, setting, limit in (
      ("num_candidates", "POOL_SIZE", self.pool_size),
      ("num_shown", "NUM_SHOWN", self.num_shown),
    ):
      if (least := batch.array(name).min()) > limit:
        return (
          f"{setting}={limit}, and the lists of the feedback log have {least} "
          f"or more; raise {setting}"
        )
    if self.feedback_loss == "policy_gradient":
      return (
        "no list of a batch was drawn, so that none has a probability; start "
        "`python -m realm_jax.serve` with --explore_temperature, or set "
        "FEEDBACK_LOSS = 'contrastive'"
      )
    if not batch.array("is_of_passages").any():
      return (
        f"FEEDBACK_LOSS={self.feedback_loss!r} learns from rewards of passages,"
        " and each list of a batch has one for all; send a list of rewards, or "
        "set FEEDBACK_LOSS = 'policy_gradient'"
      )
    return (
      "the lists of the feedback log have blocks that the corpus has no longer "
      "or not yet; give the corpus of the service as CORPUS_DIR"
    )

  def dummy_batch(self, shapes: ExampleArrays) -> FeedbackBatch:
    size, count = shapes.candidates.shape[:2]
    no_rewards = np.zeros((size, self.num_shown), np.float32)
    lists = ServedLists(
      np.ones((size, count), bool),
      np.zeros((size, count), np.float32),
      np.full(no_rewards.shape, -1, np.int32),
      np.ones(size, np.float32),
      *(no_rewards, no_rewards, np.ones(size, np.float32)),
    )
    return FeedbackBatch(shapes.query, Candidates.of(shapes.candidates), lists)

  def inputs(
    self, components: Components, batch: FeedbackBatch
  ) -> EncoderInputs:
    return retriever_inputs(components.retriever, batch.query, batch.candidates)

  def encoders(
    self, components: Components, params: Params, dropout_key: jax.Array | None
  ) -> Encoders:
    """Returns the components without dropout, as in the service."""
    del dropout_key
    return super().encoders(components, params, None)

  def loss(
    self, encoders: Encoders, batch: FeedbackBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the loss of the lists, with the divergence from the start."""
    lists, size = batch.lists, self.pool_size
    # Scores of all queries with all candidates of the batch.
    all_scores = _scores(encoders, inputs, "retriever")
    positions = np.arange(len(all_scores))[:, None] * size + np.arange(size)
    scores = jnp.take_along_axis(all_scores, positions, axis=1)
    if self.feedback_loss == "contrastive":
      losses, weights, metrics = contrastive(
        all_scores, batch.candidates.dropout_ids, lists
      )
    elif self.feedback_loss == "pairwise":
      losses, weights, metrics = pairwise(scores, lists)
    else:
      losses, weights, metrics = policy_gradient(
        scores, lists, clip_ratio=self.clip_ratio
      )
    if self.start_weight:
      start = _scores(encoders, inputs, START_RETRIEVER)
      kept = divergence(all_scores, start, lists)
      losses += self.start_weight * kept
      metrics["start_divergence"] = Average.of(kept, weights)
    return WeightedLoss(Average.of(losses, weights), metrics)


def _scores(
  encoders: Encoders, inputs: EncoderInputs, component: str
) -> Float[jax.Array, "b m"]:
  """Returns f(x, z) of each query with the candidates of all queries."""
  queries, blocks = encoders.candidate_vectors(inputs, component=component)
  scale = encoders.components[component].score_scale
  return scale * jnp.matmul(queries, blocks.T, precision=PRECISION)


def _rows_of(
  corpus: Corpus, ids: Int[np.ndarray, "b n"], hashes: Int[np.ndarray, "b n"]
) -> tuple[Int[np.ndarray, "b n"], Bool[np.ndarray, " b"]]:
  """Returns the rows of candidates, and which lists are complete."""
  rows = np.where(ids != 0, corpus.rows_of(ids), NULL_ROW)
  is_known = (rows != NULL_ROW) & (corpus.content_hashes[rows] == hashes)
  return rows, ((ids == 0) | is_known).all(axis=1)


@functools.lru_cache(maxsize=1)
def _in_use(corpus: Corpus) -> Corpus:
  """Caches a corpus, so that the next step does not open it again."""
  return corpus
