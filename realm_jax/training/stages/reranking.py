"""Training of a cross-encoder, and distillation of a teacher."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.retriever import relevance
from realm_jax.objectives.ranking import (
  DISTILLATIONS,
  RANKINGS,
  Distillation,
  Ranking,
)
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import NonNegativeFloat, PositiveFloat
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.stages.contrastive import Contrastive, ContrastiveBatch
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  StageContext,
)


@dataclasses.dataclass(frozen=True)
class Reranking(Contrastive):
  """A cross-encoder learns to score a query's block above its negatives.

  Negatives come with the task, or are mined by the frozen retriever. Blocks of
  other queries are not used.

  Attributes:
    ranking: Loss: "listwise", a softmax over the query's blocks, "binary" or
      "pairwise" (`objectives/ranking.py`).
  """

  ranking: Ranking = "listwise"
  compares = False

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", RERANKER)

  @property
  def frozen(self) -> tuple[str, ...]:
    return ("retriever",)

  def inputs(
    self, components: Components, batch: ContrastiveBatch
  ) -> EncoderInputs:
    read = components[RERANKER].join(batch.query, batch.blocks)
    return EncoderInputs(reader=read)

  def loss(
    self, encoders: Encoders, batch: ContrastiveBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    scores = _scores(encoders, inputs, batch.blocks.shape[1])
    is_block = _differing(batch)
    losses = RANKINGS[self.ranking](scores, is_block)
    others = jnp.where(is_block[:, 1:], scores[:, 1:], -jnp.inf)
    correct = (scores[:, :1] > others).all(axis=1)
    return WeightedLoss(Average.of(losses), {"accuracy": Average.of(correct)})


@dataclasses.dataclass(frozen=True)
class Distilled(Contrastive):
  """The retriever also learns the scores of a teacher.

  The teacher scores a query's own blocks. It is a frozen cross-encoder, or a
  task with scores, such as `scored_passages`; mined negatives then have no
  scores.

  Attributes:
    teacher: Teacher, the component `reranker` or the `task`.
    distillation: Loss: "kl", of softmaxes over the query's blocks, or
      "margin_mse".
    distillation_weight: Weight of this loss, added to the contrastive one.
    teacher_temperature: Divisor of the teacher's scores.
  """

  teacher: Literal["reranker", "task"] = "reranker"
  distillation: Distillation = "kl"
  distillation_weight: NonNegativeFloat = 1.0
  teacher_temperature: PositiveFloat = 1.0

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.teacher == "task" and not self.num_negatives:
      raise RealmError(
        "TEACHER='task' has scores of the negatives that the task gives; raise "
        "NUM_NEGATIVES=0"
      )

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", *self.frozen)

  @property
  def frozen(self) -> tuple[str, ...]:
    return (RERANKER,) if self.teacher == "reranker" else ()

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    features, metrics = super().features(batch, found, context)
    if self.teacher == "task":
      features = features._replace(
        negative_scores=batch.array("negative_scores")
      )
    return features, metrics

  def dummy_batch(self, shapes: ExampleArrays) -> ContrastiveBatch:
    dummy = super().dummy_batch(shapes)
    if self.teacher == "task":
      scores = np.zeros((len(dummy.query), self.num_negatives), np.float32)
      dummy = dummy._replace(negative_scores=scores)
    return dummy

  def inputs(
    self, components: Components, batch: ContrastiveBatch
  ) -> EncoderInputs:
    inputs = super().inputs(components, batch)
    if self.teacher == "task":
      return inputs
    read = components[RERANKER].join(batch.query, batch.blocks)
    return inputs._replace(reader=read)

  def embed(
    self, encoders: Encoders, inputs: EncoderInputs
  ) -> tuple[Array, ...]:
    """Returns the vectors, and the scores of a cross-encoder as teacher."""
    queries, blocks = super().embed(encoders, inputs)
    if self.teacher == "task":
      return queries, blocks
    scores = _scores(encoders, inputs, blocks.shape[1])
    return queries, blocks, jax.lax.stop_gradient(scores)

  def compare(
    self,
    components: Components,
    vectors: tuple[Array, ...],
    batch: ContrastiveBatch,
  ) -> WeightedLoss:
    """Returns the loss of the vectors of all examples."""
    if self.teacher == "task":
      assert batch.negative_scores is not None
      scores = jnp.pad(jnp.asarray(batch.negative_scores), ((0, 0), (1, 0)))
      vectors = *vectors, scores
    queries, blocks, teacher = vectors
    weighted = super().compare(components, (queries, blocks), batch)
    scale = components.retriever.score_scale / self.temperature
    student = relevance(queries, blocks, score_scale=scale)
    # The task has no scores of mined blocks, which come last.
    count = teacher.shape[1]
    distance = DISTILLATIONS[self.distillation](
      teacher / self.teacher_temperature,
      student[:, :count],
      _differing(batch)[:, :count],
    )
    distilled = Average.of(distance)
    total = weighted.loss.total + self.distillation_weight * distilled.total
    return WeightedLoss(
      weighted.loss._replace(total=total),
      {**weighted.metrics, "distillation": distilled},
    )


def _scores(
  encoders: Encoders, inputs: EncoderInputs, count: int
) -> Float[Array, "b {count}"]:
  scores = encoders.apply(RERANKER, inputs.reader, method="scores")
  return scores.reshape(-1, count)


def _differing(batch: ContrastiveBatch) -> Array:
  """Returns the mask of a query's own block and its valid negatives."""
  is_negative = batch.hashes.negatives(shared=False)
  others = is_negative[:, len(batch.query) :]
  own_block = jnp.ones((len(batch.query), 1), bool)
  return jnp.concatenate([own_block, others], axis=1)
