"""The programs that a recipe would run on a slice, with abstract arrays."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.artifacts import EmbeddingConfig
from realm_jax.generations.building.corpus_embedder import (
  abstract_retriever,
  jitted_embedder,
)
from realm_jax.generations.building.length_batches import (
  choose_lengths,
  length_multiple,
  round_up,
  rows_per_batch,
)
from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.models.retriever import Retriever, embed_blocks
from realm_jax.partitioning import rules
from realm_jax.partitioning.jit_cache import shared_partial
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES
from realm_jax.partitioning.rules import RowGroups
from realm_jax.precompilation import useful_flops
from realm_jax.precompilation.useful_flops import Work
from realm_jax.training.batches import StepBatch
from realm_jax.training.compilation import jitted_step, step_modes
from realm_jax.training.config import TrainConfig
from realm_jax.training.packing.packer import encoder_inputs
from realm_jax.training.packing.shape_buckets import random_batches
from realm_jax.training.packing.step_shapes import empty_arrays, step_shapes
from realm_jax.training.setup import StepSetup, set_up_step
from realm_jax.training.stages.model_inputs import Models
from realm_jax.training.state import abstract_state

STEP, EMBEDDING, SEARCH = "training step", "embedding", "search"
# BERT's vocabulary, where neither recipe nor corpus says another.
_VOCABULARY = {"vocab_size": 30_522, "separator_id": 102}


@dataclasses.dataclass(frozen=True)
class Program:
  """One program of a run.

  Attributes:
    kind: What it is for: one of the kinds above.
    name: Name that tells it from others of its kind.
    function: The jitted function.
    arguments: Abstract arrays, with their shardings.
    settings: Its static arguments.
    mesh: Mesh that it runs on, in effect while it is traced.
    work: Useful work of a run of it, on all its devices.
    unknown_trips: How often its loops run whose bound is an argument.
    runs: How often a builder with one such mesh runs it for a generation.
  """

  kind: str
  name: str
  function: Any
  arguments: tuple[Any, ...]
  mesh: Mesh
  work: Work
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unknown_trips: int = 1
  runs: float = 0

  @property
  def chips(self) -> int:
    """Number of devices that it runs on."""
    return self.mesh.size

  @property
  def device_order(self) -> str:
    """The mesh and its devices, which decide what links a collective takes."""
    devices = [(d.id, *d.coords) for d in self.mesh.devices.flat]
    return f"{dict(self.mesh.shape)} {devices}"

  @property
  def argument_bytes(self) -> int:
    """Bytes of the arguments that a device holds."""
    return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(self.arguments)
    )

  def trace(self) -> jax.stages.Traced:
    """Traces it, without a device."""
    with jax.set_mesh(self.mesh):
      return self.function.trace(*self.arguments, **self.settings)


def step_programs(
  config: TrainConfig,
  mesh: Mesh,
  *,
  num_blocks: int,
  corpus: Corpus | None = None,
) -> Iterator[Program]:
  """Yields the training step in each shape bucket, the most usual first.

  Raises:
    ValueError: The recipe does not fit the mesh.
  """
  models = Models(config.retriever, config.reader)
  models = _for_vocabulary(models, corpus)
  groups = RowGroups.of_one_process(
    math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  )
  setup = set_up_step(
    config, models, mesh=mesh, groups=groups, num_blocks=num_blocks
  )
  state = abstract_state(
    setup.init, setup.optimizer, mesh=mesh, axis_rules=config.mesh.axis_rules
  )
  shardings = jax.tree.map(lambda array: array.sharding, state)
  _, batches = step_shapes(setup, corpus)
  for frozen in sorted(step_modes(config, first_step=0)):
    step = jitted_step(setup, shardings, frozen=frozen)
    work = _work_of_step(setup, corpus, frozen=frozen)
    for batch in batches:
      yield Program(
        kind=STEP,
        name=_name_of(batch) + (", retriever frozen" if frozen else ""),
        function=step,
        arguments=(state, batch),
        mesh=mesh,
        work=work,
      )


def _for_vocabulary(models: Models, corpus: Corpus | None) -> Models:
  if corpus is not None:
    return models.for_corpus(corpus)
  return Models(
    models.retriever.for_vocabulary(**_sizes_of(models.retriever.bert)),
    None
    if models.reader is None
    else models.reader.for_vocabulary(**_sizes_of(models.reader.bert)),
  )


def _sizes_of(bert: object) -> dict[str, int]:
  """Returns the vocabulary of a recipe, or BERT's where it binds none."""
  return {
    name: bound if (bound := getattr(bert, name)) is not None else usual
    for name, usual in _VOCABULARY.items()
  }


