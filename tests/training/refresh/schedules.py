"""Schedules over a set of steps instead of a directory of generations."""

import threading

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.training.decisions import Decisions
from realm_jax.training.goodput import Goodput
from realm_jax.training.refresh.fallback import CrashFallback
from realm_jax.training.refresh.schedule import GenerationSchedule


class Loaded(Generation):
  """A generation of which only the steps matter here."""

  def __init__(self, step, oldest=None):
    object.__setattr__(self, "step", step)
    object.__setattr__(self, "_oldest", step if oldest is None else oldest)

  @property
  def oldest_step(self):
    return self._oldest


class ShelfWatcher(GenerationWatcher):
  """A watcher over a set of steps instead of a directory."""

  def __init__(self, steps=()):
    self.steps = set(steps)
    self.used = []

  def newest(self):
    return Loaded(max(self.steps)) if self.steps else None

  def wait_for(self, step, *, timeout):
    del timeout
    if step not in self.steps:
      raise TimeoutError(step)
    return Loaded(step)

  def has_later(self, step):
    return max(self.steps, default=-1) > step

  def in_use(self, step):
    self.used.append(step)


class Earlier(CrashFallback):
  """Goes back by one step."""

  def __init__(self):
    pass

  def replace(self, generation, error):
    return Loaded(generation.step - 1)


def make_schedule(watcher, config, *, save_every_steps, preempted=None):
  """Returns the schedule of a run of 2,000 steps."""
  decisions = Decisions(
    preempted or threading.Event(),
    num_steps=2000,
    save_every_steps=save_every_steps,
  )
  return GenerationSchedule(
    watcher,
    config,
    model_dir="run",
    every_steps=config.refresh_every_steps or save_every_steps,
    decisions=decisions,
    fallback=Earlier(),
    goodput=Goodput(),
  )
