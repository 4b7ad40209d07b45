"""Generations whose blocks lie on the devices, vectors and tokens."""

import dataclasses
import threading
import weakref

from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.retrieval.device_candidates import SearchedVectors
from realm_jax.retrieval.token_store import TokenStore
from realm_jax.training.batches import Searched
from realm_jax.training.refresh.fallback import LoadGeneration
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


class DeviceGenerationLoader:
  """Loads generations and the tokens of the corpus version of each.

  Generations of one corpus version share its tokens.

  Args:
    directory: Directory of the generations.
    load: Loader of generations.
    setup: Models, lengths and devices of the run.
  """

  def __init__(
    self, directory: epath.Path, load: LoadGeneration, setup: StepSetup
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
    """Loads the generation of a step; see `load_for_run`.

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
