"""One step of each stage and the update that all share: the numeric core.

A stage's loss returns weighted sums over the batch, which micro-batches can
add (`realm_jax/objectives/weighted.py`). The step differentiates their mean.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.models.sequences import Sequences
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.batches import (
  IndexScores,
  InverseClozeBatch,
  OpenQaBatch,
  PretrainingBatch,
  ReadingBatch,
)
from realm_jax.training.state import TrainState

B = TypeVar("B")
Metrics = dict[str, jax.Array]


# The loss of a stage, from the parameters by component, the batch and the key
# of the dropout masks, which is None without dropout.
Loss = Callable[[Params, B, jax.Array | None], WeightedLoss]


def embed_candidates(
  retriever: Retriever,
  params: Params,
  batch: PretrainingBatch,
  dropout_key: jax.Array | None,
) -> tuple[Float[Array, "b d"], Float[Array, "b k d"]]:
  """Embeds the queries of a batch and their candidates."""
  queries, blocks = retriever.apply(
    {"params": params}, batch.queries, batch.blocks, **_mode(dropout_key)
  )
  assert isinstance(batch.blocks, Sequences)
  # A group's candidates are among its own blocks.
  groups = len(batch.blocks.starts)
  index = batch.block_index
  candidates = jnp.take_along_axis(
    blocks.reshape(groups, -1, blocks.shape[-1]),
    jnp.asarray(index).reshape(groups, -1, 1),
    axis=1,
  )
  return queries, candidates.reshape(*index.shape, -1)


def read_masks(
  reader: Reader,
  params: Params,
  batch: PretrainingBatch | ReadingBatch,
  dropout_key: jax.Array | None,
) -> Float[Array, "b k m v"]:
  """Returns the reader's logits of the masked tokens, for each candidate."""
  return reader.apply(
    {"params": params},
    batch.joint,
    batch.masks.positions,
    method="masked_lm",
    **_mode(dropout_key),
  )


def _mode(
  dropout_key: jax.Array | None,
) -> dict[str, bool | dict[str, jax.Array]]:
  """Returns the arguments of `apply` that turn dropout on or off."""
  if dropout_key is None:
    return {"train": False}
  return {"train": True, "rngs": {"dropout": dropout_key}}


