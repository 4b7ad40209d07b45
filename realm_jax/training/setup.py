"""The parts of a run that exist before anything is opened for writing."""

import dataclasses
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.config import TrainConfig
from realm_jax.training.loop_state import RunIdentity
from realm_jax.training.optimizer import make_optimizer
from realm_jax.training.refresh.corpus_versions import examples_of_run
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.step import Loss


@dataclasses.dataclass(frozen=True)
class RunSetup:
  """The parts that follow from configuration, corpus and devices alone.

  Attributes:
    examples: Corpus that examples come from.
    corpus: Corpus that is searched; the same one, unless there are two.
    own_rows: Numbers of the rows of every global batch that are this
      process's.
  """

  config: TrainConfig
  examples: Corpus
  corpus: Corpus
  identity: RunIdentity
  mesh: Mesh
  own_rows: Int[np.ndarray, " b"]
  inputs: ModelInputs
  loss: Loss[Any]
  optimizer: optax.GradientTransformation


def _require_divisible_heads(config: TrainConfig, mesh: Mesh) -> None:
  """Refuses heads that devices cannot share, though their columns may be."""
  parts = rules.num_shards("activation_heads", mesh, config.mesh.axis_rules)
  readers = [] if config.reader is None else [config.reader]
  for bert in (model.bert for model in (config.retriever, *readers)):
    if bert.num_heads % parts:
      raise ValueError(
        f"num_heads={bert.num_heads} cannot be divided over {parts} devices; "
        "change MODEL_PARALLELISM, or do not divide the heads: "
        '--gin.AXIS_RULES=\'[("heads", None), ("activation_heads", None)]\''
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
    examples.require_whole_blocks(data.block_length)
  corpus.require_whole_blocks(data.block_length)
  return examples, corpus


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
  _require_divisible_heads(config, mesh)
  groups = rules.row_groups(mesh)
  own_rows = groups.own_rows(config.data.batch_size)
  models = Models(config.retriever, config.reader).for_corpus(corpus)
  save_every_steps = config.checkpoints.save_every_steps
  identity = RunIdentity(
    seed=config.data.seed,
    batch_size=config.data.batch_size,
    num_searched=config.stage.num_searched(corpus.num_blocks),
    save_every_steps=save_every_steps if config.waits else 0,
    lag_steps=config.refresh.lag_steps if config.waits else 0,
    held_out_blocks=config.data.held_out_blocks,
    vocabulary=corpus.vocab_sha256,
    corpus_version=examples.version,
    corpus_fingerprint=examples.fingerprint,
  )
  return RunSetup(
    config=config,
    examples=examples,
    corpus=corpus,
    identity=identity,
    mesh=mesh,
    own_rows=own_rows,
    inputs=ModelInputs(models, groups=groups),
    loss=config.stage.loss(models),
    optimizer=make_optimizer(config.optimizer, num_steps=config.num_steps),
  )
