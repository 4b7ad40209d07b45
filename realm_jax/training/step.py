"""One step of each stage, and the update that they share: the numeric core.

A loss takes `(params, batch, dropout_key)` and returns weighted sums, which
micro-batches could add (`realm_jax/objectives/weighted.py`). Batches are dicts of arrays with the global batch in front:

| stage | arrays |
| --- | --- |
| inverse cloze | query [b q], block [b l], removed [b] |
| reading, pre-training | query [b q], candidates [b k l], mask_positions, mask_targets, mask_weights [b m] |
| open QA | query [b q], candidates [b k l], vectors [b n d] or scores [b n], has_answer [b n], is_answer [b k l w] |

A packed batch (`realm_jax/training/packing.py`) has the texts as `Sequences`
instead: queries (b), blocks (b, or the distinct candidates, with block_index
[b k]) and joint (b · k, with body_start and body_length [b k]).
"""  # noqa: E501

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader, Spans
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.state import TrainState

Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of a stage.

  Attributes:
    function: Loss of `(params, batch, dropout_key)`.
    splittable: Whether the sums over the parts of a batch add up to those
      over the batch, so that gradients may be accumulated.
  """

  function: Callable[[Params, Batch, jax.Array], WeightedLoss]
  splittable: bool = True

  def __call__(
    self, params: Params, batch: Batch, dropout_key: jax.Array
  ) -> WeightedLoss:
    """Returns the loss and the metrics of a batch."""
    return self.function(params, batch, dropout_key)


def _either(batch: Batch, packed: str, padded: str) -> Any:
  return batch[packed] if packed in batch else batch[padded]


def embed_candidates(
  retriever: Retriever, params: Any, batch: Batch, **settings: Any
) -> tuple[Float[Array, "b d"], Float[Array, "b k d"]]:
  """The vectors of a batch's queries and of their candidates."""
  queries, blocks = retriever.apply(
    {"params": params},
    _either(batch, "queries", "query"),
    _either(batch, "blocks", "candidates"),
    **settings,
  )
  if "blocks" not in batch:
    return queries, blocks
  # A group's candidates are among its own distinct blocks.
  groups = len(batch["blocks"].starts)
  index = batch["block_index"]
  found = jnp.take_along_axis(
    blocks.reshape(groups, -1, blocks.shape[-1]),
    index.reshape(groups, -1, 1),
    axis=1,
  )
  return queries, found.reshape(*index.shape, -1)


def read_masks(
  reader: Reader, params: Any, batch: Batch, **settings: Any
) -> Float[Array, "b k m v"]:
  """The reader's logits of a batch's masked words."""
  apply = functools.partial(reader.apply, {"params": params}, **settings)
  masks = batch["mask_positions"]
  if "joint" in batch:
    return apply(batch["joint"], masks, method="masked_lm_packed")
  query, candidates = batch["query"], batch["candidates"]
  return apply(query, candidates, masks, method="masked_lm")


def read_spans(
  reader: Reader, params: Any, batch: Batch, **settings: Any
) -> Spans:
  """The reader's scores of the spans of a batch's candidates."""
  apply = functools.partial(reader.apply, {"params": params}, **settings)
  if "joint" not in batch:
    return apply(batch["query"], batch["candidates"], method="spans")
  return apply(
    batch["joint"],
    batch["body_start"],
    batch["body_length"],
    num_starts=batch["is_answer"].shape[2],
    method="spans_packed",
  )


def inverse_cloze(retriever: Retriever) -> Loss:
  """The loss of inverse cloze; the negatives are the global batch."""

  def loss(
    params: Params, batch: Batch, dropout_key: jax.Array
  ) -> WeightedLoss:
    queries, blocks = retriever.apply(
      {"params": params["retriever"]},
      _either(batch, "queries", "query"),
      _either(batch, "blocks", "block"),
      train=True,
      rngs={"dropout": dropout_key},
    )
    return inverse_cloze_loss(
      queries, blocks, batch["removed"], score_scale=retriever.score_scale
    )

  return Loss(loss, splittable=False)


