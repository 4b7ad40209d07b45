"""Generations whose blocks lie on the devices, vectors and tokens."""

import dataclasses
import threading
import weakref
from collections.abc import Callable

from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.exact_search import Plan
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.parameters import Params
from realm_jax.retrieval.device_candidates import SearchedVectors
from realm_jax.retrieval.token_store import TokenStore
from realm_jax.training.batches import Searched
from realm_jax.training.generations import GenerationSchedule
from realm_jax.training.setup import StepSetup


@dataclasses.dataclass(frozen=True)
class DeviceGeneration(Generation):
  """A generation with an exact index, and the tokens of its blocks."""

  store: TokenStore

  @property
  def exact_index(self) -> ExactIndex:
    """The index."""
    assert isinstance(self.index, ExactIndex)
    return self.index

  def searched(self, *, current_queries: bool) -> Searched:
    """Returns what a step searches."""
    index = self.exact_index
    return Searched(
      query_params={} if current_queries else self.query_params,
      vectors=SearchedVectors(index.vectors, index.count),
      blocks=self.store.arrays,
    )


class ScheduledIndex:
  """The index of the generation that a schedule chooses for each step.

  A new or resumed run begins with the generation that its checkpoint names,
  `recorded`. It has no vectors of its `own`.
  """

  own = None

  def __init__(
    self,
    setup: StepSetup,
    schedule: GenerationSchedule,
    recorded: int | None,
  ):
    self._setup = setup
    self._schedule = schedule
    self._recorded = recorded
    self._is_open = False

  @property
  def swaps(self) -> int:
    """Number of generations that were swapped in."""
    return self._schedule.swaps

  def at(self, step: int, params: Params) -> "GenerationInUse":
    """Returns what a step searches; steps must be asked for in order."""
    del params
    if self._is_open:
      generation = self._schedule.at(step)
    else:
      generation = self._schedule.start(step, self._recorded)
    self._is_open = True
    assert isinstance(generation, DeviceGeneration)
    return GenerationInUse(self._setup, generation)

  def loaded(self) -> int | None:
    """Returns which generation this process could swap in."""
    return self._schedule.loaded()


@dataclasses.dataclass(frozen=True)
class GenerationInUse:
  """The generation that a step searches."""

  _setup: StepSetup
  _generation: DeviceGeneration

  @property
  def generation(self) -> int:
    """Step of the generation."""
    return self._generation.step

  def metrics(self, step: int) -> dict[str, float]:
    """Returns what the host knows of a step's index."""
    generation = self._generation
    return {
      "staleness_steps": float(step - generation.oldest_step),
      "generation": float(generation.step),
      "corpus_version": float(generation.corpus.version),
    }

  def searched(self) -> Searched:
    """Returns what the step searches."""
    current = self._setup.config.stage.current_queries
    return self._generation.searched(current_queries=current)

  def plan(self, num_queries: int) -> Plan:
    """Returns the settings of the search."""
    index = self._generation.exact_index
    return index.plan(self._setup.num_searched, num_queries=num_queries)


class DeviceGenerationLoader:
  """Loads generations and the tokens of the corpus version of each.

  Generations of one corpus version share its tokens.

  Args:
    directory: Directory of the generations.
    load: Loader of generations.
    setup: Models, lengths and devices of the run.
  """

  def __init__(
    self,
    directory: epath.Path,
    load: Callable[..., Generation],
    setup: StepSetup,
  ):
    self._directory = directory
    self._load = load
    self._setup = setup
    self._lock = threading.Lock()
    # Tokens by the fingerprint of their corpus, while a generation uses them.
    self._stores = weakref.WeakValueDictionary[str, TokenStore]()

  def __call__(
    self, step: int, *, index: IndexConfig | None = None
  ) -> Generation:
    """Loads the generation of a step; see `load_generation`.

    Raises:
      GenerationError: It cannot be used, or has another index.
    """
    path = layout.path_of(self._directory, step)
    kind = manifests.read(path).index_kind
    if kind != ExactIndex.kind:
      raise GenerationError(
        f"{path} has an index of the kind {kind!r}, and RETRIEVE_ON_DEVICE = "
        "True searches an exact one alone: publish generations with "
        "INDEX = %EXACT, or set RETRIEVE_ON_DEVICE = False"
      )
    generation = self._load(step, index=index)
    store = self._store_of(generation.corpus)
    return DeviceGeneration(**vars(generation), store=store)

  def _store_of(self, corpus: Corpus) -> TokenStore:
    with self._lock:
      store = self._stores.get(corpus.fingerprint)
      if store is None:
        setup = self._setup
        store = self._stores[corpus.fingerprint] = TokenStore.of(
          corpus,
          setup.inputs.models.retriever,
          block_length=setup.config.data.block_length,
          mesh=setup.mesh,
        )
      return store
