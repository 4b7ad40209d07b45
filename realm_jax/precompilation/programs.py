"""Compiles the programs of a recipe for a slice, and reports their costs.

They are traced with abstract arrays and compiled by libtpu, without a device.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from realm_jax import console
from realm_jax.corpus.store import Corpus
from realm_jax.indexes import exact_search
from realm_jax.models.components import Retriever, embed_blocks
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.precompilation.topology import Topology
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.embedding import abstract_retriever, rows_per_batch
from realm_jax.storage.json_files import JsonValue
from realm_jax.training.bin_counts import input_shapes
from realm_jax.training.block_arrays import SearchedBlocks, abstract_blocks
from realm_jax.training.compiled_steps import CompiledSteps, StepSetup
from realm_jax.training.config import TrainConfig
from realm_jax.training.rolling_index import abstract_vectors, plan_of
from realm_jax.training.state import create_state

STEP, EMBEDDING, SEARCH = "training step", "embedding", "search"
# BERT's vocabulary, the default for recipes without one.
_VOCAB_SIZE, _SEPARATOR_ID = 30_522, 102
# Length of a block in the published corpus, which a builder reads from its own.
_BLOCK_LENGTH = 288
_COLUMNS = {
  "arguments GB": ("argument_bytes", 1e9),
  "results GB": ("output_bytes", 1e9),
  "temporaries GB": ("temporary_bytes", 1e9),
  "code GB": ("code_bytes", 1e9),
  "total GB": ("total_bytes", 1e9),
  "TFLOP": ("flops", 1e12),
  "accessed GB": ("accessed_bytes", 1e9),
  "at least ms": ("least_seconds", 1e-3),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
  """Costs of running a program once, on each chip, from the compiler.

  Attributes:
    kind: Purpose of the program, one of the kinds above.
    name: Shapes for which it is compiled.
    fits: Whether the memory of a chip suffices.
    output_bytes: Bytes of the results that do not reuse an argument's memory.
    temporary_bytes: Bytes of the temporaries; if they do not fit, the number in
      the compiler's last error.
    flops: Floating-point operations of matrix products, a chip's share; None
      if the program does not fit.
    accessed_bytes: Bytes that XLA's cost analysis counts as read and written,
      in any memory, and once for the body of a loop; None if the program does
      not fit.
    least_seconds: Lower bound of the time: a roofline at the chip's peak rates.
  """

  kind: str
  name: str
  fits: bool
  argument_bytes: int
  output_bytes: int = 0
  temporary_bytes: int
  code_bytes: int = 0
  flops: float | None = None
  accessed_bytes: float | None = None
  least_seconds: float | None = None

  @property
  def total_bytes(self) -> int:
    """Bytes that a chip needs to run the program."""
    results = self.output_bytes + self.temporary_bytes
    return self.argument_bytes + results + self.code_bytes


@dataclasses.dataclass(frozen=True)
class Report:
  """Costs of a recipe on a slice, and settings that would make it fit."""

  topology: Topology
  costs: Sequence[Cost]
  advice: Sequence[str] = ()

  @property
  def fits(self) -> bool:
    """Whether all programs fit, and steps also next to an exact index."""
    beside = sum(c.argument_bytes for c in self.costs if c.kind == SEARCH)
    steps = [cost.total_bytes for cost in self.costs if cost.kind == STEP]
    return all(cost.fits for cost in self.costs) and all(
      size + beside <= self.topology.memory_bytes for size in steps
    )

  def json(self) -> dict[str, JsonValue]:
    """Returns the costs by name."""
    return {
      "topology": self.topology.name,
      "chips": len(self.topology.devices),
      "fits": self.fits,
      "advice": list(self.advice),
      "programs": [dataclasses.asdict(cost) for cost in self.costs],
    }

  def text(self) -> str:
    """Returns the costs as a table, and whether the recipe fits."""
    slice_ = self.topology
    rows: list[Sequence[str]] = [("program", "fits", *_COLUMNS)]
    for cost in self.costs:
      columns = [(getattr(cost, of), unit) for of, unit in _COLUMNS.values()]
      cells = ["-" if n is None else f"{n / unit:.2f}" for n, unit in columns]
      fits = "yes" if cost.fits else "NO"
      rows.append([f"{cost.kind}: {cost.name}", fits, *cells])
    verdict = "It fits." if self.fits else "It does not fit."
    if not self.fits and all(cost.fits for cost in self.costs):
      verdict = "It does not fit beside the vectors of an exact index."
    header = (
      f"{slice_.name}: {len(slice_.devices)} chips, each with "
      f"{slice_.memory_bytes / 1e9:.2f} GB for programs, "
      f"{slice_.peak_flops / 1e12:.0f} TFLOP/s and "
      f"{slice_.memory_bandwidth / 1e9:.0f} GB/s"
    )
    lines = [verdict, *(f"  {setting}" for setting in self.advice)]
    return f"{header}\n\n{console.columns(rows)}\n\n" + "\n".join(lines)


def compile_recipe(
  recipe: TrainConfig | SnapshotConfig,
  topology: Topology,
  *,
  num_blocks: int,
  corpus: Corpus | None = None,
) -> Report:
  """Compiles all programs of a training run, or of an index builder.

  Args:
    recipe: Configuration of the run or the builder.
    topology: Slice to compile for.
    num_blocks: Number of blocks to search.
    corpus: Corpus with the lengths for packing; without one, lengths are
      assumed.

  Raises:
    ValueError: The recipe does not fit the slice's devices.
  """
  if isinstance(recipe, SnapshotConfig):
    return Report(topology, [_embedding(recipe, topology)])
  costs = list(_of_training(recipe, topology, num_blocks, corpus))
  # The first mode trains most parameters, and so needs most memory.
  helps = [] if costs[0].fits else advice(recipe, topology)
  return Report(topology, costs, helps)


def _of_training(
  config: TrainConfig,
  topology: Topology,
  num_blocks: int,
  corpus: Corpus | None,
) -> Iterator[Cost]:
  """Compiles the step in each mode, with all of its layouts, and the search."""
  mesh = make_mesh(
    fsdp=config.mesh.fsdp,
    model_parallelism=config.mesh.model_parallelism,
    devices=topology.devices,
  )
  components = config.all_components
  vocab_size, separator_id = _vocabulary_of(components.retriever)
  components = components.for_vocabulary(
    vocab_size=vocab_size, separator_id=separator_id
  )
  setup = StepSetup(config, mesh, components, num_blocks)
  state = create_state(
    setup.init,
    setup.optimizer,
    setup.components,
    seed=None,
    mesh=mesh,
    axis_rules=config.mesh.all_axis_rules,
  )
  searched = None
  if config.stage.retrieval is not None:
    searched = _searched(setup)
  if config.keeps_rolling_index:
    state = state._replace(index=abstract_vectors(setup))
  in_step = searched if config.retrieve_on_device else None
  for number, stage in enumerate(config.stages):
    stage_setup = dataclasses.replace(setup, number=number)
    arguments = state, stage_setup.abstract_batch(), None if number else in_step
    shapes = input_shapes(
      stage, components, stage.dummy_batch(stage_setup.empty_arrays())
    )
    layout = stage_setup.layout(corpus)
    name = config.prefix_of(number)
    name += ", ".join(f"{rows:,} × {length}" for rows, length in shapes)
    if layout.bin_counts:
      name += f", and packed in {len(layout.bin_counts)} layouts"
    steps = CompiledSteps(stage_setup, layout)
    for frozen, step in steps.trace(*arguments, first_step=0):
      mode = ", retriever frozen" if frozen else ""
      yield _cost(STEP, name + mode, step, arguments, topology)
  if searched is None or in_step is not None:
    return
  shape = config.data.batch_size, setup.components.retriever.vector_size
  queries = jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=sharding.batch_sharding(mesh)
  )
  arguments = queries, searched.vectors, searched.count
  with jax.set_mesh(mesh):
    search = exact_search.search.trace(
      *arguments, plan=searched.plan, mesh=mesh
    )
  name = f"{len(queries):,} queries, {num_blocks:,} blocks"
  yield _cost(SEARCH, name, search, arguments, topology)


def _searched(setup: StepSetup) -> SearchedBlocks:
  """Returns the searched arrays of a snapshot or a rolling index."""
  config, mesh, retriever = setup.config, setup.mesh, setup.components.retriever
  vectors, query_params = None, {}
  if not config.keeps_rolling_index:
    vectors = abstract_vectors(setup).vectors
    assert config.stage.retrieval is not None
    if not config.stage.retrieval.current_queries:
      params = abstract_retriever(retriever, mesh)
      query_params = retriever.query_tower_parameters(params)
  blocks = abstract_blocks(
    setup.num_blocks,
    config.data.block_length,
    vocab_size=_vocabulary_of(retriever)[0],
    mesh=mesh,
    reader=setup.text_reader,
  )
  count = jax.ShapeDtypeStruct(
    (), jnp.int32, sharding=sharding.replicated(mesh)
  )
  return SearchedBlocks(query_params, vectors, count, blocks, plan_of(setup))


def _embedding(config: SnapshotConfig, topology: Topology) -> Cost:
  """Compiles a builder's embedding of a batch of the longest blocks.

  A builder on several hosts embeds a batch on each; a chip's share is the same.
  """
  mesh = make_mesh(devices=topology.devices)
  vocab_size, separator_id = _vocabulary_of(config.retriever)
  retriever = config.retriever.for_vocabulary(
    vocab_size=vocab_size, separator_id=separator_id
  )
  tokens = config.tokens_per_batch * mesh.size
  rows = rows_per_batch(_BLOCK_LENGTH, tokens, multiple=mesh.size)
  blocks = jax.ShapeDtypeStruct(
    (rows, _BLOCK_LENGTH), jnp.int32, sharding=sharding.batch_sharding(mesh)
  )
  arguments = abstract_retriever(retriever, mesh), blocks
  # Like the programs of `CorpusEmbedder`, one for each length.
  embed = jax.jit(
    sharding.under(sharding.LOGICAL_AXIS_RULES, embed_blocks, retriever),
    out_shardings=sharding.batch_sharding(mesh),
  )
  with jax.set_mesh(mesh):
    traced = embed.trace(*arguments)
  name = f"{rows:,} × {_BLOCK_LENGTH}"
  return _cost(EMBEDDING, name, traced, arguments, topology)


def _vocabulary_of(retriever: Retriever) -> tuple[int, int]:
  """Returns the size and separator of the recipe's vocabulary, or of BERT's."""
  named = getattr(retriever, "bert", retriever)
  return (
    getattr(named, "vocab_size", None) or _VOCAB_SIZE,
    getattr(named, "separator_id", None) or _SEPARATOR_ID,
  )


def _cost(
  kind: str,
  name: str,
  traced: jax.stages.Traced,
  arguments: Any,
  topology: Topology,
) -> Cost:
  """Compiles a program for abstract arguments, and returns its costs."""
  logging.info("compiling the %s: %s", kind, name)
  try:
    compiled = traced.lower().compile()
  except jax.errors.JaxRuntimeError as error:
    argument_bytes = sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(arguments)
    )
    needed = needed_temporaries(str(error), argument_bytes)
    if needed is None:
      raise
    return Cost(
      kind=kind,
      name=name,
      fits=False,
      argument_bytes=argument_bytes,
      temporary_bytes=needed,
    )
  memory, counted = compiled.memory_analysis(), compiled.cost_analysis()
  assert memory is not None
  assert counted is not None
  # Values that XLA does not count are missing, or negative.
  accessed = max(0.0, counted.get("bytes accessed", 0.0))
  flops = product_flops(traced.jaxpr) / len(topology.devices)
  cost = Cost(
    kind=kind,
    name=name,
    fits=True,
    argument_bytes=memory.argument_size_in_bytes,
    output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    temporary_bytes=memory.temp_size_in_bytes,
    code_bytes=memory.generated_code_size_in_bytes,
    flops=flops,
    accessed_bytes=accessed,
    least_seconds=max(
      flops / topology.peak_flops, accessed / topology.memory_bandwidth
    ),
  )
  fits = cost.total_bytes <= topology.memory_bytes
  return dataclasses.replace(cost, fits=fits)


def product_flops(jaxpr: Any) -> float:
  """Returns the operations of a program's matrix products, on all devices.

  XLA's cost analysis counts the body of a loop once. This counts the body of a
  scan, such as the one over an encoder's layers, for each iteration, and only
  the most expensive branch of a condition.
  """
  total = 0.0
  for equation in jaxpr.eqns:
    parameters = equation.params
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = parameters["dimension_numbers"]
      shape = equation.invars[0].aval.shape
      size = math.prod(shape[axis] for axis in contracted)
      total += 2.0 * size * equation.outvars[0].aval.size
    inner = [
      product_flops(part)
      for part in jax.tree.leaves([*parameters.values()])
      if hasattr(part, "eqns")
    ]
    if equation.primitive.name == "cond":
      inner = [max(inner)]
    # In a `shard_map`, shapes are per device.
    devices = parameters["mesh"].size if "mesh" in parameters else 1
    total += sum(inner) * parameters.get("length", 1) * devices
  return total


def needed_temporaries(message: str, argument_bytes: int) -> int | None:
  """Parses a program's temporaries from libtpu's error that it does not fit.

  The error has either these, or the program's total memory. Returns None for
  other errors.
  """
  needed = re.search(
    r"(?:Used |temporaries \()([\d.]+)([KMGT]?)\)? (?:of|exceeds)", message
  )
  if "RESOURCE_EXHAUSTED" not in message or needed is None:
    return None
  used = int(float(needed[1]) * 2 ** (10 * " KMGT".index(needed[2] or " ")))
  if "for HLO temporaries" in message:
    return used
  return max(0, used - argument_bytes)


def advice(config: TrainConfig, topology: Topology) -> list[str]:
  """Returns settings that may make a step fit.

  A step's temporaries grow with the batch, and FSDP shards the state. The
  result is known only after another compilation.
  """
  groups = len(topology.devices) // config.mesh.model_parallelism
  batch, bert = config.data.batch_size, getattr(config.retriever, "bert", None)
  fsdp, parts = 2 * config.mesh.fsdp, 2 * config.num_microbatches
  lines = []
  if bert is not None and jnp.dtype(bert.dtype) == jnp.float32:
    lines.append(
      'BertConfig.dtype = "bfloat16" (DTYPE in gin/models/bert_base.gin) '
      "halves most temporaries"
    )
  if groups % fsdp == 0:
    lines.append(f"FSDP = {fsdp} divides the state")
  if batch % (groups * parts) == 0:
    lines.append(
      f"NUM_MICROBATCHES = {parts} computes one part after the other"
    )
  if batch > groups:
    lines.append(f"BATCH_SIZE = {batch // 2 // groups * groups or groups}")
  if bert is not None and bert.remat_policy is None:
    lines.append(
      'REMAT_POLICY = "nothing_saveable" keeps the layers\' inputs alone, and '
      "computes a forward pass more"
    )
  return lines or ["a slice with more chips, or chips with more memory"]
