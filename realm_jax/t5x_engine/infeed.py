"""The infeed: batches with their candidates, prepared on the host.

t5x's loop asks an iterator for its batches, which sees no parameters. So the
queries are embedded by the query tower that the generation was published with,
whatever the stage is configured to do. The search of the next step runs while
the devices compute, as in our own loop.

The tower and an index on devices use the devices of this process alone, so that
no order of programs has to be kept among processes. Which generation they
search is agreed on as in our own loop.
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
from realm_jax.t5x_engine.run import EngineRun, flatten
from realm_jax.training.candidates import Candidates, open_candidates
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import Goodput
from realm_jax.training.setup import RunSetup


class _UntilError(Decisions):
  """Decisions of a process that stops waiting once it has failed.

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

  def __init__(self, run: EngineRun):
    self._run = run
    # The first access reads a checkpoint, before others are written.
    self._step, self._resumed = run.first

  @property
  def _num_rows(self) -> int:
    return len(self._run.setup.own_rows)

  @property
  def element_spec(self) -> dict[str, ArraySpec]:
    """Shapes and types of this process's rows."""
    return {
      name: ArraySpec(array.dtype, (self._num_rows, *array.shape[1:]))
      for name, array in self._run.example.items()
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
    return flatten(batch)

  def _open(self) -> Candidates:
    run, setup = self._run, self._setup()
    config = setup.config
    examples = BatchStream(
      dataclasses.replace(config.data, corpus_version=setup.examples.version),
      rows=setup.own_rows,
      positions=self._resumed.positions,
    )
    run.closing.callback(examples.close)
    decisions = _UntilError(
      threading.Event(),
      num_steps=config.num_steps,
      save_every_steps=config.checkpoints.save_every_steps,
    )
    return open_candidates(
      setup,
      examples,
      decisions,
      self._resumed._replace(retrieved=None),
      run.closing,
      Goodput(),
    )

  def _setup(self) -> RunSetup:
    """Returns the setup of this process's rows, on its own devices."""
    whole = self._run.setup
    stage: Any = whole.config.stage
    if stage.needs_index:
      stage = dataclasses.replace(stage, current_queries=False)
    devices = jax.local_devices()
    data = math.gcd(self._num_rows, len(devices))
    return dataclasses.replace(
      whole,
      config=dataclasses.replace(whole.config, stage=stage),
      mesh=make_mesh(model_parallelism=len(devices) // data, devices=devices),
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
    ValueError: `cfg` is of other data than the run, t5x divides the batch
      otherwise, or the generations that a run waits for would not be built.
  """
  del feature_converter_cls, num_epochs, continue_from_last_checkpoint
  data = run.config.data
  given = (cfg.mixture_or_task_name, cfg.split, cfg.batch_size)
  if given != (data.task, data.split, data.batch_size):
    raise ValueError(
      "utils.DatasetConfig has other data than inputs.DataConfig: "
      f"{given}, not {(data.task, data.split, data.batch_size)}"
    )
  rows = np.arange(data.batch_size).reshape(num_shards, -1)[shard_id]
  if not np.array_equal(rows, run.setup.own_rows):
    raise ValueError(
      f"t5x wants the rows {rows} of this process, whose checkpoints have the "
      f"rows {run.setup.own_rows}; choose another MODEL_PARALLELISM"
    )
  step, every = run.first[0], run.config.checkpoints.save_every_steps
  if run.config.waits and step % every:
    raise ValueError(
      f"checkpoint {step} is no multiple of SAVE_EVERY_STEPS={every}, from "
      "which t5x would count on, and the generations that are waited for would "
      "not be built; continue it with realm_jax.train"
    )
  return CandidateInfeed(run)
