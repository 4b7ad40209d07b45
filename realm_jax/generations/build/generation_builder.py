"""Makes and publishes one generation, together with whoever else is at it."""

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax.generations.build import base_generation as earliers
from realm_jax.generations.build import refresh_plan, shared_work
from realm_jax.generations.build.artifacts import GenerationMaker
from realm_jax.generations.build.base_generation import Earlier
from realm_jax.generations.build.partial_refresh import PartialRefresh
from realm_jax.generations.build.refresh_plan import RefreshPlan, Stored
from realm_jax.generations.build.retrieved import retrieved_counts
from realm_jax.generations.build.shared_work import SharedWork, WorkGoneError
from realm_jax.generations.store import layout
from realm_jax.generations.store.leases import Lease
from realm_jax.generations.store.manifest import (
  DamagedFileError,
  GenerationError,
  Manifest,
)
from realm_jax.generations.store.publisher import (
  DiskFullError,
  publish,
  room_for,
  stands,
)

_POLL_SECONDS = 0.2


class GenerationBuilder:
  """Makes one generation after another of a run.

  Args:
    maker: of their files, from one version of the corpus.
    model_dir: the run's.
    generations_dir: where they go.
    partial: what to embed anew of each; None is everything.
  """

  def __init__(
    self,
    maker: GenerationMaker,
    *,
    model_dir: epath.PathLike,
    generations_dir: epath.PathLike,
    partial: PartialRefresh | None = None,
  ):
    self.maker = maker
    self.directory = epath.Path(generations_dir)
    self._corpus = maker.corpus
    self._model_dir = model_dir
    self._partial = partial
    self._keys: np.ndarray | None = None
    if partial is not None:
      self._keys = earliers.block_keys(maker.corpus)

  def build(
    self,
    step: int,
    params: Any,
    *,
    check: Callable[[], None],
    is_of_use: Callable[[int], bool] = lambda step: True,
    any_version: bool = False,
  ) -> bool:
    """Makes and publishes the generation of a checkpoint.

    Args:
      step: the checkpoint's.
      params: its retriever, on the devices.
      check: called now and then; what it raises ends the work.
      is_of_use: whether the generation of another step may still be made; the
        shards of those that may not are removed.
      any_version: whether a generation of an earlier version of the corpus
        that another builder published will do.

    Returns:
      False where another builder published it, or removed what there was.
    """
    earlier = self._earlier(step)
    replaces = functools.partial(self.maker.replaces, any_version=any_version)
    with contextlib.ExitStack() as stack:
      lease = Lease(self.directory)
      stack.callback(lease.release)

      def check_and_hold() -> None:
        check()
        if earlier is not None:
          lease.hold({earlier.manifest.step})

      stack.enter_context(room_for(self.directory, step))
      check_and_hold()
      work = stack.enter_context(self._joined(step, params, earlier))
      if not layout.is_remote(self.directory):
        shared_work.remove_useless(
          Path(self.directory), is_of_use, current=work.directory
        )
      with contextlib.suppress(WorkGoneError):
        return self._embed_and_publish(
          work, step, params, earlier, replaces, check_and_hold
        )
    return False

  def _earlier(self, step: int) -> Earlier | None:
    if self._partial is None:
      return None
    return earliers.find_earlier(
      self.directory,
      step,
      corpus=self._corpus,
      model=self.maker.model,
      dtype=self.maker.layout.dtype,
    )

  @contextlib.contextmanager
  def _joined(
    self, step: int, params: Any, earlier: Earlier | None
  ) -> Iterator[SharedWork]:
    identity = self.maker.identity(params)
    if earlier is not None:
      assert self._partial is not None
      identity["earlier"] = earlier.checksum
      identity["partial"] = dataclasses.asdict(self._partial)
    with contextlib.ExitStack() as stack:
      parent = Path(self.directory)
      if layout.is_remote(self.directory):
        # No locks there: one builder, with a scratch of its own. One that is
        # killed begins its generation anew.
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      yield stack.enter_context(
        shared_work.joined(
          parent, step=step, shards=self.maker.layout, identity=identity
        )
      )

  def _embed_and_publish(
    self,
    work: SharedWork,
    step: int,
    params: Any,
    earlier: Earlier | None,
    replaces: Callable[[Manifest], bool],
    check: Callable[[], None],
  ) -> bool:
    with contextlib.ExitStack() as stack:
      stored: Stored | None = None
      plan = RefreshPlan.full(self._corpus.num_blocks, self.maker.layout.dim)
      if earlier is not None:
        assert self._keys is not None
        try:
          stored = stack.enter_context(
            earliers.opened(earlier, self._keys, corpus=self._corpus)
          )
        except GenerationError as error:
          logging.warning(
            "nothing is taken from generation %d: %s",
            earlier.manifest.step,
            error,
          )
        plan = self._plan(work, step, params, earlier, stored, check)
      while not self._stands(step, replaces):
        check()
        with work.claimed() as shard:
          if shard is not None:
            self._embed(work, shard, step, params, plan, stored, check)
            continue
        with work.finishing() as ours:
          if ours:
            done = self._publish(work, step, params, plan, replaces, check)
            if done is not None:
              work.remove()
              return done
            continue
        time.sleep(_POLL_SECONDS)
    return False

  def _stands(self, step: int, replaces: Callable[[Manifest], bool]) -> bool:
    published = layout.path_of(self.directory, step)
    manifest = published / layout.MANIFEST
    return manifest.exists() and stands(published, replaces)

  def _plan(
    self,
    work: SharedWork,
    step: int,
    params: Any,
    earlier: Earlier,
    stored: Stored | None,
    check: Callable[[], None],
  ) -> RefreshPlan:
    """The plan that the first to come makes, and all follow."""
    config, maker = self._partial, self.maker
    assert config is not None

    def make(path: Path) -> None:
      plan = RefreshPlan.full(self._corpus.num_blocks, maker.layout.dim)
      if stored is None:
        logging.info("generation %d embeds every block", step)
      else:
        plan = refresh_plan.make_plan(
          config,
          stored,
          step=step,
          embed=lambda rows: maker.embedder.embed(params, rows, check=check),
          costs=maker.embedder.costs(),
          retrieved=retrieved_counts(
            self._model_dir, self._corpus, until=step, decay=config.decay
          ),
          dim=maker.layout.dim,
          normalize=maker.normalize,
        )
      plan.save(path)

    plan = work.once(refresh_plan.NAME, make, RefreshPlan.load, check=check)
    if plan.record is not None and stored is None:
      raise GenerationError(
        f"generation {earlier.manifest.step} was damaged while generation "
        f"{step} was made of it; start build_index again"
      )
    return plan

  def _embed(
    self,
    work: SharedWork,
    shard: int,
    step: int,
    params: Any,
    plan: RefreshPlan,
    stored: Stored | None,
    check: Callable[[], None],
  ) -> None:
    start = time.monotonic()
    vectors, steps = plan.vectors(
      work.layout.rows(shard),
      embed=lambda rows: self.maker.embedder.embed(params, rows, check=check),
      stored=stored,
      step=step,
    )
    work.put(shard, vectors, steps, seconds=time.monotonic() - start)

  def _publish(
    self,
    work: SharedWork,
    step: int,
    params: Any,
    plan: RefreshPlan,
    replaces: Callable[[Manifest], bool],
    check: Callable[[], None],
  ) -> bool | None:
    """Whether we published it; None where a shard has to be made again."""

    def write(directory: Path) -> Manifest:
      return self.maker.write(
        directory,
        step=step,
        params=params,
        stored=work.place(directory),
        partial=plan.record,
        keys=self._keys,
        previous=earliers.index_before(
          self.directory, step, kind=self.maker.index_kind
        ),
        check=check,
      )

    try:
      return publish(self.directory, step, write, replaces=replaces)
    except DamagedFileError as error:
      work.discard(error.path)
      return None
    except (DiskFullError, WorkGoneError):
      raise
    except Exception as error:
      check()  # It may be what was raised.
      # Vectors that are damaged fail in any way, or are not found well.
      if not work.discard_damaged():
        raise
      logging.warning("generation %d could not be written: %r", step, error)
      return None
