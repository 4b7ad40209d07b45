"""The programs that a recipe would run on a slice, with abstract arrays."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from realm_jax.generations.building.artifacts import EmbeddingConfig
from realm_jax.generations.building.corpus_embedder import (
  abstract_retriever,
  jitted_embedder,
)
from realm_jax.generations.building.generation_builder import GenerationConfig
from realm_jax.generations.building.length_batches import rows_per_batch
from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.models.retriever import embed_blocks, query_tower_parameters
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, make_mesh
from realm_jax.precompilation.topology import Topology
from realm_jax.training.compilation import jitted_step, step_modes
from realm_jax.training.config import TrainConfig
from realm_jax.training.own_index import (
  abstract_vectors,
  plan_of,
  slice_of_step,
)
from realm_jax.training.rolling_refresh import DatedVectors
from realm_jax.training.row_layout import RowLayout, encoder_inputs
from realm_jax.training.search_in_step import SearchedBlocks, SearchInStep
from realm_jax.training.setup import StepSetup, set_up_step
from realm_jax.training.stages.stage import Models
from realm_jax.training.state import TrainState, abstract_state
from realm_jax.training.token_store import abstract_blocks

STEP, EMBEDDING, SEARCH = "training step", "embedding", "search"
# BERT's vocabulary, where the recipe says no other.
_VOCABULARY = {"vocab_size": 30_522, "separator_id": 102}
# Length of a block in the published corpus, which a builder reads from its own.
_BLOCK_LENGTH = 288


@dataclasses.dataclass(frozen=True)
class Program:
  """One program of a run.

  Attributes:
    kind: What it is for: one of the kinds above.
    name: Name that tells it from others of its kind.
    function: The jitted function.
    arguments: Abstract arrays, with their shardings.
    mesh: Mesh that it runs on, in effect while it is traced.
    settings: Its static arguments.
  """

  kind: str
  name: str
  function: Any
  arguments: tuple[Any, ...]
  mesh: Mesh
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def argument_bytes(self) -> int:
    """Bytes of the arguments that a device holds."""
    return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(self.arguments)
    )

  def lower(self) -> jax.stages.Lowered:
    """Traces and lowers the program, without a device."""
    with jax.set_mesh(self.mesh):
      return self.function.lower(*self.arguments, **self.settings)


def programs_of(
  recipe: TrainConfig | GenerationConfig, topology: Topology, *, num_blocks: int
) -> Iterator[Program]:
  """Yields the programs of a training run, or of an index builder.

  Raises:
    ValueError: The recipe does not fit the slice's devices.
  """
  if isinstance(recipe, GenerationConfig):
    yield _embedding(recipe, make_mesh(devices=topology.host))
    return
  mesh = make_mesh(
    fsdp=recipe.mesh.fsdp,
    model_parallelism=recipe.mesh.model_parallelism,
    devices=topology.devices,
  )
  yield from _steps(recipe, mesh, num_blocks=num_blocks)
  if recipe.stage.needs_index and not recipe.retrieve_on_device:
    yield _search(recipe, mesh, num_blocks=num_blocks)


def _steps(
  config: TrainConfig, mesh: Mesh, *, num_blocks: int
) -> Iterator[Program]:
  """Yields the padded training step, the largest, in each of its modes."""
  setup = set_up_step(
    config,
    _with_vocabulary(Models(config.retriever, config.reader)),
    mesh=mesh,
    groups=sharding.RowGroups.of_one_process(
      math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    ),
    num_blocks=num_blocks,
  )
  state = abstract_state(
    setup.init,
    setup.optimizer,
    mesh=mesh,
    axis_rules=config.mesh.all_axis_rules,
  )
  layout = RowLayout(mesh)
  name = ", ".join(
    f"{rows:,} × {length}" for rows, length in _row_shapes(setup)
  )
  search, searched = None, None
  if config.retrieve_on_device:
    search, searched, state = _searching(setup, state, num_blocks)
  for frozen in sorted(step_modes(config, first_step=0)):
    function = jitted_step(setup, state, layout, frozen=frozen, search=search)
    mode = ", retriever frozen" if frozen else ""
    arguments = state, _batch(setup), searched
    yield Program(STEP, name + mode, function, arguments, mesh)


def _row_shapes(setup: StepSetup) -> list[tuple[int, ...]]:
  """Returns rows and their length, of each encoder input of the whole batch."""
  stage = setup.config.stage
  example = stage.example(setup.empty_arrays())
  numbers = np.arange(setup.config.data.batch_size, dtype=np.uint32)
  rows = jax.eval_shape(
    lambda numbers: stage.rows(setup.models, example, numbers), numbers
  )
  return [one.token_ids.shape for one in encoder_inputs(rows)]


def _batch(setup: StepSetup) -> Any:
  """Returns an abstract batch; a step that searches gets no candidates."""
  batch = setup.abstract_batch()
  if not setup.config.retrieve_on_device:
    return batch
  words = jax.ShapeDtypeStruct(
    (setup.config.data.batch_size, 2),
    jnp.uint32,
    sharding=sharding.batch_sharding(setup.mesh),
  )
  return batch._replace(candidates=None, source_hash=words)


def _searching(
  setup: StepSetup, state: TrainState, num_blocks: int
) -> tuple[SearchInStep, SearchedBlocks, TrainState]:
  """Returns the search in the step, what it searches, and the state."""
  config, mesh, retriever = setup.config, setup.mesh, setup.models.retriever
  refreshed, vectors, query_params = None, None, {}
  if config.keeps_own_index:
    refreshed = slice_of_step(setup, num_blocks, mean_length=None)
    state = state._replace(index=abstract_vectors(setup, num_blocks))
    plan = plan_of(setup, num_blocks)
  else:
    index = ExactConfig()
    capacity = capacity_for(num_blocks, devices=mesh.size)
    plan = _plan(setup.config, mesh, num_blocks)
    vectors = DatedVectors.abstract(
      capacity, retriever.vector_size, dtype=index.dtype, mesh=mesh
    ).vectors
    if not config.stage.current_queries:
      query_params = query_tower_parameters(
        retriever, abstract_retriever(retriever, mesh)
      )
  count: Any = jax.ShapeDtypeStruct(
    (), jnp.int32, sharding=sharding.replicated(mesh)
  )
  blocks = abstract_blocks(
    num_blocks,
    config.data.block_length,
    vocab_size=retriever.bert.vocab_size or 0,
    mesh=mesh,
  )
  search = SearchInStep(
    retriever=retriever,
    num_candidates=config.stage.num_candidates,
    current_queries=config.stage.current_queries or config.keeps_own_index,
    mesh=mesh,
    refreshed=refreshed,
  )
  searched = SearchedBlocks(query_params, vectors, count, blocks, plan)
  return search, searched, state


def _plan(
  config: TrainConfig, mesh: Mesh, num_blocks: int
) -> exact_search.Plan:
  """Returns the settings of the exact search of a step's queries."""
  return ExactConfig().plan(
    config.stage.num_searched(num_blocks),
    num_queries=config.data.batch_size,
    capacity=capacity_for(num_blocks, devices=mesh.size),
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )


