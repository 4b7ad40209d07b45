"""Compiles the programs of a recipe and reports what they cost."""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.artifacts import EmbeddingConfig
from realm_jax.generations.building.generation_builder import GenerationConfig
from realm_jax.indexes.exact import ExactConfig
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.precompilation import refresh_split
from realm_jax.precompilation.advice import advice
from realm_jax.precompilation.compiler import compile_program
from realm_jax.precompilation.estimate import Estimate, estimate
from realm_jax.precompilation.programs.embedding import embedding_programs
from realm_jax.precompilation.programs.program import EMBEDDING, STEP, Program
from realm_jax.precompilation.programs.search import search_program
from realm_jax.precompilation.programs.steps import step_programs
from realm_jax.precompilation.refresh_split import RefreshSplit
from realm_jax.precompilation.report import Report
from realm_jax.precompilation.topology import Topology
from realm_jax.training.config import TrainConfig

# Compilations at once; one uses several cores at times.
_THREADS = 2
# Blocks of English Wikipedia of 2018-12-20, of which REALM's corpus consists.
PAPER_BLOCKS = 13_353_718
# Length of a block in the published corpus, where no recipe of a run says it.
_BLOCK_LENGTH = 288


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What is compiled, of a training run, an index builder or both.

  Attributes:
    train: Training run; None compiles the builder's programs alone.
    generation: Settings of the index builder; None takes the defaults.
    num_blocks: Number of blocks of the corpus.
    corpus: Corpus whose lengths its blocks have; None pads all to the longest.
    builder_chips: Number of chips of the builder; None takes as many as build a
      generation between two checkpoints.
  """

  train: TrainConfig | None
  generation: GenerationConfig | None = None
  num_blocks: int = PAPER_BLOCKS
  corpus: Corpus | None = None
  builder_chips: int | None = None


def precompile(
  recipe: Recipe, topology: Topology, *, cache: Path | None
) -> Report:
  """Compiles all programs of a recipe for a slice.

  Args:
    recipe: What is compiled.
    topology: Devices of the slice.
    cache: Directory of earlier compilations; None compiles all.

  Raises:
    ValueError: The recipe does not fit the slice's devices.
  """
  made = list(programs_of(recipe, topology))
  with (
    ThreadPoolExecutor(_THREADS, "compile") as pool,
    Progress("programs compiled", total=len(made)) as progress,
  ):
    # Tracing holds the interpreter, and compiling does not.
    traced = [program.trace() for program in made]
    waiting = [
      pool.submit(
        compile_program,
        one.lower(),
        argument_bytes=program.argument_bytes,
        cache=cache,
        compiler=" ".join(
          (topology.compiler, topology.chip.name, program.device_order)
        ),
      )
      for program, one in zip(made, traced, strict=True)
    ]
    found = []
    for program, one, future in zip(made, traced, waiting, strict=True):
      compiled = future.result()
      found.append(estimate(program, one.jaxpr.jaxpr, compiled, topology.chip))
      progress.advance()
  return Report(
    topology=topology.name,
    chip=topology.chip,
    chips=len(topology.devices),
    estimates=found,
    splits=_splits(recipe, found),
    advice=_advice(recipe, found, topology),
  )


def programs_of(recipe: Recipe, topology: Topology) -> Iterator[Program]:
  """Yields the programs of a recipe on a slice, the usual step first.

  Raises:
    ValueError: The recipe does not fit the slice's devices.
  """
  train, generation = recipe.train, recipe.generation
  retriever = None if generation is None else generation.retriever
  block_length = _BLOCK_LENGTH
  if train is not None:
    mesh = make_mesh(
      fsdp=train.mesh.fsdp,
      model_parallelism=train.mesh.model_parallelism,
      devices=topology.devices,
    )
    retriever = retriever or train.retriever
    block_length = train.data.block_length
    index = None if generation is None else generation.index
    if not isinstance(index, ExactConfig):
      index = ExactConfig()
    yield from step_programs(
      train,
      mesh,
      num_blocks=recipe.num_blocks,
      corpus=recipe.corpus,
      index=index,
    )
    if train.keeps_own_index:
      return
    if train.stage.needs_index and not train.retrieve_on_device:
      yield search_program(
        index,
        mesh,
        num_blocks=recipe.num_blocks,
        num_queries=train.data.batch_size,
        num_searched=train.stage.num_searched(recipe.num_blocks),
        dim=train.retriever.vector_size,
      )
    if generation is None and not train.stage.needs_index:
      return
  assert retriever is not None
  embedding = None if generation is None else generation.embedding
  yield from embedding_programs(
    retriever,
    embedding or EmbeddingConfig(),
    make_mesh(devices=topology.host),
    block_length=block_length,
    num_blocks=recipe.num_blocks,
    corpus=recipe.corpus,
  )


def _splits(
  recipe: Recipe, estimates: Sequence[Estimate]
) -> list[RefreshSplit]:
  """Returns the split that is asked for, and its neighbours."""
  step = estimates[0].seconds
  embeddings = [e for e in estimates if e.program.kind == EMBEDDING]
  train = recipe.train
  if train is not None and not train.refresh.refresh:
    return []
  if train is None or step is None or not embeddings:
    return []
  batches = []
  for one in embeddings:
    if one.seconds is None:
      return []
    batches.append((one.program.runs, one.seconds))
  chip_seconds = refresh_split.chip_seconds(
    batches, chips_per_batch=embeddings[0].program.chips
  )
  every = train.checkpoints.save_every_steps
  enough = refresh_split.chips_for(
    every, chip_seconds=chip_seconds, step_seconds=step
  )
  chosen = recipe.builder_chips or enough
  return [
    refresh_split.split(
      count,
      chip_seconds=chip_seconds,
      step_seconds=step,
      save_every_steps=every,
    )
    for count in dict.fromkeys((chosen, 4, 8, 16, 32, 64, enough))
  ]


def _advice(
  recipe: Recipe, estimates: Sequence[Estimate], topology: Topology
) -> list[str]:
  if recipe.train is None:
    return []
  for one in estimates:
    if one.program.kind == STEP and not one.fits:
      return advice(recipe.train, one, topology.chip)
  return []
