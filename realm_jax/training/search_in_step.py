"""Retrieval inside the step, without a copy from the host.

The vectors and tokens of all blocks are sharded over the devices by rows; each
device searches its own rows. Communication is proportional to the batch size:
query vectors, scores, row numbers, and the tokens of the candidates. Nothing
waits for the host.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped, UInt32

from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes import exact_search
from realm_jax.models import sequences
from realm_jax.models.components import Retriever, embed_queries
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, MODEL_AXIS
from realm_jax.training.block_arrays import BlockArrays, SearchedBlocks
from realm_jax.training.encoder_inputs import Candidates
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.state import Metrics, TrainState

# Steps that mark rows past the last block, and blocks without a vector yet.
NO_BLOCK = np.iinfo(np.int32).max
NEVER = -1


class RollingIndexState(NamedTuple):
  """The vectors of all blocks, and the step of each.

  The rows are sharded over all devices, and padded.

  `steps` has the steps whose parameters embedded the vectors: `NEVER` for a
  block without a vector, and `NO_BLOCK` for rows past the last block.
  """

  vectors: Float[Array, "n d"]
  steps: Int[Array, " n"]


def refresh_oldest(
  params: Params,
  dated: RollingIndexState,
  blocks: BlockArrays,
  step: Int[Array, ""],
  *,
  retriever: Retriever,
  num_blocks: int,
  mesh: Mesh,
) -> RollingIndexState:
  """Embeds each device's oldest blocks again.

  Each device embeds `num_blocks` consecutive rows, starting with the first of
  its oldest ones. So a device goes round its rows, and the number of steps of a
  round bounds the age of its vectors. Data-parallel devices exchange nothing
  for this. The parameters are the retriever's at this step.
  """
  divided: Any = PartitionSpec(MESH_AXES)
  on_each_device = functools.partial(
    jax.shard_map, mesh=mesh, out_specs=divided, check_vma=False
  )

  def take(
    steps: Int[Array, " n"], blocks: BlockArrays
  ) -> tuple[Sequences, Int[Array, " w"]]:
    rows = jnp.argmin(steps) + jnp.arange(num_blocks)
    kept = jnp.minimum(rows, len(steps) - 1)
    is_block = (rows < len(steps)) & (steps[kept] != NO_BLOCK)
    tokens = blocks.tokens[kept][:, : len(blocks.null_tokens)]
    inputs = retriever.block_input(tokens.astype(jnp.int32))
    # A block prefix must not turn padding into a sequence.
    inputs = jnp.asarray(inputs) * is_block[:, None]
    # Rows past the last are dropped.
    written = jnp.where(is_block, rows, len(steps))
    return sequences.padded(inputs, blocks.marks[2][kept]), written

  def put(
    dated: RollingIndexState,
    rows: Int[Array, " w"],
    vectors: Float[Array, "w d"],
  ) -> RollingIndexState:
    vectors = vectors.astype(dated.vectors.dtype)
    return RollingIndexState(
      dated.vectors.at[rows].set(vectors, mode="drop"),
      dated.steps.at[rows].set(step, mode="drop"),
    )

  inputs, rows = on_each_device(
    take, in_specs=(divided, BlockArrays.partitions())
  )(dated.steps, blocks)
  # Model-parallel devices compute on the same rows, although each holds
  # different blocks.
  inputs = lax.with_sharding_constraint(
    inputs, NamedSharding(mesh, PartitionSpec(BATCH_AXES))
  )
  vectors = retriever.apply({"params": params}, inputs, method="embed_blocks")
  return on_each_device(put, in_specs=divided)(dated, rows, vectors)


@dataclasses.dataclass(frozen=True)
class SearchInStep:
  """Finds the candidates of a batch in its own step.

  In a run with a rolling index, a slice of the corpus is embedded again before
  the search, with the same parameters as the queries. This is skipped while the
  retriever is frozen, when all vectors are up to date.

  Attributes:
    retrieval: How the stage chooses candidates.
    num_refreshed: Number of blocks that each device embeds again, if the run
      keeps a rolling index.
    passage_length: Padded length of a passage, if the stage's reader reads
      passages.
  """

  retriever: Retriever
  retrieval: Retrieval
  mesh: Mesh
  num_refreshed: int
  passage_length: int = 0

  def __call__(
    self,
    state: TrainState,
    batch: Any,
    searched: SearchedBlocks,
    freeze_retriever: bool,
  ) -> tuple[TrainState, Any, Metrics]:
    """Returns the state, the batch with its candidates, and metrics.

    The metric `staleness_steps` is the age of the oldest vector of a rolling
    index.
    """
    metrics: Metrics = {}
    retriever, params = self.retriever, state.params["retriever"]
    current_queries, vectors = self.retrieval.current_queries, searched.vectors
    if state.index is not None:
      dated: RollingIndexState = state.index
      if freeze_retriever:
        # Vectors of this step's parameters would be the same.
        is_block = dated.steps != NO_BLOCK
        steps = jnp.where(is_block, state.step, NO_BLOCK)
        dated = dated._replace(steps=steps)
      else:
        dated = refresh_oldest(
          params,
          dated,
          searched.blocks,
          state.step,
          retriever=retriever,
          num_blocks=self.num_refreshed,
          mesh=self.mesh,
        )
      state, vectors = state._replace(index=dated), dated.vectors
      staleness = state.step - dated.steps.min()
      metrics["staleness_steps"] = staleness.astype(jnp.float32)
      current_queries = True
    query_params = searched.query_params
    if current_queries:
      query_params = retriever.query_tower_parameters(params)
    _, rows = exact_search.search(
      embed_queries(retriever, query_params, batch.query),
      vectors,
      searched.count,
      plan=searched.plan,
      mesh=self.mesh,
    )
    candidates = _gather_candidates(
      rows,
      jnp.asarray(batch.source_hash),
      searched.blocks,
      retrieval=self.retrieval,
      passage_length=self.passage_length,
      mesh=self.mesh,
    )
    return state, batch._replace(candidates=candidates), metrics


def _gather_candidates(
  rows: Int[Array, "b n"],
  source_hashes: UInt32[Array, "b 2"],
  blocks: BlockArrays,
  *,
  retrieval: Retrieval,
  passage_length: int,
  mesh: Mesh,
) -> Candidates:
  """Returns the same candidates as on the host, with their tokens."""

  def on_each_device(
    rows: Int[Array, "b n"],
    source_hashes: UInt32[Array, "b 2"],
    blocks: BlockArrays,
  ) -> Candidates:
    marks = _fetch(
      lambda local: jnp.stack([mark[local] for mark in blocks.marks], axis=-1),
      rows,
      rows_of_device=len(blocks.tokens),
    )
    is_source = (marks[..., :2] == source_hashes[:, None]).all(axis=-1)
    positions = jnp.asarray(retrieval.candidate_positions(is_source))
    # The null block in front is added below, and need not be fetched.
    first = int(retrieval.null_block)
    kept = jnp.maximum(positions[:, first:], 0)
    kept_rows = jnp.take_along_axis(rows, kept, axis=1)
    is_null = positions == NULL_ROW

    def fetch(array: Shaped[Array, "n c"], null: Int[Array, " l"]) -> Any:
      fetched = _fetch(
        lambda local: array[local][..., : len(null)].astype(jnp.uint32),
        kept_rows,
        rows_of_device=len(array),
      ).astype(jnp.int32)
      fetched = jnp.pad(fetched, ((0, 0), (first, 0), (0, 0)))
      return jnp.where(is_null[..., None], null, fetched)

    dropout_ids = jnp.take_along_axis(marks[..., 2], kept, axis=1)
    dropout_ids = jnp.pad(dropout_ids, ((0, 0), (first, 0)))
    passages = None
    if blocks.passages is not None:
      passages = fetch(blocks.passages, jnp.zeros(passage_length, jnp.int32))
    return Candidates(
      fetch(blocks.tokens, blocks.null_tokens),
      jnp.where(is_null, blocks.null_dropout_id, dropout_ids),
      passages,
    )

  by_group = PartitionSpec(BATCH_AXES)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(by_group, by_group, BlockArrays.partitions()),
    out_specs=by_group,
    check_vma=False,
  )(rows, source_hashes, blocks)


@functools.partial(jax.jit, static_argnames="mesh")
def look_up_vectors(
  rows: Int[Array, "b n"], vectors: Float[Array, "m d"], *, mesh: Mesh
) -> Float[Array, "b n d"]:
  """Returns the vectors of blocks for each query, in float32.

  Rows are sharded like batches, and vectors over all devices.
  """
  by_group = PartitionSpec(BATCH_AXES)

  def on_each_device(
    rows: Int[Array, "b n"], vectors: Float[Array, "m d"]
  ) -> Float[Array, "b n d"]:
    return _fetch(
      lambda local: vectors[local].astype(jnp.float32),
      rows,
      rows_of_device=len(vectors),
    )

  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(by_group, PartitionSpec(MESH_AXES)),
    out_specs=by_group,
    check_vma=False,
  )(rows, vectors)


def _fetch(
  look_up: Callable[[Int[Array, "a k"]], Shaped[Array, "a k w"]],
  rows: Int[Array, "b k"],
  *,
  rows_of_device: int,
) -> Shaped[Array, "b k w"]:
  """Looks up rows of a sharded array for each query.

  Each device looks up the rows of all queries, with indices relative to its own
  first row. Exactly one device has each row and the others add zeros, so a
  reduce-scatter returns to each group of devices the rows for its queries.
  """
  everyone = lax.all_gather(rows, BATCH_AXES, tiled=True)
  local = everyone - lax.axis_index(MESH_AXES) * rows_of_device
  is_own = (local >= 0) & (local < rows_of_device)
  fetched = look_up(jnp.clip(local, 0, rows_of_device - 1))
  fetched = jnp.where(is_own[..., None], fetched, 0)
  fetched = lax.psum_scatter(
    fetched, BATCH_AXES, scatter_dimension=0, tiled=True
  )
  if lax.axis_size(MODEL_AXIS) > 1:
    # The devices of a group have the same queries.
    fetched = lax.psum(fetched, MODEL_AXIS)
  return fetched
