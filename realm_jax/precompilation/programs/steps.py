"""The training step of a recipe, in each of its shape buckets."""

import dataclasses
import math
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactConfig
from realm_jax.partitioning.mesh import BATCH_AXES
from realm_jax.partitioning.rules import RowGroups
from realm_jax.precompilation.programs.program import STEP, Program
from realm_jax.precompilation.programs.retrieving import retrieving_step
from realm_jax.precompilation.programs.vocabulary import for_vocabulary
from realm_jax.training import useful_flops
from realm_jax.training.batches import StepBatch
from realm_jax.training.compilation import jitted_step, step_modes
from realm_jax.training.config import TrainConfig
from realm_jax.training.packing.packer import encoder_inputs
from realm_jax.training.packing.shape_buckets import random_batches
from realm_jax.training.packing.step_shapes import empty_arrays, step_shapes
from realm_jax.training.setup import StepSetup, set_up_step
from realm_jax.training.stages.model_inputs import Models
from realm_jax.training.state import abstract_state
from realm_jax.training.useful_flops import Work


def step_programs(
  config: TrainConfig,
  mesh: Mesh,
  *,
  num_blocks: int,
  corpus: Corpus | None = None,
  index: ExactConfig,
) -> Iterator[Program]:
  """Yields the training step in each shape bucket, the most usual first.

  A step that retrieves is one program, with two shapes inside.

  Args:
    config: Configuration of the run.
    mesh: Devices of the trainer.
    num_blocks: Number of blocks of the corpus that is searched.
    corpus: Corpus whose lengths its blocks have.
    index: Settings of the index that a step itself searches.

  Raises:
    ValueError: The recipe does not fit the mesh.
  """
  models = Models(config.retriever, config.reader)
  models = for_vocabulary(models, corpus)
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
  modes = step_modes(config, first_step=0)
  packer, batches = step_shapes(setup, corpus)
  for frozen in sorted(modes):
    mode = ", retriever frozen" if frozen else ""
    work = _work_of_step(setup, corpus, frozen=frozen)
    if config.retrieve_on_device:
      step = retrieving_step(
        setup,
        state,
        packer,
        num_blocks=num_blocks,
        corpus=corpus,
        index=index,
        work=work,
        frozen=frozen,
      )
      yield dataclasses.replace(step, name=step.name + mode)
      continue
    function = jitted_step(setup, shardings, frozen=frozen)
    for batch in batches:
      yield Program(
        kind=STEP,
        name=_name_of(batch) + mode,
        function=function,
        arguments=(state, batch),
        mesh=mesh,
        work=work,
      )


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
