"""The step of a run that keeps its own index."""

from typing import Any

import jax.numpy as jnp

from realm_jax.models.retriever import Retriever
from realm_jax.retrieval.device_candidates import BlockArrays, SearchedVectors
from realm_jax.retrieval.rolling_refresh import Slice, refresh_oldest
from realm_jax.training.batches import Searched, UnretrievedBatch
from realm_jax.training.device_retrieval.step import (
  RetrievalSettings,
  retrieving_step,
)
from realm_jax.training.state import RollingState
from realm_jax.training.step import Metrics


def rolling_step(
  state: RollingState,
  examples: UnretrievedBatch,
  blocks: BlockArrays,
  *,
  part: Slice,
  num_blocks: int,
  settings: RetrievalSettings,
  retriever: Retriever,
  freeze_retriever: bool,
  **step_settings: Any,
) -> tuple[RollingState, Metrics]:
  """Embeds a slice of the corpus again, and does what `retrieving_step` does.

  The slice is embedded before the search, so that it is found by the very
  parameters that queries are embedded with. The metric `staleness_steps` is the
  age of the oldest vector in this search.

  Args:
    state: State before the step, and the vectors of all blocks.
    examples: Examples of the global batch.
    blocks: Tokens of all blocks.
    part: What each device embeds.
    num_blocks: Number of blocks, without padding.
    settings: Settings of the rest of retrieval.
    retriever: The towers.
    freeze_retriever: Whether the retriever is not trained yet. Then all vectors
      are those of its parameters, and none is embedded.
    step_settings: Further settings of `retrieving_step`.
  """
  step = state.training.step
  dated = state.dated
  if freeze_retriever:
    dated = dated.as_of(step)
  else:
    dated = refresh_oldest(
      state.training.params["retriever"],
      dated,
      blocks,
      step,
      retriever=retriever,
      part=part,
      mesh=settings.mesh,
    )
  vectors = SearchedVectors(dated.vectors, jnp.int32(num_blocks))
  training, metrics = retrieving_step(
    state.training,
    examples,
    Searched({}, vectors, blocks),
    settings=settings,
    retriever=retriever,
    freeze_retriever=freeze_retriever,
    **step_settings,
  )
  staleness = step - dated.steps.min()
  metrics["staleness_steps"] = staleness.astype(jnp.float32)
  return RollingState(training, dated), metrics
