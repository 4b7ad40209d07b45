"""Generations whose blocks lie on the devices, vectors and tokens."""

import dataclasses
from collections.abc import Callable

from etils import epath

from realm_jax.generations.loading import Generation
from realm_jax.generations.manifest import GenerationError
from realm_jax.generations.store import GenerationStore
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.training.search_in_step import SearchedBlocks
from realm_jax.training.setup import StepSetup
from realm_jax.training.token_store import BlockArrays, load_blocks


@dataclasses.dataclass(frozen=True)
class DeviceGeneration(Generation):
  """A generation with an exact index, and the tokens of its blocks."""

  blocks: BlockArrays

  def searched(self, setup: StepSetup) -> SearchedBlocks:
    """Returns what a step of a run searches."""
    index, config = self.index, setup.config
    assert isinstance(index, ExactIndex)
    current = config.stage.current_queries
    return SearchedBlocks(
      query_params={} if current else self.query_params,
      vectors=index.vectors,
      count=index.count,
      blocks=self.blocks,
      plan=index.plan(setup.num_searched, num_queries=config.data.batch_size),
    )


class DeviceGenerationLoader:
  """Loads generations and the tokens of the corpus version of each.

  Generations in a row that are of one corpus version share its tokens.

  Args:
    directory: Directory of the generations.
    load: Loader of generations.
    setup: Lengths and devices of the run.
  """

  def __init__(
    self,
    directory: epath.Path,
    load: Callable[..., Generation],
    setup: StepSetup,
  ):
    self._store = GenerationStore(directory)
    self._load = load
    self._setup = setup
    self._last: DeviceGeneration | None = None

  def __call__(
    self, step: int, *, index: IndexConfig | None = None
  ) -> Generation:
    """Loads the generation of a step; see `load_generation`.

    Raises:
      GenerationError: It cannot be used, or has another index.
    """
    kind = self._store.manifest(step).index_kind
    if kind != ExactIndex.kind:
      raise GenerationError(
        f"{self._store.path(step)} has an index of the kind {kind!r}, and "
        "RETRIEVE_ON_DEVICE = True searches an exact one alone: publish "
        "generations with INDEX = %EXACT, or set RETRIEVE_ON_DEVICE = False"
      )
    generation = self._load(step, index=index)
    last, corpus = self._last, generation.corpus
    if last is not None and last.corpus.fingerprint == corpus.fingerprint:
      blocks = last.blocks
    else:
      length = self._setup.config.data.block_length
      blocks = load_blocks(corpus, block_length=length, mesh=self._setup.mesh)
    self._last = DeviceGeneration(**vars(generation), blocks=blocks)
    return self._last