def pretraining(
  retriever: Retriever, reader: Reader, *, form: str = "per_token"
) -> Loss:
  """REALM's loss: query and candidates are embedded with today's parameters."""

  def loss(
    params: Params, batch: Batch, dropout_key: jax.Array
  ) -> WeightedLoss:
    retriever_key, reader_key = jax.random.split(dropout_key)
    query_vectors, block_vectors = embed_candidates(
      retriever,
      params["retriever"],
      batch,
      train=True,
      rngs={"dropout": retriever_key},
    )
    logits = read_masks(
      reader,
      params["reader"],
      batch,
      train=True,
      rngs={"dropout": reader_key},
    )
    return marginal_masked_lm_loss(
      relevance(
        query_vectors, block_vectors, score_scale=retriever.score_scale
      ),
      logits,
      batch["mask_targets"],
      batch["mask_weights"],
      form=form,
    )

  return Loss(loss)


def reading(reader: Reader) -> Loss:
  """The masked-LM loss of a given block: no retriever, no null block."""

  def loss(
    params: Params, batch: Batch, dropout_key: jax.Array
  ) -> WeightedLoss:
    logits = read_masks(
      reader,
      params["reader"],
      batch,
      train=True,
      rngs={"dropout": dropout_key},
    )
    masked_lm = marginal_masked_lm_loss(
      jnp.zeros(logits.shape[:2]),
      logits,
      batch["mask_targets"],
      batch["mask_weights"],
    )
    names = ("masked_accuracy",)
    metrics = {name: masked_lm.metrics[name] for name in names}
    return masked_lm._replace(metrics=metrics)

  return Loss(loss)


def open_qa(retriever: Retriever, reader: Reader) -> Loss:
  """ORQA's loss over stored block vectors, or calibrated scores of an index.

  Where the batch has `vectors`, the query tower trains against them, and they
  stay. Where it has `scores` (BM25 has no vectors), a block's score is
  `scale` times the index's, and `scale` is the retriever's one parameter.
  """

  def loss(
    params: Params, batch: Batch, dropout_key: jax.Array
  ) -> WeightedLoss:
    retriever_key, reader_key = jax.random.split(dropout_key)
    if "vectors" in batch:
      query_vectors = retriever.apply(
        {"params": params["retriever"]},
        _either(batch, "queries", "query"),
        train=True,
        method="embed_queries",
        rngs={"dropout": retriever_key},
      )
      scores = relevance(
        query_vectors, batch["vectors"], score_scale=retriever.score_scale
      )
    else:
      scores = params["retriever"]["scale"] * batch["scores"]
    spans = read_spans(
      reader,
      params["reader"],
      batch,
      train=True,
      rngs={"dropout": reader_key},
    )
    return open_qa_loss(
      scores,
      batch["has_answer"],
      spans.logits,
      spans.is_span,
      batch["is_answer"],
    )

  return Loss(loss)


def train_step(
  state: TrainState,
  batch: Batch,
  *,
  loss: Loss,
  optimizer: optax.GradientTransformation,
  seed: int,
  hold_retriever: bool = False,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Differentiates, updates and counts one step.

  Args:
    state: donated by the loop.
    batch: the stage's arrays.
    loss: the stage's loss.
    optimizer: over the parameters by component.
    seed: of dropout; folded with the step.
    hold_retriever: whether the retriever stands still in this step, so that
      its gradient need not be computed.

  Returns:
    The next state and the metrics, with `gradient_norm` and `parameter_norm`
    (of the next state) among them.
  """
  dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)

  def of_params(params: Params) -> tuple[jax.Array, dict[str, jax.Array]]:
    if hold_retriever:
      held = jax.lax.stop_gradient(params["retriever"])
      params = {**params, "retriever": held}
    weighted = loss(params, batch, dropout_key)
    return weighted.loss.mean, weighted.means()

  gradient, metrics = jax.grad(of_params, has_aux=True)(state.params)
  updates, optimizer_state = optimizer.update(
    gradient, state.optimizer, state.params
  )
  metrics["gradient_norm"] = optax.tree.norm(gradient)
  params: Any = optax.apply_updates(state.params, updates)
  metrics["parameter_norm"] = optax.tree.norm(params)
  state = TrainState(
    step=state.step + jnp.ones_like(state.step),
    params=params,
    optimizer=optimizer_state,
  )
  return state, metrics
