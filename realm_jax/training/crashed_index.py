"""What a run searches when the process that searches its index is gone."""

import dataclasses
from collections.abc import Callable

from absl import logging
from etils import epath
from jax.sharding import Mesh

from realm_jax.generations import layout
from realm_jax.generations.loaded import Generation, blocks_of
from realm_jax.generations.manifest import GenerationError
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import BuildOptions, IndexCrashedError

ON_CRASH = ("exact", "last", "fail")


class CrashPolicy:
  """Finds something to search instead of a crashed index.

  The same vectors by exact search (`exact`), or an earlier generation
  (`last`), until the next generation comes; or nothing (`fail`).

  Args:
    on_crash: which of `ON_CRASH`.
    generations_dir: where earlier ones lie.
    load: loads a step's generation, or raises GenerationError.
    mesh: where exact search runs.
  """

  def __init__(
    self,
    on_crash: str,
    *,
    generations_dir: epath.PathLike,
    load: Callable[[int], Generation],
    mesh: Mesh,
  ):
    self._on_crash = on_crash
    self._directory = generations_dir
    self._load = load
    self._mesh = mesh

  def instead_of(
    self, generation: Generation, error: IndexCrashedError
  ) -> Generation:
    """What to search in place of a generation whose index crashed.

    Raises:
      IndexCrashedError: the run is told to fail.
    """
    step = generation.step
    if self._on_crash == "fail":
      raise IndexCrashedError(
        f"{error}: generation {step} cannot be searched. Start again, or bind "
        "RefreshConfig.on_crash to 'exact' or 'last' to go on without"
      ) from error
    if self._on_crash == "last":
      for earlier in reversed(layout.published_steps(self._directory)):
        if earlier >= step:
          continue
        try:
          found = self._load(earlier)
        except GenerationError as why:
          logging.warning("generation %d is not used: %s", earlier, why)
          continue
        logging.error(
          "%s: going on with generation %d in place of %d", error, earlier, step
        )
        return found
    logging.error(
      "%s: going on with exact search of generation %d", error, step
    )
    index = ExactConfig().build(
      blocks_of(generation.corpus, generation.embeddings),
      BuildOptions(mesh=self._mesh),
    )
    return dataclasses.replace(generation, index=index)