def _search(config: TrainConfig, mesh: Mesh, *, num_blocks: int) -> Program:
  """Returns the exact search of a step's queries in all blocks."""
  index, num_queries = ExactConfig(), config.data.batch_size
  dim = config.retriever.vector_size
  capacity = capacity_for(num_blocks, devices=mesh.size)
  by_device = NamedSharding(mesh, PartitionSpec(MESH_AXES))
  arguments = (
    jax.ShapeDtypeStruct(
      (num_queries, dim), jnp.float32, sharding=sharding.batch_sharding(mesh)
    ),
    jax.ShapeDtypeStruct(
      (capacity, dim), jnp.dtype(index.dtype), sharding=by_device
    ),
    jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding.replicated(mesh)),
  )
  return Program(
    SEARCH,
    f"{num_queries:,} queries, {num_blocks:,} blocks",
    exact_search.search,
    arguments,
    mesh,
    settings={"plan": _plan(config, mesh, num_blocks), "mesh": mesh},
  )


def _embedding(config: GenerationConfig, mesh: Mesh) -> Program:
  """Returns the builder's embedding of a batch of the longest blocks."""
  models = _with_vocabulary(Models(config.retriever, None))
  embedding = config.embedding or EmbeddingConfig()
  tokens = embedding.tokens_per_batch * mesh.size
  rows = rows_per_batch(_BLOCK_LENGTH, tokens, multiple=mesh.size)
  batch = jax.ShapeDtypeStruct(
    (rows, _BLOCK_LENGTH), jnp.int32, sharding=sharding.batch_sharding(mesh)
  )
  return Program(
    EMBEDDING,
    f"{rows:,} × {_BLOCK_LENGTH}",
    jitted_embedder(
      sharding.shared_partial(embed_blocks, models.retriever), mesh
    ),
    (abstract_retriever(models.retriever, mesh), batch),
    mesh,
  )


def _with_vocabulary(models: Models) -> Models:
  """Returns models of the recipe's vocabulary, or of BERT's."""
  bert = models.retriever.bert
  sizes = {
    name: usual if getattr(bert, name) is None else getattr(bert, name)
    for name, usual in _VOCABULARY.items()
  }
  retriever, reader = models
  return Models(
    retriever.for_vocabulary(**sizes), reader and reader.for_vocabulary(**sizes)
  )
