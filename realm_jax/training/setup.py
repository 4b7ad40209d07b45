"""The parts of a run that exist before anything is opened for writing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int

from realm_jax.corpus.store import Corpus, require_block_length
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.checkpointing import RunIdentity, examples_of_run
from realm_jax.training.config import TrainConfig
from realm_jax.training.optimizer import make_optimizer
from realm_jax.training.row_counts import choose_row_counts
from realm_jax.training.row_layout import RowLayout
from realm_jax.training.stages.stage import (
  ExampleArrays,
  Models,
  Stage,
  StepBatch,
)
from realm_jax.training.step import Loss, RowsOf


@dataclasses.dataclass(frozen=True)
class StepSetup:
  """The parts from which a step's programs follow; none of them is a file.

  Attributes:
    own_rows: Numbers of the rows of every global batch that are this
      process's.
    rows_of: Function that makes what the encoders read.
    num_searched: Number of blocks that are searched for each query.
  """

  config: TrainConfig
  mesh: Mesh
  own_rows: Int[np.ndarray, " b"]
  models: Models
  rows_of: RowsOf[Any]
  loss: Loss[Any]
  optimizer: optax.GradientTransformation
  num_searched: int

  @property
  def init(self) -> Callable[[jax.Array], Params]:
    """Function that initializes the parameters, in flax's boxes, from a key."""
    data = self.config.data
    lengths = data.query_length, data.block_length
    return sharding.shared_partial(
      _initial, self.config.stage, self.models, *lengths
    )

  def empty_arrays(self) -> ExampleArrays:
    """Returns padding, from which a stage makes a global batch."""
    data, stage = self.config.data, self.config.stage
    shape = (data.batch_size, stage.num_candidates, data.block_length)
    return ExampleArrays(
      query=np.zeros((data.batch_size, data.query_length), np.int32),
      candidates=np.zeros(shape, np.int32),
      num_searched=self.num_searched,
      vector_size=self.models.retriever.vector_size,
      max_masks=data.max_masks,
      max_answer_width=self.models.max_answer_width,
    )

  def abstract_batch(self) -> StepBatch:
    """Returns the abstract arrays of a global batch, on the devices.

    That of a step which searches has no candidates.
    """
    placed = sharding.batch_sharding(self.mesh)
    batch = self.config.stage.example(self.empty_arrays())
    if self.config.retrieve_on_device:
      words = np.zeros((self.config.data.batch_size, 2), np.uint32)
      batch = batch._replace(candidates=None, source_hash=words)
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape,
        jax.dtypes.canonicalize_dtype(leaf.dtype),
        sharding=placed,
      ),
      batch,
    )

  def layout(self, corpus: Corpus | None) -> RowLayout:
    """Returns how the step lays out sequences, by the lengths of a corpus.

    Without one, or without packing, each sequence has a row of its own.
    """
    config, layout = self.config, RowLayout(self.mesh)
    if not config.pack or corpus is None:
      return layout
    counts = choose_row_counts(
      config.stage,
      self.models,
      self.empty_arrays(),
      corpus,
      groups=layout.num_devices * config.num_microbatches,
      at_most=config.max_shape_buckets,
    )
    return dataclasses.replace(layout, row_counts=counts)


@dataclasses.dataclass(frozen=True)
class RunSetup(StepSetup):
  """The parts that follow from configuration, corpus and devices alone.

  Attributes:
    examples: Corpus that examples come from.
    corpus: Corpus that is searched; the same one, unless there are two.
  """

  examples: Corpus
  corpus: Corpus
  identity: RunIdentity


def _initial(
  stage: Stage,
  models: Models,
  query_length: int,
  block_length: int,
  key: jax.Array,
) -> Params:
  lengths = {"query": query_length, "block": block_length}
  return stage.init(models, lengths, key)


def _require_divisible_heads(config: TrainConfig, mesh: Mesh) -> None:
  """Refuses heads that devices cannot share, though their columns may be."""
  # Of several rules for an axis, the first counts.
  rules = dict(reversed(config.mesh.all_axis_rules))
  readers = [] if config.reader is None else [config.reader]
  for bert in (model.bert for model in (config.retriever, *readers)):
    sharding.require_divisible(
      f"num_heads={bert.num_heads}",
      bert.num_heads,
      axis="activation_heads",
      part=rules["activation_heads"],
      mesh=mesh,
    )


def _open_corpora(config: TrainConfig) -> tuple[Corpus, Corpus]:
  """Opens the corpus of the examples, and the one that is searched."""
  data = config.data
  examples = corpus = examples_of_run(
    config.model_dir, data.pretraining_corpus_dir or data.corpus_dir
  )
  if data.pretraining_corpus_dir is not None:
    corpus = Corpus.open(data.corpus_dir)
    examples.require_vocabulary_of(corpus)
  require_block_length(data.block_length, corpus, examples)
  return examples, corpus


def set_up_step(
  config: TrainConfig,
  models: Models,
  *,
  mesh: Mesh,
  num_blocks: int,
) -> StepSetup:
  """Checks the configuration against the devices and the size of the corpus.

  Args:
    config: Configuration of the run.
    models: Its models, for the vocabulary of the corpus.
    mesh: Devices of all processes.
    num_blocks: Number of blocks that are searched.

  Raises:
    ValueError: The configuration does not fit the devices, or the corpus has
      too few blocks.
  """
  _require_divisible_heads(config, mesh)
  rows_of, loss = config.stage.functions(models)
  return StepSetup(
    config=config,
    mesh=mesh,
    own_rows=sharding.row_groups(mesh).own_rows(
      config.data.batch_size, parts=config.num_microbatches
    ),
    models=models,
    rows_of=rows_of,
    loss=loss,
    optimizer=make_optimizer(config.optimizer, num_steps=config.num_steps),
    num_searched=config.stage.num_searched(num_blocks),
  )


def set_up(config: TrainConfig) -> RunSetup:
  """Opens the corpus, and checks the configuration against it.

  Raises:
    CorpusError: There is no corpus, or its blocks are longer than
      `block_length`.
    CheckpointError: The run's last checkpoint is of another vocabulary.
    ValueError: The configuration does not fit the corpus or the devices.
  """
  examples, corpus = _open_corpora(config)
  mesh = make_mesh(
    fsdp=config.mesh.fsdp, model_parallelism=config.mesh.model_parallelism
  )
  step = set_up_step(
    config,
    Models(config.retriever, config.reader).for_corpus(corpus),
    mesh=mesh,
    num_blocks=corpus.num_blocks,
  )
  identity = RunIdentity(
    seed=config.data.seed,
    batch_size=config.data.batch_size,
    num_searched=step.num_searched,
    save_every_steps=config.refresh_every_steps if config.waits else 0,
    lag_steps=config.refresh.lag_steps if config.waits else 0,
    held_out_blocks=config.data.held_out_blocks,
    vocabulary=corpus.vocab_sha256,
    corpus_version=examples.version,
    corpus_fingerprint=examples.fingerprint,
  )
  return RunSetup(
    **vars(step), examples=examples, corpus=corpus, identity=identity
  )