def _split(
  dropout_key: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns keys for the retriever and for the reader."""
  if dropout_key is None:
    return None, None
  retriever_key, reader_key = jax.random.split(dropout_key)
  return retriever_key, reader_key


def inverse_cloze(retriever: Retriever) -> Loss[InverseClozeBatch]:
  """Returns the loss of inverse cloze.

  Its negatives are all blocks of the global batch, so it cannot be split into
  micro-batches.
  """

  def loss(
    params: Params,
    batch: InverseClozeBatch,
    dropout_key: jax.Array | None = None,
  ) -> WeightedLoss:
    queries, blocks = retriever.apply(
      {"params": params["retriever"]},
      batch.queries,
      batch.blocks,
      **_mode(dropout_key),
    )
    return inverse_cloze_loss(
      queries, blocks, batch.removed, score_scale=retriever.score_scale
    )

  return loss


def pretraining(
  retriever: Retriever, reader: Reader, *, form: str = "per_token"
) -> Loss[PretrainingBatch]:
  """Returns REALM's loss (section 3.1).

  Queries and candidates are embedded with the current parameters.
  """

  def loss(
    params: Params,
    batch: PretrainingBatch,
    dropout_key: jax.Array | None = None,
  ) -> WeightedLoss:
    retriever_key, reader_key = _split(dropout_key)
    queries, candidates = embed_candidates(
      retriever, params["retriever"], batch, retriever_key
    )
    logits = read_masks(reader, params["reader"], batch, reader_key)
    return marginal_masked_lm_loss(
      relevance(queries, candidates, score_scale=retriever.score_scale),
      logits,
      batch.masks.token_ids,
      batch.masks.weights,
      form=form,
    )

  return loss


def reading(reader: Reader) -> Loss[ReadingBatch]:
  """Returns the masked-LM loss given one block; nothing is retrieved."""

  def loss(
    params: Params,
    batch: ReadingBatch,
    dropout_key: jax.Array | None = None,
  ) -> WeightedLoss:
    logits = read_masks(reader, params["reader"], batch, dropout_key)
    masked_lm = marginal_masked_lm_loss(
      jnp.zeros(logits.shape[:2]),
      logits,
      batch.masks.token_ids,
      batch.masks.weights,
    )
    metrics = {"masked_accuracy": masked_lm.metrics["masked_accuracy"]}
    return masked_lm._replace(metrics=metrics)

  return loss


def open_qa(retriever: Retriever, reader: Reader) -> Loss[OpenQaBatch]:
  """Returns ORQA's loss, over stored vectors or over scores of an index.

  With `StoredVectors` the query tower is trained against vectors that stay
  fixed. With `IndexScores` (BM25 has no vectors) a block's score is `scale`
  times the index's, and `scale` is the only parameter of the retriever.
  """

  def scores_of(
    params: Params, batch: OpenQaBatch, dropout_key: jax.Array | None
  ) -> Float[Array, "b n"]:
    retrieved = batch.retrieved
    if isinstance(retrieved, IndexScores):
      return params["scale"] * retrieved.scores
    queries = retriever.apply(
      {"params": params},
      retrieved.queries,
      method="embed_queries",
      **_mode(dropout_key),
    )
    return relevance(
      queries, retrieved.vectors, score_scale=retriever.score_scale
    )

  def loss(
    params: Params,
    batch: OpenQaBatch,
    dropout_key: jax.Array | None = None,
  ) -> WeightedLoss:
    retriever_key, reader_key = _split(dropout_key)
    scores = scores_of(params["retriever"], batch, retriever_key)
    spans = reader.apply(
      {"params": params["reader"]},
      batch.joint,
      batch.body_start,
      batch.body_length,
      num_starts=batch.is_answer.shape[2],
      method="spans",
      **_mode(reader_key),
    )
    return open_qa_loss(
      scores, batch.has_answer, spans.logits, spans.is_span, batch.is_answer
    )

  return loss


def train_step(
  state: TrainState,
  batch: B,
  *,
  loss: Loss[B],
  optimizer: optax.GradientTransformation,
  seed: int,
  freeze_retriever: bool = False,
) -> tuple[TrainState, Metrics]:
  """Computes the gradient of one batch and updates the parameters.

  Args:
    state: State before the step; the loop donates it.
    batch: Batch of the stage.
    loss: Loss of the stage.
    optimizer: Optimizer over the parameters by component.
    seed: Seed of the dropout masks, folded with the step.
    freeze_retriever: Whether the retriever is not trained in this step, so
      that its gradient is not computed.

  Returns:
    The next state and the metrics, among them `gradient_norm` and
    `parameter_norm` (of the next state).
  """
  dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)

  def loss_of(params: Params) -> tuple[jax.Array, Metrics]:
    if freeze_retriever:
      frozen = jax.lax.stop_gradient(params["retriever"])
      params = {**params, "retriever": frozen}
    weighted = loss(params, batch, dropout_key)
    return weighted.loss.mean, weighted.means()

  gradient, metrics = jax.grad(loss_of, has_aux=True)(state.params)
  updates, optimizer_state = optimizer.update(
    gradient, state.optimizer, state.params
  )
  metrics["gradient_norm"] = optax.tree.norm(gradient)
  params = cast(Params, optax.apply_updates(state.params, updates))
  metrics["parameter_norm"] = optax.tree.norm(params)
  state = TrainState(
    step=state.step + jnp.ones_like(state.step),
    params=params,
    optimizer=optimizer_state,
  )
  return state, metrics