def _work_of_step(
  setup: StepSetup, corpus: Corpus | None, *, frozen: bool
) -> Work:
  """Returns the mean useful work of a batch, by the lengths of a corpus.

  Without one, sequences are as long as their padding makes them.
  """
  stage, models = setup.config.stage, setup.inputs.models
  shapes = empty_arrays(setup, setup.config.data.batch_size)
  examples = (
    [stage.example(shapes, setup.inputs)]
    if corpus is None
    else random_batches(stage, shapes, setup.inputs, corpus)
  )
  works = []
  for batch in examples:
    full = corpus is None
    lengths = useful_flops.sequence_lengths(batch, full=full)
    works.append(useful_flops.step_work(models, batch, lengths, frozen=frozen))
  return Work(*np.mean(np.array([(w.flops, w.tokens) for w in works]), axis=0))


def _name_of(batch: StepBatch) -> str:
  """Returns the rows and lengths of a batch's encoder inputs."""
  shapes = [rows.token_ids.shape for rows in encoder_inputs(batch)]
  return ", ".join(f"{rows:,} × {length}" for rows, length in shapes)


def embedding_programs(
  retriever: Retriever,
  config: EmbeddingConfig,
  mesh: Mesh,
  *,
  block_length: int,
  num_blocks: int,
  corpus: Corpus | None = None,
) -> Iterator[Program]:
  """Yields the builder's embedding of a batch of each of its lengths.

  Args:
    retriever: Towers of the recipe.
    config: Settings of the builder.
    mesh: Devices of one worker.
    block_length: Length of all blocks, without a corpus.
    num_blocks: Number of blocks of the corpus that is to be embedded.
    corpus: Corpus whose lengths its blocks have.
  """
  retriever = _for_vocabulary(Models(retriever, None), corpus).retriever
  lengths = {block_length: np.array([block_length])}
  if corpus is not None:
    lengths = _by_batch_length(corpus, max_lengths=config.num_lengths)
  known = sum(map(len, lengths.values()))
  embed = jitted_embedder(shared_partial(embed_blocks, retriever), mesh)
  params = abstract_retriever(retriever, mesh)
  for length, blocks in lengths.items():
    rows = rows_per_batch(
      length, config.tokens_per_batch * mesh.size, multiple=mesh.size
    )
    batch = jax.ShapeDtypeStruct(
      (rows, length), jnp.int32, sharding=rules.batch_sharding(mesh)
    )
    flops = useful_flops.tower_flops(retriever, blocks) / len(blocks)
    yield Program(
      kind=EMBEDDING,
      name=f"{rows:,} × {length}",
      function=embed,
      arguments=(params, batch),
      mesh=mesh,
      work=Work(rows * flops, rows * float(blocks.mean())),
      runs=num_blocks * len(blocks) / known / rows,
    )


def _by_batch_length(
  corpus: Corpus, *, max_lengths: int
) -> dict[int, Int[np.ndarray, " n"]]:
  """Returns the lengths of a corpus's blocks, by those of the batches."""
  batch_lengths = choose_lengths(
    corpus.lengths,
    longest=corpus.block_length,
    multiple=length_multiple("tpu"),
    max_lengths=max_lengths,
  )
  rounded = round_up(corpus.lengths, batch_lengths)
  return {n: corpus.lengths[rounded == n] for n in batch_lengths}


def search_program(
  config: ExactConfig,
  mesh: Mesh,
  *,
  num_blocks: int,
  num_queries: int,
  num_searched: int,
  dim: int,
) -> Program:
  """Returns the exact search of a step's queries in all blocks."""
  capacity = capacity_for(num_blocks, devices=mesh.size)
  device = mesh.devices.flat[0]
  plan = config.plan(
    num_searched,
    num_queries=num_queries,
    capacity=capacity,
    devices=mesh.size,
    platform=device.platform,
  )
  replicated = rules.replicated(mesh)
  by_device = NamedSharding(mesh, PartitionSpec(MESH_AXES))
  queries = jax.ShapeDtypeStruct(
    (num_queries, dim), jnp.float32, sharding=rules.batch_sharding(mesh)
  )
  vectors = jax.ShapeDtypeStruct(
    (capacity, dim), jnp.dtype(config.dtype), sharding=by_device
  )
  count = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
  share = -(-num_blocks // mesh.size)
  return Program(
    kind=SEARCH,
    name=f"{num_queries:,} queries, {num_blocks:,} blocks",
    function=exact_search.search,
    arguments=(queries, vectors, count),
    settings={"plan": plan, "mesh": mesh},
    mesh=mesh,
    work=Work(2.0 * num_queries * num_blocks * dim, 0.0),
    unknown_trips=-(-share // plan.rows_per_step),
  )
