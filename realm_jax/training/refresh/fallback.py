"""What a run searches when the process that searches its index is gone."""

from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import IndexCrashedError

ON_CRASH = ("exact", "last", "fail")


class CrashPolicy:
  """Finds something to search instead of a crashed index.

  The same vectors by exact search (`exact`), or an earlier generation
  (`last`), until the next generation comes; or nothing (`fail`). Where one is
  not to be had, the other is tried. What is on the disk is verified afresh.
  An index that crashes as it is loaded gives way to exact search with either.

  Args:
    on_crash: which of `ON_CRASH`.
    generations_dir: where earlier ones lie.
    load: loads a step's generation, with another `index` where one is given,
      or raises GenerationError or IndexCrashedError.
  """

  def __init__(
    self,
    on_crash: str,
    *,
    generations_dir: epath.PathLike,
    load: Callable[..., Generation],
  ):
    self._on_crash = on_crash
    self._directory = generations_dir
    self._load = load

  def load(self, step: int) -> Generation:
    """A step's generation, by exact search where its index crashes.

    Raises:
      GenerationError: it cannot be used.
      IndexCrashedError: its index crashed, and the run is told to fail.
    """
    try:
      return self._load(step)
    except IndexCrashedError as error:
      self._require_going_on(step, error)
      found = self._load_exact(step)
      logging.error(
        "%s: going on with exact search of generation %d", error, step
      )
      return found

  def _require_going_on(self, step: int, error: IndexCrashedError) -> None:
    if self._on_crash == "fail":
      raise IndexCrashedError(
        f"{error}: generation {step} cannot be searched. Start again, or bind "
        "RefreshConfig.on_crash to 'exact' or 'last' to go on without"
      ) from error

  def _load_exact(self, step: int) -> Generation:
    manifest = manifests.read(layout.path_of(self._directory, step))
    return self._load(step, index=ExactConfig(dtype=manifest.dtype))

  def instead_of(
    self, generation: Generation, error: IndexCrashedError
  ) -> Generation:
    """What to search in place of a generation whose index crashed.

    Raises:
      IndexCrashedError: the run is told to fail, or nothing is left.
    """
    step = generation.step
    self._require_going_on(step, error)
    published = layout.published_steps(self._directory)
    earlier = [other for other in reversed(published) if other < step]
    order = [*earlier, step] if self._on_crash == "last" else [step, *earlier]
    for other in order:
      try:
        # The index that crashed is not loaded again.
        load = self._load_exact if other == step else self.load
        found = load(other)
      except GenerationError as why:
        logging.warning("generation %d is not used: %s", other, why)
        continue
      how = "exact search of generation" if other == step else "generation"
      instead = "" if other == step else f" in place of {step}"
      logging.error("%s: going on with %s %d%s", error, how, other, instead)
      return found
    raise IndexCrashedError(
      f"{error}: no generation is left to search in place of {step}. Start "
      "again, with the index builder beside"
    ) from error
