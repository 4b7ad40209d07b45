"""What a row's bindings make of the recipe of pre-training."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from realm_jax.ablation.rows import SHARED_BINDINGS, Bindings, Row, Times
from realm_jax.stage_commands import Value
from realm_jax.training.config import TrainConfig

_REFRESH, _SAVE, _NUM = "REFRESH_EVERY_STEPS", "SAVE_EVERY_STEPS", "NUM_STEPS"
_WAIT, _LAG = "WAIT_FOR_GENERATIONS", "LAG_STEPS"

# Reads the recipe of pre-training with these bindings.
Read = Callable[[Mapping[str, Value]], TrainConfig]


class Resolved(NamedTuple):
  """A row's pre-training.

  Attributes:
    bindings: Bindings over the recipe, as values.
    config: Configuration that they make.
    is_never_refreshed: Whether the run ends before a second generation is due.
  """

  bindings: dict[str, Value]
  config: TrainConfig
  is_never_refreshed: bool

  @property
  def key(self) -> str:
    """Text that is equal where two rows train the same."""
    refresh = dataclasses.replace(
      self.config.refresh, refresh_every_steps=self.config.refresh_every_steps
    )
    return repr(dataclasses.replace(self.config, refresh=refresh))


def resolve(row: Row, read: Read) -> Resolved:
  """Returns a row's bindings, with the recipe's values for multiples of them.

  Rows that are never refreshed are made equal: their checkpoints are as far
  apart as the recipe's, and the second generation is due after the last step.

  Raises:
    ValueError: The recipe or a binding is wrong.
  """
  bindings, sizes = _values(row.bindings, read)
  every, lag = bindings.get(_REFRESH) or sizes[_SAVE], bindings[_LAG]
  assert isinstance(every, int)
  assert isinstance(lag, int)
  is_never_refreshed = every + lag >= sizes[_NUM]
  if is_never_refreshed and _REFRESH in bindings:
    others = {
      name: value
      for name, value in row.bindings.items()
      if name not in (_REFRESH, _SAVE)
    }
    never: Bindings = {**others, _REFRESH: Times(1, _NUM)}
    bindings, _ = _values(never, read)
  return Resolved(bindings, read(bindings), is_never_refreshed)


def _values(
  bindings: Bindings, read: Read
) -> tuple[dict[str, Value], dict[str, int]]:
  """Returns bindings as values, and the sizes that multiples are of."""
  bindings = {**SHARED_BINDINGS, **bindings}
  plain = {n: v for n, v in bindings.items() if not isinstance(v, Times)}
  config = read({**plain, _WAIT: False})
  save = config.checkpoints.save_every_steps
  sizes = {_SAVE: save, _NUM: config.num_steps}
  values: dict[str, Value] = dict(plain)
  for name, value in bindings.items():
    if isinstance(value, Times):
      product = value.factor * sizes[value.name]
      # Generations are built from checkpoints, so their distance is rounded up.
      values[name] = -(-product // save) * save if name == _REFRESH else product
  return values, sizes
