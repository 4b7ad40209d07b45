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
from realm_jax.retrieval.device_candidates import SearchedVectors
from realm_jax.retrieval.rolling_refresh import DatedVectors
from realm_jax.retrieval.token_store import abstract_blocks
from realm_jax.training.batches import Searched, UnretrievedBatch
from realm_jax.training.compilation import jitted_step, step_modes
from realm_jax.training.config import TrainConfig
from realm_jax.training.device_retrieval.compilation import (
  jitted_retrieving_step,
  shardings_of,
)
from realm_jax.training.device_retrieval.rolling_refresh.compilation import (
  jitted_rolling_step,
)
from realm_jax.training.device_retrieval.rolling_refresh.own_index import (
  abstract_vectors,
  plan_of,
)
from realm_jax.training.device_retrieval.rolling_refresh.slices import slice_for
from realm_jax.training.packing.packer import Packer, encoder_inputs
from realm_jax.training.packing.shape_buckets import abstract_batch
from realm_jax.training.packing.step_shapes import empty_arrays, step_shapes
from realm_jax.training.setup import StepSetup, set_up_step
from realm_jax.training.stages.model_inputs import Models
from realm_jax.training.stages.protocol import empty_mask_targets
from realm_jax.training.state import RollingState, TrainState, abstract_state

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
  packer, (batch,) = step_shapes(setup, None)
  shapes = [rows.token_ids.shape for rows in encoder_inputs(batch)]
  name = ", ".join(f"{rows:,} × {length}" for rows, length in shapes)
  for frozen in sorted(step_modes(config, first_step=0)):
    if config.keeps_own_index:
      function, arguments = _rolling(
        setup, state, packer, num_blocks=num_blocks, frozen=frozen
      )
    elif config.retrieve_on_device:
      function, arguments = _searching(
        setup, state, num_blocks=num_blocks, frozen=frozen
      )
    else:
      function = jitted_step(setup, shardings_of(state), frozen=frozen)
      arguments = (state, batch)
    mode = ", retriever frozen" if frozen else ""
    yield Program(STEP, name + mode, function, arguments, mesh)


def _rolling(
  setup: StepSetup,
  state: TrainState,
  packer: Packer,
  *,
  num_blocks: int,
  frozen: bool,
) -> tuple[jax.stages.Wrapped, tuple[Any, ...]]:
  """Returns the step of a run that keeps its own index, and its arguments."""
  dated = abstract_vectors(setup, num_blocks)
  carried = RollingState(state, dated)
  function = jitted_rolling_step(
    setup,
    shardings_of(carried),
    bucket=None,
    plan=plan_of(setup, num_blocks, num_queries=setup.config.data.batch_size),
    part=slice_for(
      setup,
      packer.buckets[0],
      lengths=None,
      blocks_of_device=len(dated.steps) // setup.mesh.size,
    ),
    num_blocks=num_blocks,
    frozen=frozen,
  )
  return function, (carried, _examples(setup), _blocks(setup, num_blocks))


def _searching(
  setup: StepSetup, state: TrainState, *, num_blocks: int, frozen: bool
) -> tuple[jax.stages.Wrapped, tuple[Any, ...]]:
  """Returns the step that searches generations, and its arguments."""
  config, mesh = setup.config, setup.mesh
  retriever, index = setup.inputs.models.retriever, ExactConfig()
  capacity = capacity_for(num_blocks, devices=mesh.size)
  plan = index.plan(
    setup.num_searched,
    num_queries=config.data.batch_size,
    capacity=capacity,
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )
  function = jitted_retrieving_step(
    setup, shardings_of(state), bucket=None, plan=plan, frozen=frozen
  )
  dated = DatedVectors.abstract(
    capacity, retriever.vector_size, dtype=index.dtype, mesh=mesh
  )
  count: Any = jax.ShapeDtypeStruct(
    (), jnp.int32, sharding=sharding.replicated(mesh)
  )
  query_params = {}
  if not config.stage.current_queries:
    query_params = query_tower_parameters(
      retriever, abstract_retriever(retriever, mesh)
    )
  searched = Searched(
    query_params,
    SearchedVectors(dated.vectors, count),
    _blocks(setup, num_blocks),
  )
  return function, (state, _examples(setup), searched)


def _blocks(setup: StepSetup, num_blocks: int) -> Any:
  """Returns the abstract tokens of all blocks, on the devices."""
  return abstract_blocks(
    num_blocks,
    setup.config.data.block_length,
    vocab_size=setup.inputs.models.retriever.bert.vocab_size or 0,
    mesh=setup.mesh,
  )


def _examples(setup: StepSetup) -> Any:
  """Returns abstract examples, whose candidates are not yet retrieved."""
  arrays = empty_arrays(setup, len(setup.own_rows))
  hashes = np.zeros((len(arrays.query), 2), np.uint32)
  examples = UnretrievedBatch(arrays.query, hashes, empty_mask_targets(arrays))
  return abstract_batch(examples, setup.mesh, groups=setup.inputs.groups)


def _search(config: TrainConfig, mesh: Mesh, *, num_blocks: int) -> Program:
  """Returns the exact search of a step's queries in all blocks."""
  index, num_queries = ExactConfig(), config.data.batch_size
  dim = config.retriever.vector_size
  capacity = capacity_for(num_blocks, devices=mesh.size)
  plan = index.plan(
    config.stage.num_searched(num_blocks),
    num_queries=num_queries,
    capacity=capacity,
    devices=mesh.size,
    platform=mesh.devices.flat[0].platform,
  )
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
    settings={"plan": plan, "mesh": mesh},
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
