"""How a run follows the index builder: watcher, schedule and crash policy."""

import contextlib
import functools
from collections.abc import Callable

from etils import epath
from jax.sharding import Mesh

from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.training.corpus_versions import load_for_run
from realm_jax.training.crashed_index import CrashPolicy
from realm_jax.training.refresh import GenerationSchedule, RefreshConfig


def follow_builder(
  model_dir: epath.PathLike,
  config: RefreshConfig,
  *,
  corpus: Corpus,
  num_searched: int,
  mesh: Mesh,
  save_every_steps: int,
  is_stopping: Callable[[], bool],
  stack: contextlib.ExitStack,
) -> GenerationSchedule:
  """Starts to watch a run's generations, until the stack is left.

  Args:
    model_dir: the run's.
    config: how it follows.
    corpus: the version that the run reads.
    num_searched: blocks that each query wants.
    mesh: of the run.
    save_every_steps: the distance of its checkpoints.
    is_stopping: whether it was told to stop.
    stack: ends the watching.
  """
  directory = epath.Path(model_dir) / layout.FOLDER
  load = functools.partial(
    load_for_run,
    directory,
    corpus=corpus,
    num_searched=num_searched,
    mesh=mesh,
  )
  crash_policy = CrashPolicy(
    config.on_crash, generations_dir=directory, load=load
  )
  watcher = GenerationWatcher(
    directory, crash_policy.load, follow=config.follow
  )
  stack.callback(watcher.close)
  return GenerationSchedule(
    watcher,
    config,
    save_every_steps=save_every_steps,
    crash_policy=crash_policy,
    is_stopping=is_stopping,
  )
