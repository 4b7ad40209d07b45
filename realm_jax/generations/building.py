"""Makes and publishes one generation, together with whoever else is at it."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.generations import earlier as earliers
from realm_jax.generations import layout, refresh_plan, shared_work
from realm_jax.generations.earlier import Earlier
from realm_jax.generations.leases import Lease
from realm_jax.generations.making import GenerationMaker
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.partial_refresh import PartialRefresh
from realm_jax.generations.publisher import (
  DamagedFileError,
  publish,
  room_for,
  stands,
)
from realm_jax.generations.refresh_plan import RefreshPlan, Stored
from realm_jax.generations.retrieved import retrieved_counts
from realm_jax.generations.shared_work import SharedWork, WorkGoneError

_POLL_SECONDS = 0.2


class GenerationBuilder:
  """Makes one generation after another of a run.

  Args:
    maker: of their files.
    corpus: whose blocks they are of.
    model_dir: the run's.
    generations_dir: where they go.
    partial: what to embed anew of each; None is everything.
  """

  def __init__(
    self,
    maker: GenerationMaker,
    corpus: Corpus,
    *,
    model_dir: epath.PathLike,
    generations_dir: epath.PathLike,
    partial: PartialRefresh | None = None,
  ):
    self._maker = maker
    self._corpus = corpus
    self._model_dir = model_dir
    self._directory = epath.Path(generations_dir)
    self._partial = partial
    self._keys: np.ndarray | None = None
    if partial is not None:
      self._keys = earliers.block_keys(corpus)

  def build(
    self,
    step: int,
    params: Any,
    *,
    check: Callable[[], None],
    is_of_use: Callable[[int], bool] = lambda step: True,
  ) -> bool:
    """Makes and publishes the generation of a checkpoint.

    Args:
      step: the checkpoint's.
      params: its retriever, on the devices.
      check: called now and then; what it raises ends the work.
      is_of_use: whether the generation of another step may still be made; the
        shards of those that may not are removed.

    Returns:
      False where another builder published it.
    """
    earlier = self._earlier(step)
    with contextlib.ExitStack() as stack:
      lease = Lease(self._directory)
      stack.callback(lease.release)

      def check_and_hold() -> None:
        check()
        if earlier is not None:
          lease.hold({earlier.manifest.step})

      check_and_hold()
      stack.enter_context(room_for(self._directory, step))
      work = stack.enter_context(self._joined(step, params, earlier))
      if not layout.is_remote(self._directory):
        shared_work.remove_useless(
          Path(self._directory), is_of_use, current=work.directory
        )
      with contextlib.suppress(WorkGoneError):
        return self._embed_and_publish(
          work, step, params, earlier, check_and_hold
        )
    return False

  def _earlier(self, step: int) -> Earlier | None:
    if self._partial is None:
      return None
    return earliers.find_earlier(
      self._directory,
      step,
      corpus=self._corpus,
      model=self._maker.model,
      dtype=self._maker.layout.dtype,
    )

  @contextlib.contextmanager
  def _joined(
    self, step: int, params: Any, earlier: Earlier | None
  ) -> Iterator[SharedWork]:
    identity = self._maker.identity(params)
    if earlier is not None:
      assert self._partial is not None
      identity["earlier"] = earlier.checksum
      identity["partial"] = dataclasses.asdict(self._partial)
    with contextlib.ExitStack() as stack:
      parent = Path(self._directory)
      if layout.is_remote(self._directory):
        # No locks there: one builder, with a scratch of its own.
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory()))
      yield stack.enter_context(
        shared_work.joined(
          parent, step=step, shards=self._maker.layout, identity=identity
        )
      )

  def _embed_and_publish(
    self,
    work: SharedWork,
    step: int,
    params: Any,
    earlier: Earlier | None,
    check: Callable[[], None],
  ) -> bool:
    with contextlib.ExitStack() as stack:
      stored: Stored | None = None
      plan = RefreshPlan.full(self._corpus.num_blocks, self._maker.layout.dim)
      if earlier is not None:
        assert self._keys is not None
        with contextlib.suppress(GenerationError):
          # What is wrong with it the plan says.
          stored = stack.enter_context(
            earliers.opened(earlier, self._keys, corpus=self._corpus)
          )
        plan = self._plan(work, step, params, earlier, stored, check)
      while not self._stands(step):
        check()
        with work.claimed() as shard:
          if shard is not None:
            self._embed(work, shard, step, params, plan, stored, check)
            continue
        with work.finishing() as ours:
          if ours:
            done = self._publish(work, step, params, plan, check)
            if done is not None:
              work.remove()
              return done
            continue
        time.sleep(_POLL_SECONDS)
    return False

  def _stands(self, step: int) -> bool:
    published = layout.path_of(self._directory, step)
    manifest = published / layout.MANIFEST
    return manifest.exists() and stands(published, self._maker.replaces)

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
    config, maker = self._partial, self._maker
    assert config is not None

    def make(path: Path) -> None:
      plan = RefreshPlan.full(self._corpus.num_blocks, maker.layout.dim)
      try:
        earliers.verify(earlier)
        assert stored is not None
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
      except GenerationError as error:
        logging.warning("generation %d embeds every block: %s", step, error)
      plan.save(path)

    plan = RefreshPlan.load(work.once(refresh_plan.NAME, make, check=check))
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
      embed=lambda rows: self._maker.embedder.embed(params, rows, check=check),
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
    check: Callable[[], None],
  ) -> bool | None:
    """Whether we published it; None where a shard has to be made again."""

    def write(directory: Path) -> Manifest:
      return self._maker.write(
        directory,
        step=step,
        params=params,
        stored=work.place(directory),
        partial=plan.record,
        keys=self._keys,
        check=check,
      )

    try:
      return publish(
        self._directory, step, write, replaces=self._maker.replaces
      )
    except DamagedFileError as error:
      work.discard(error.path)
      return None
