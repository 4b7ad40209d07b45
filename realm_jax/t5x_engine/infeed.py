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


class CandidateInfeed(DatasetIterator):
  """The batches of a run, as dictionaries of this process's rows.

  It opens the data, and waits for the first generation, when the first batch
  is asked for. t5x does so in a thread, so that the generation can be built
  from the checkpoint that t5x saves meanwhile. Examples are repeated without
  end, from where the run's last checkpoint left off.

  Args:
    cfg: t5x's configuration of the data, which names task and batch size.
    shard_id: Number of the shard whose rows this process feeds.
    num_shards: Number of shards.
    feature_converter_cls: An argument of t5x's, without effect.
    run: Run whose batches they are.

  Raises:
    ValueError: `cfg` is of other data than the run, t5x divides the batch
      otherwise, or the generations that a run waits for would not be built.
  """

  def __init__(
    self,
    cfg: utils.DatasetConfig,
    shard_id: int,
    num_shards: int,
    feature_converter_cls: Any = None,
    *,
    run: EngineRun,
  ):
    del feature_converter_cls
    self._run, self._step = run, run.first_step
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
        f"t5x wants the rows {rows} of this process, whose checkpoints have "
        f"the rows {run.setup.own_rows}; choose another MODEL_PARALLELISM"
      )
    every = run.config.checkpoints.save_every_steps
    if run.config.waits and run.first_step % every:
      raise ValueError(
        f"checkpoint {run.first_step} is no multiple of SAVE_EVERY_STEPS="
        f"{every}, from which t5x would count on, and the generations that are "
        "waited for would not be built; continue it with realm_jax.train"
      )

  @property
  def element_spec(self) -> dict[str, ArraySpec]:
    """Shapes and types of this process's rows."""
    num_rows = len(self._run.setup.own_rows)
    return {
      name: ArraySpec(array.dtype, (num_rows, *array.shape[1:]))
      for name, array in self._run.example.items()
    }

  def __next__(self) -> dict[str, np.ndarray]:
    run = self._run
    if run.candidates is None:
      run.candidates = self._open()
      run.candidates.prefetch(self._step, {})
    batch = run.candidates.take(self._step).batch
    self._step += 1
    if self._step < run.config.num_steps:
      run.candidates.prefetch(self._step, {})
    return flatten(batch)

  def _open(self) -> Candidates:
    """Opens the candidates of this process's rows, on its own devices."""
    run, setup, config = self._run, self._run.setup, self._run.config
    examples = BatchStream(
      dataclasses.replace(config.data, corpus_version=setup.examples.version),
      rows=setup.own_rows,
      positions=run.resumed.positions,
    )
    run.closing.callback(examples.close)
    stage: Any = config.stage
    if stage.needs_index:
      stage = dataclasses.replace(stage, current_queries=False)
    devices = jax.local_devices()
    data = math.gcd(len(setup.own_rows), len(devices))
    return open_candidates(
      dataclasses.replace(
        setup,
        config=dataclasses.replace(config, stage=stage),
        mesh=make_mesh(model_parallelism=len(devices) // data, devices=devices),
      ),
      examples,
      Decisions(
        threading.Event(),
        num_steps=config.num_steps,
        save_every_steps=config.checkpoints.save_every_steps,
        check=_require_no_error,
      ),
      run.resumed._replace(retrieved=None),
      run.closing,
      Goodput(),
    )


def _require_no_error() -> None:
  """Ends the wait for a generation in a process that has failed.

  t5x waits in a thread, for which Python waits at its exit.
  """
  # Set once an error that nobody has handled is printed.
  if hasattr(sys, "last_value"):
    raise RuntimeError("the process has failed") from sys.last_value
