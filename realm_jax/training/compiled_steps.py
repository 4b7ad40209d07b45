"""A run's steps, compiled before the first of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from realm_jax.partitioning import cpu_tuning, rules
from realm_jax.training.rooms import Room, in_room, room_of
from realm_jax.training.state import TrainState
from realm_jax.training.step import Batch, train_step

Metrics = dict[str, jax.Array]


def compile_steps(
  state: TrainState,
  batch: Batch,
  rooms: Sequence[Room] | None,
  *,
  shardings: Any,
  hold: bool,
  release: bool,
  mesh: Mesh,
  **settings: Any,
) -> Callable[..., tuple[TrainState, Metrics]]:
  """Compiles `train_step` for all that a run will meet.

  Args:
    state: on the devices.
    batch: one of the run's, on the devices.
    rooms: in which its batches are packed; None where they are padded.
    shardings: of the state.
    hold: whether there are steps that hold the retriever still, …
    release: … and steps that do not.
    mesh: of the devices.
    **settings: of `train_step`.

  Returns:
    `(state, batch, *, hold_retriever) -> (state, metrics)`, which can never
    compile again.
  """
  batches = [batch] if rooms is None else [in_room(batch, r) for r in rooms]
  compiled = {}
  for holds in (True, False):
    if not (hold if holds else release):
      continue
    step = jax.jit(
      functools.partial(train_step, hold_retriever=holds, **settings),
      donate_argnums=0,
      out_shardings=(shardings, rules.replicated(mesh)),
    )
    for shapes in batches:
      with rules.in_effect(mesh):
        compiled[holds, room_of(shapes)] = step.lower(state, shapes).compile(
          cpu_tuning.compiler_options(mesh)
        )
  cpu_tuning.return_freed_memory()

  def run_step(state: TrainState, batch: Batch, *, hold_retriever: bool):
    return compiled[hold_retriever, room_of(batch)](state, batch)

  return run_step
