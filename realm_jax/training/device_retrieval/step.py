"""A step of pre-training that retrieves its own candidates.

One compiled program embeds the queries, searches, gathers the candidates,
packs, and does what `train_step` does. Nothing waits for the host, and the
candidates are those of the step's own queries.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from realm_jax.indexes.exact_search import Plan
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import (
  Retriever,
  embed_queries,
  query_tower_parameters,
)
from realm_jax.retrieval.device_candidates import find_candidates
from realm_jax.training.batches import (
  MaskTargets,
  PretrainingBatch,
  Searched,
  UnretrievedBatch,
)
from realm_jax.training.device_retrieval.inputs import lay_out
from realm_jax.training.stage_losses import Loss
from realm_jax.training.state import TrainState
from realm_jax.training.step import (
  Metrics,
  Microbatches,
  batch_gradient,
  update,
)


@dataclasses.dataclass(frozen=True)
class RetrievalSettings:
  """The static settings of retrieval inside a step.

  Attributes:
    num_candidates: Number of candidates, the null block included.
    current_queries: Whether queries are embedded with the current parameters.
    bucket: Usual number of rows of each group, for each encoder input; None
      where sequences are not packed.
    mesh: Mesh of all devices.
  """

  num_candidates: int
  current_queries: bool
  bucket: tuple[int, ...] | None
  mesh: Mesh


def retrieving_step(
  state: TrainState,
  examples: UnretrievedBatch,
  searched: Searched,
  *,
  plan: Plan,
  settings: RetrievalSettings,
  retriever: Retriever,
  reader: Reader,
  loss: Loss[PretrainingBatch],
  optimizer: optax.GradientTransformation,
  microbatches: Microbatches,
  **gradient_settings: Any,
) -> tuple[TrainState, Metrics]:
  """Retrieves candidates, computes the gradient and updates the parameters.

  Where the sequences of some device do not fit in the usual rows, all devices
  pad.

  Args:
    state: State before the step.
    examples: Examples of the global batch.
    searched: Generation that is searched.
    plan: Settings of the search.
    settings: Settings of the rest of retrieval.
    retriever, reader: The models.
    loss: Loss of a batch.
    optimizer: Optimizer.
    microbatches: Parts of the batch whose gradients are added.
    gradient_settings: Further settings of `batch_gradient`.
  """
  query_params, vectors, blocks = searched
  assert vectors is not None
  if settings.current_queries:
    current = state.params["retriever"]
    query_params = query_tower_parameters(retriever, current)
  candidates = find_candidates(
    embed_queries(retriever, query_params, examples.query),
    examples.source_hashes,
    vectors,
    blocks,
    plan=plan,
    num_kept=settings.num_candidates - 1,
    mesh=settings.mesh,
  )
  laid_out = lay_out(
    retriever,
    reader,
    examples.query,
    candidates,
    examples.masks,
    bucket=settings.bucket,
    num_parts=microbatches.count,
    mesh=settings.mesh,
  )

  def gradient_of(batch: PretrainingBatch) -> tuple[Params, Metrics]:
    return batch_gradient(
      state, batch, loss=loss, microbatches=microbatches, **gradient_settings
    )

  if laid_out.packed is None:
    gradient, metrics = gradient_of(laid_out.padded)
  else:
    gradient, metrics = lax.cond(
      laid_out.fits,
      lambda packed, padded: gradient_of(packed),
      lambda packed, padded: gradient_of(padded),
      laid_out.packed,
      laid_out.padded,
    )
  metrics["recall"] = masked_recall(examples.masks, candidates.tokens[:, 1:])
  return update(state, gradient, metrics, optimizer=optimizer)


def masked_recall(
  masks: MaskTargets, blocks: Int[Array, "b n l"]
) -> Float[Array, ""]:
  """Returns the share of queries whose masked tokens occur in a block.

  They count where they occur in the same order, one after the other.
  """
  num_masks = masks.token_ids.shape[1]
  is_mask = masks.weights > 0
  following = jnp.pad(blocks, ((0, 0), (0, 0), (0, num_masks - 1)))
  occurs = jnp.broadcast_to(is_mask[:, :1, None], blocks.shape)
  for number in range(num_masks):
    tokens = following[..., number : number + blocks.shape[-1]]
    is_equal = tokens == masks.token_ids[:, number, None, None]
    occurs &= is_equal | ~is_mask[:, number, None, None]
  return occurs.any(axis=(1, 2)).mean()
