"""Follows the index builder: watcher, schedule and fallback of a run."""

import contextlib
import functools
from collections.abc import Iterator

from etils import epath
from jax.sharding import Mesh

from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.refresh.corpus_versions import load_for_run
from realm_jax.training.refresh.fallback import CrashFallback
from realm_jax.training.refresh.schedule import GenerationSchedule


@contextlib.contextmanager
def follow_builder(
  config: TrainConfig,
  *,
  corpus: Corpus,
  num_searched: int,
  mesh: Mesh,
  decisions: Decisions,
) -> Iterator[GenerationSchedule]:
  """Watches a run's generations while the context is open.

  Args:
    config: Configuration of the run.
    corpus: Corpus version that the run reads.
    num_searched: Number of blocks to retrieve for each query.
    mesh: Mesh of the run.
    decisions: Decisions that all processes take alike.
  """
  directory = epath.Path(config.model_dir) / layout.FOLDER
  fallback = CrashFallback(
    config.refresh.on_crash,
    generations_dir=directory,
    load=functools.partial(
      load_for_run,
      directory,
      corpus=corpus,
      num_searched=num_searched,
      mesh=mesh,
    ),
  )
  with GenerationWatcher(
    directory, fallback.load, follow=config.refresh.follow
  ) as watcher:
    yield GenerationSchedule(
      watcher,
      config.refresh,
      save_every_steps=config.checkpoints.save_every_steps,
      decisions=decisions,
      fallback=fallback,
    )
