"""What a stage is to the loop, to the step and to the evaluations."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import lax
from jaxtyping import Bool, Float, Int

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import relevance
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import Asked, require_valid
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.retrieval import Retrieval

# A batch of a stage: numpy's arrays, with a row for each example.
StepBatch = Any
# Such a batch, and metrics that only the host can compute.
Features = tuple[StepBatch, dict[str, float]]


class Encoders(NamedTuple):
  """The components as a loss applies them: with parameters and dropout masks.

  Parameters and the keys of the dropout masks are by component; a component
  without dropout has no key.
  """

  components: Components
  params: Params
  dropout_keys: Mapping[str, jax.Array]

  def frozen(self, component: str) -> "Encoders":
    """Returns the same, but one component without dropout and gradient."""
    keys = {n: key for n, key in self.dropout_keys.items() if n != component}
    constant = jax.lax.stop_gradient(self.params[component])
    return Encoders(self.components, {**self.params, component: constant}, keys)

  def apply(self, component: str, *arguments: Any, **settings: Any) -> Any:
    """Applies the module of a component, by default its `__call__`."""
    variables = {"params": self.params[component]}
    key = self.dropout_keys.get(component)
    rngs = None if key is None else {"dropout": key}
    module = self.components[component]
    return module.apply(variables, *arguments, rngs=rngs, **settings)

  def candidate_scores(self, inputs: EncoderInputs) -> Float[jax.Array, "b k"]:
    """Returns f(x, z) of each query's candidates: see `candidate_vectors`."""
    queries, candidates = self.candidate_vectors(inputs)
    return relevance(
      queries,
      candidates.reshape(len(queries), -1, queries.shape[-1]),
      score_scale=self.components.retriever.score_scale,
    )

  def candidate_vectors(
    self, inputs: EncoderInputs, *, component: str = "retriever"
  ) -> tuple[Float[jax.Array, "q d"], Float[jax.Array, "n d"]]:
    """Returns the vectors of all queries, and of all candidates in order.

    The blocks are those that `distinct_blocks` has laid out.
    """
    queries, blocks = self.apply(component, inputs.queries, inputs.blocks)
    # A device's candidates are among its own blocks.
    index, dim = jnp.asarray(inputs.block_index), blocks.shape[-1]
    candidates = jnp.take_along_axis(
      blocks.reshape(len(index), -1, dim), index[..., None], axis=1
    )
    return queries, candidates.reshape(-1, dim)

  def pair_scores(
    self,
    query: Int[AnyArray, "b q"],
    blocks: Int[AnyArray, "b n l"],
    *,
    at_once: int,
  ) -> Float[jax.Array, "b n"]:
    """Returns the cross-encoder's scores of the padded blocks of each query.

    It reads `at_once` blocks of every query at a time, which bounds its memory.
    """
    size, count, length = blocks.shape
    read, added = jnp.asarray(query), -count % at_once
    whole = jnp.pad(jnp.asarray(blocks), ((0, 0), (0, added), (0, 0)))
    parts = whole.reshape(size, -1, at_once, length).swapaxes(0, 1)
    scores = lax.map(lambda own: self.apply(RERANKER, read, own), parts)
    return scores.swapaxes(0, 1).reshape(size, -1)[:, :count]


class StepOnHost(NamedTuple):
  """A step whose batch is being made, for a stage that asks other services.

  Attributes:
    model_dir: Directory of the run.
    step: Number of the step, from 0.
    stop_requested: Whether the run is to end. A stage that waits then raises a
      `WaitPreemptedError`, and the step is not run.
  """

  model_dir: epath.PathLike
  step: int
  stop_requested: Callable[[], bool] = lambda: False


