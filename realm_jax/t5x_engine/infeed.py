"""The infeed: batches with their candidates, prepared on the host.

t5x's loop asks an iterator for its batches, which sees no parameters. So the
queries are embedded by the query tower that the generation was published with,
whatever the stage is configured to do. The search of the next step runs while
the devices compute, as in our own loop.

The tower and an index on devices use the devices of this process alone. Each
process searches for its own rows, in the newest generation that it has loaded,
and no process waits for another.
"""

import dataclasses
import math
import sys
import threading
from typing import Any

import jax
import numpy as np
from clu.data.dataset_iterator import ArraySpec, DatasetIterator
from t5x import utils

from realm_jax.inputs.batches import BatchStream
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.partitioning.rules import RowGroups
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.candidates import CandidateStream
from realm_jax.training.decisions import LocalDecisions
from realm_jax.training.packing.packer import Packer, largest_bucket
from realm_jax.training.run import open_candidates
from realm_jax.training.setup import RunSetup
from realm_jax.training.stages.model_inputs import ModelInputs


class _UntilError(LocalDecisions):
  """Decisions of one process, which stops waiting when the process has failed.

  t5x waits for the first batch in a thread, for which Python waits at its exit.
  """

  def stop_requested(self) -> bool:
    # Set once an error that nobody has handled is printed.
    return hasattr(sys, "last_value")


class CandidateInfeed(DatasetIterator):
  """The batches of a run, as dictionaries of this process's rows.

  It opens the data, and waits for the first generation, when the first batch
  is asked for. t5x does so in a thread, so that the generation can be built
  from the checkpoint that t5x saves meanwhile.
  """

  def __init__(self, run: EngineRun, *, shard_id: int, num_shards: int):
    self._run = run
    self._shard_id = shard_id
    self._num_shards = num_shards
    # The first access reads a checkpoint, before others are written.
    self._step, self._resumed = run.first

  @property
  def _num_rows(self) -> int:
    return self._run.config.data.batch_size // self._num_shards

  @property
  def element_spec(self) -> dict[str, ArraySpec]:
    """Shapes and types of this process's rows."""
    specs = self._run.batch_arrays.specs(self._num_rows)
    return {
      name: ArraySpec(spec.dtype, spec.shape) for name, spec in specs.items()
    }

  def __next__(self) -> dict[str, np.ndarray]:
    run = self._run
    candidates = run.candidates
    if candidates is None:
      candidates = run.candidates = self._open()
      candidates.prefetch(self._step, {})
    batch = candidates.take(self._step).batch
    self._step += 1
    if self._step < run.config.num_steps:
      candidates.prefetch(self._step, {})
    return run.batch_arrays.flatten(batch)

  def _open(self) -> CandidateStream:
    run, setup = self._run, self._setup()
    config = setup.config
    examples = BatchStream(
      dataclasses.replace(config.data, corpus_version=setup.corpus.version),
      start_position=self._resumed.position,
      process_index=self._shard_id,
      process_count=self._num_shards,
    )
    run.closing.callback(examples.close)
    example = run.example(self._num_rows, setup.inputs)
    bucket = largest_bucket(example, groups=self._num_rows)
    decisions = _UntilError(
      threading.Event(),
      num_steps=config.num_steps,
      save_every_steps=config.checkpoints.save_every_steps,
    )
    return open_candidates(
      setup,
      examples,
      Packer([bucket], groups=self._num_rows, pack=False),
      decisions,
      self._resumed._replace(retrieved=None),
      run.closing,
    )

  def _setup(self) -> RunSetup:
    """Returns the setup of this process's rows, on its own devices.

    Each example is a group of rows of its own, so that every array of a batch
    can be divided between any two examples.
    """
    config, whole = self._run.config, self._run.setup
    stage: Any = config.stage
    if stage.needs_index:
      stage = dataclasses.replace(stage, current_queries=False)
    devices = jax.local_devices()
    data = math.gcd(self._num_rows, len(devices))
    batch_size = config.data.batch_size
    rows = np.arange(batch_size).reshape(self._num_shards, -1)[self._shard_id]
    return dataclasses.replace(
      whole,
      config=dataclasses.replace(config, stage=stage),
      mesh=make_mesh(model_parallelism=len(devices) // data, devices=devices),
      own_rows=rows,
      inputs=ModelInputs(
        whole.inputs.models, groups=RowGroups(batch_size, tuple(rows.tolist()))
      ),
    )


def get_dataset(
  cfg: utils.DatasetConfig,
  shard_id: int,
  num_shards: int,
  feature_converter_cls: Any = None,
  num_epochs: int | None = None,
  continue_from_last_checkpoint: bool = True,
  *,
  run: EngineRun,
) -> CandidateInfeed:
  """Returns the infeed of a run: t5x's `get_dataset_fn`.

  The arguments without documentation are t5x's, and have no effect: examples
  are repeated without end, from where the run's last checkpoint left off.

  Args:
    cfg: t5x's configuration of the data, which names task and batch size.
    shard_id: Number of the shard whose rows this process feeds.
    num_shards: Number of shards.
    run: Run whose batches they are.

  Raises:
    ValueError: `cfg` is of other data than the run, or processes could not
      agree on the generations that they search.
  """
  del feature_converter_cls, num_epochs, continue_from_last_checkpoint
  data = run.config.data
  given = (cfg.mixture_or_task_name, cfg.split, cfg.batch_size)
  if given != (data.task, data.split, data.batch_size):
    raise ValueError(
      "utils.DatasetConfig has other data than inputs.DataConfig: "
      f"{given}, not {(data.task, data.split, data.batch_size)}"
    )
  if run.config.stage.needs_index:
    _require_known_generations(run, num_shards)
  return CandidateInfeed(run, shard_id=shard_id, num_shards=num_shards)


def _require_known_generations(run: EngineRun, num_shards: int) -> None:
  """Checks that nothing is searched that others do not expect."""
  config, num_processes = run.config, jax.process_count()
  if num_shards < num_processes and not config.waits:
    raise ValueError(
      f"{num_processes} processes share {num_shards} shards of the data, and "
      "those of one shard must search the same generations; bind "
      "WAIT_FOR_GENERATIONS = True, or lower MODEL_PARALLELISM"
    )
  step, every = run.first[0], config.checkpoints.save_every_steps
  if config.waits and step % every:
    raise ValueError(
      f"checkpoint {step} is no multiple of SAVE_EVERY_STEPS={every}, from "
      "which t5x would count on, and the generations that are waited for would "
      "not be built; continue it with realm_jax.train"
    )
