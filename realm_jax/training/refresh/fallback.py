"""Fallback of a run whose index process has crashed."""

import functools
from typing import Protocol, runtime_checkable

from absl import logging
from etils import epath

from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import IndexConfig, IndexCrashedError
from realm_jax.partitioning.agreement import Agreement


@runtime_checkable
class LoadGeneration(Protocol):
  """Loads the generation of a step, with another index where one is given.

  It raises `GenerationError` or `IndexCrashedError`.
  """

  def __call__(
    self, step: int, *, index: IndexConfig | None = None
  ) -> Generation: ...


class CrashFallback:
  """Replaces an index that has crashed, until the next generation is loaded.

  Either by exact search of the same vectors (`exact`) or by an earlier
  generation (`last`). Where one is not available, the other is tried. Files
  are verified again. An index that crashes while it is loaded is replaced by
  exact search in both cases. With `fail` nothing is replaced.

  Args:
    on_crash: What `RefreshConfig.on_crash` says.
    generations_dir: Directory of the generations.
    load: Loader of generations.
    agreement: Decisions that the loop's own thread waits for.
  """

  def __init__(
    self,
    on_crash: str,
    *,
    generations_dir: epath.PathLike,
    load: LoadGeneration,
    agreement: Agreement,
  ):
    self._agreement = agreement
    self._on_crash = on_crash
    self._directory = generations_dir
    self._load = load

  def load(self, step: int) -> Generation:
    """Loads a generation, with exact search if its index crashes.

    One of several processes does not load an index over all devices alone:
    for it, such a generation cannot be used.

    Raises:
      GenerationError: It cannot be used.
      IndexCrashedError: Its index crashed, and the run is configured to fail.
    """
    try:
      return self._load(step)
    except IndexCrashedError as error:
      if self._agreement.count > 1:
        raise GenerationError(str(error)) from error
      self._require_fallback(step, error)
      return self._load_exact(step, error)

  def _require_fallback(self, step: int, error: IndexCrashedError) -> None:
    if self._on_crash == "fail":
      raise IndexCrashedError(
        f"{error}: generation {step} cannot be searched. Start the run again, "
        "or bind RefreshConfig.on_crash to 'exact' or 'last'"
      ) from error

  def _load_exact(self, step: int, error: IndexCrashedError) -> Generation:
    dtype = manifests.read(layout.path_of(self._directory, step)).dtype
    generation = self._load(step, index=ExactConfig(dtype=dtype))
    logging.error(
      "%s: falling back to exact search of generation %d", error, step
    )
    return generation

  def _order(self, step: int) -> list[int]:
    """Returns the generations that could replace that of a step, best first."""
    published = layout.published_steps(self._directory)
    earlier = [other for other in reversed(published) if other < step]
    return [*earlier, step] if self._on_crash == "last" else [step, *earlier]

  def replace(
    self, generation: Generation, error: IndexCrashedError
  ) -> Generation:
    """Returns what to search instead of a generation whose index crashed.

    Raises:
      IndexCrashedError: The run is configured to fail, or nothing is left.
    """
    step = generation.step
    self._require_fallback(step, error)
    for other in self._agreement.on_process_0(
      "fallbacks", lambda: self._order(step)
    ):
      # The index that has crashed is not loaded again.
      load = functools.partial(self._load_exact, other, error)
      if other != step:
        load = functools.partial(self.load, other)
      try:
        replacement = self._agreement.on_all_processes(
          f"fallback {other}", load, (GenerationError,)
        )
      except GenerationError as reason:
        logging.warning("generation %d is not used: %s", other, reason)
        continue
      if other != step:
        logging.error(
          "%s: falling back from generation %d to %d", error, step, other
        )
      return replacement
    raise IndexCrashedError(
      f"{error}: no generation is left to search instead of {step}. Start the "
      "run again, with the index builder beside it"
    ) from error