@dataclasses.dataclass(frozen=True)
class StageContext:
  """The parts of a run from which a stage makes its batches.

  Attributes:
    components: Modules of the run.
    corpus: Corpus version that is searched, to which rows of blocks refer.
    snapshot: Snapshot that was searched, if one was.
    block_length: Padded length of a block.
    examples: Corpus version that examples come from; None for `corpus`.
    answers: Answers in the blocks of this corpus, for a stage that asks.
    step: Step of a run that the batch is for.
  """

  components: Components
  corpus: Corpus
  snapshot: Snapshot | None
  block_length: int
  examples: Corpus | None = None
  answers: AnswersInBlocks | None = None
  step: StepOnHost | None = None

  def gather(self, rows: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k l"]:
    """Returns the padded tokens of blocks."""
    return self.corpus.gather(rows, self.block_length)

  def places(
    self,
    retrieval: Retrieval,
    batch: Batch,
    rows: Int[np.ndarray, "b n"],
    preferred: Bool[np.ndarray, "b n"] | None = None,
    dropped: Bool[np.ndarray, "b n"] | None = None,
  ) -> Int[np.ndarray, "b k"]:
    """Returns the places of the candidates among blocks that were found.

    The sources of a query, one or several, and their verbatim copies are known
    by their hashes, in whichever corpus they are. `preferred` is as in
    `Retrieval.places`; others that are `dropped` go with the sources.
    """
    is_source = np.zeros(rows.shape, bool)
    if retrieval.drop_source:
      sources = batch.array("source_hash").reshape(len(rows), 1, -1)
      hashes = self.corpus.content_hashes[rows]
      is_source = (hashes[..., None] == sources).any(axis=-1)
    if dropped is not None:
      is_source |= dropped
    return np.asarray(retrieval.places(is_source, preferred))

  def vectors(
    self, rows: Int[np.ndarray, "b n"]
  ) -> Float[np.ndarray, "b n d"] | Int[np.ndarray, "b n"]:
    """Returns the stored vectors of blocks, for the field `retrieved`.

    Where the devices hold them, it returns the rows, and the devices look up
    the vectors before the step.
    """
    assert self.snapshot is not None
    if self.snapshot.device_vectors is not None:
      return rows
    return self.snapshot.vectors(rows)


class ExampleArrays(NamedTuple):
  """Arrays and sizes from which a stage makes a batch of the right shapes.

  Each query has `num_candidates` padded blocks, and `num_searched` are searched
  for it. `max_masks` are scored. Their `passages` are for a stage that reads
  these.
  """

  components: Components
  query: Int[np.ndarray, "b q"]
  candidates: Int[np.ndarray, "b k l"]
  num_searched: int
  max_masks: int
  passages: Int[np.ndarray, "b k m"] | None = None


class Stage(abc.ABC):
  """One stage of training: data, and three functions.

  The host makes its batches (`features`); the step makes of them what the
  encoders read (`inputs`), lays that out, and differentiates the `loss`.

  Attributes:
    components: Components that it applies, by name.
    frozen: Those of them whose parameters stay as they are, without dropout.
    retrieval: How it retrieves blocks; None of a stage without an index.
    num_searches: Number of searches of the host for each query.
    hops: Whether those after the first are for `HopRetriever.hop_queries`.
    num_candidates: Number of blocks that its step reads for each query.
    null_block: Whether the first of them is the null block.
    needs_answers: Whether it asks which blocks contain answers.
    reads_passages: Whether its reader reads the passages of its candidates, and
      not their tokens.
    asked: What its reader learns to answer; None if it may be either.
    evaluation: Recipe that evaluates a run of it; None if there is none.
    compares: Whether its loss compares all examples of a batch: the `compare`
      of what it makes of the components, the vectors that it has made of
      encoders and inputs by `embed`, and the batch.

  Example, pre-training that keeps the reader as it is:
    >>> from realm_jax.training.stages.pretraining import Pretraining
    >>> class FrozenReader(Pretraining):
    ...   @property
    ...   def frozen(self):
    ...     return ("reader",)
    >>> FrozenReader(num_candidates=4).trained
    {'retriever'}
  """

  needs_answers: ClassVar[bool] = False
  reads_passages: ClassVar[bool] = False
  compares: ClassVar[bool] = False
  hops: ClassVar[bool] = False
  asked: ClassVar[Asked | None] = None
  evaluation: ClassVar[str | None] = None

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def components(self) -> tuple[str, ...]:
    return ("retriever", "reader")

  @property
  def frozen(self) -> tuple[str, ...]:
    return ()

  @property
  def trained(self) -> set[str]:
    """The components that it trains."""
    return {*self.components} - {*self.frozen}

  @property
  def retrieval(self) -> Retrieval | None:
    return None

  @property
  def null_block(self) -> bool:
    return False

  @property
  def num_searches(self) -> int:
    return 1

  @property
  def num_candidates(self) -> int:
    return 1

  def init(
    self,
    components: Components,
    query_length: int,
    block_length: int,
    key: jax.Array,
  ) -> Params:
    """Initializes the parameters by component, in Flax's boxes."""
    return {
      name: components[name].init_parameters(
        own, query_length=query_length, block_length=block_length
      )
      for name, own in _keys_of(self.components, key).items()
    }

  def check_services(self) -> None:  # noqa: B027
    """Raises a `RealmError` if what the host will ask cannot answer.

    The run calls this before it opens anything. By default nothing is asked.
    """

  def next_queries(
    self, batch: Batch, found: SearchResult, context: StageContext
  ) -> Int[np.ndarray, "b p"]:
    """Makes the padded queries of the next search from what the last found.

    The host asks for them where `num_searches` is above 1. By default the first
    search's queries are used again.
    """
    del found, context
    return batch.array("query")

  def joined_results(
    self, before: SearchResult, found: SearchResult
  ) -> SearchResult:
    """Returns what is kept of the results of one search and of the next.

    The queries after that and `features` are made from it. By default it is the
    last search's alone.
    """
    del before
    return found

  @abc.abstractmethod
  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    """Makes the batch of a step from examples and the blocks that were found.

    The host has `found` as many blocks as its `retrieval` searches for, best
    first, or what `joined_results` has kept of several searches; None where
    nothing is retrieved, or the step retrieves itself.

    Raises:
      RetrievalUnavailableError: The run is saved as it was before the step, and
        ends, on all processes.
    """

  @abc.abstractmethod
  def dummy_batch(self, shapes: ExampleArrays) -> StepBatch:
    """Makes a batch of the same shapes and types, with empty targets."""

  def rerank(self, encoders: Encoders, batch: StepBatch) -> StepBatch:
    """Takes the best candidates of a batch by another model, in the step.

    By default these are the blocks as they were retrieved.
    """
    del encoders
    return batch

  @abc.abstractmethod
  def inputs(self, components: Components, batch: StepBatch) -> EncoderInputs:
    """Makes what the encoders read of a batch, in the step."""

  @abc.abstractmethod
  def loss(
    self, encoders: Encoders, batch: StepBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the loss of a batch on the devices, and its metrics.

    The `inputs` are what the encoders read of it, laid out.
    """

  def encoders(
    self, components: Components, params: Params, dropout_key: jax.Array | None
  ) -> Encoders:
    """Returns the components as the loss applies them.

    They have dropout given a key, but for those that the stage freezes.
    """
    keys = {}
    if dropout_key is not None:
      keys = _keys_of(self.components, dropout_key)
    encoders = Encoders(components, params, keys)
    for name in self.frozen:
      encoders = encoders.frozen(name)
    return encoders


def _keys_of(
  components: tuple[str, ...], key: jax.Array
) -> dict[str, jax.Array]:
  """Returns a key for each component."""
  count = len(components)
  keys = [key] if count == 1 else jax.random.split(key, count)
  return dict(zip(components, keys, strict=True))
