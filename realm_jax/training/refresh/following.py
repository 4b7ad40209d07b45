"""Follows the index builder: watcher, schedule and fallback of a run."""

import contextlib
import functools
from collections.abc import Iterator

from etils import epath

from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.training.decisions import Decisions
from realm_jax.training.refresh.corpus_versions import load_for_run
from realm_jax.training.refresh.fallback import CrashFallback
from realm_jax.training.refresh.schedule import GenerationSchedule
from realm_jax.training.setup import RunSetup


@contextlib.contextmanager
def follow_builder(
  setup: RunSetup, decisions: Decisions
) -> Iterator[GenerationSchedule]:
  """Watches a run's generations while the context is open."""
  config = setup.config
  directory = epath.Path(config.model_dir) / layout.FOLDER
  fallback = CrashFallback(
    config.refresh.on_crash,
    generations_dir=directory,
    load=functools.partial(
      load_for_run,
      directory,
      corpus=setup.corpus,
      num_searched=setup.identity.num_searched,
      mesh=setup.mesh,
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
