"""Stages with a cross-encoder: it is trained, or teaches the retriever."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
from realm_jax.training.stages.stage import Encoders


@dataclasses.dataclass(frozen=True)
class Reranking(Contrastive):
  """A cross-encoder scores a query's block above its negatives.

  These are given, or mined by the retriever, which stays as it is. There are
  none of other queries.

  Attributes:
    ranking: The loss: "listwise", a softmax over the query's blocks, "binary"
      or "pairwise" (`objectives/ranking.py`).
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
  """The retriever also learns the scores of a cross-encoder.

  The cross-encoder scores a query's own blocks, and stays as it is.

  Attributes:
    distillation: "kl", of softmaxes over the query's blocks, or "margin_mse".
    distillation_weight: Weight of that loss beside the contrastive one.
    teacher_temperature: Divisor of the cross-encoder's scores.
  """

  distillation: Distillation = "kl"
  distillation_weight: NonNegativeFloat = 1.0
  teacher_temperature: PositiveFloat = 1.0

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", RERANKER)

  @property
  def frozen(self) -> tuple[str, ...]:
    return (RERANKER,)

  def inputs(
    self, components: Components, batch: ContrastiveBatch
  ) -> EncoderInputs:
    read = components[RERANKER].join(batch.query, batch.blocks)
    return super().inputs(components, batch)._replace(reader=read)

  def embed(
    self, encoders: Encoders, inputs: EncoderInputs
  ) -> tuple[Array, ...]:
    """Returns the vectors, and the cross-encoder's scores."""
    queries, blocks = super().embed(encoders, inputs)
    scores = _scores(encoders, inputs, blocks.shape[1])
    return queries, blocks, jax.lax.stop_gradient(scores)

  def compare(
    self,
    components: Components,
    vectors: tuple[Array, ...],
    batch: ContrastiveBatch,
  ) -> WeightedLoss:
    """Returns the loss of the vectors of all examples."""
    queries, blocks, teacher = vectors
    found = super().compare(components, (queries, blocks), batch)
    scale = components.retriever.score_scale / self.temperature
    student = relevance(queries, blocks, score_scale=scale)
    distance = DISTILLATIONS[self.distillation](
      teacher / self.teacher_temperature, student, _differing(batch)
    )
    distilled = Average.of(distance)
    total = found.loss.total + self.distillation_weight * distilled.total
    return WeightedLoss(
      found.loss._replace(total=total),
      {**found.metrics, "distillation": distilled},
    )


def _scores(
  encoders: Encoders, inputs: EncoderInputs, count: int
) -> Float[Array, "b {count}"]:
  scores = encoders.apply(RERANKER, inputs.reader, method="scores")
  return scores.reshape(-1, count)


def _differing(batch: ContrastiveBatch) -> Array:
  """Returns which blocks are a query's own, or negatives of it."""
  is_negative = batch.hashes.negatives(shared=False)
  others = is_negative[:, len(batch.query) :]
  own = jnp.ones((len(batch.query), 1), bool)
  return jnp.concatenate([own, others], axis=1)
