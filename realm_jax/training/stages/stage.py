"""The interface of a stage, which the loop, the step and evaluations use."""

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
from realm_jax.training.retrieval import Retrieval, rows_at

# Batch of a stage: a tree of NumPy arrays with a row for each example.
StepBatch = Any
# Such a batch, and the metrics that the host computes.
Features = tuple[StepBatch, dict[str, float]]


class Encoders(NamedTuple):
  """The components with their parameters and dropout keys, as a loss uses them.

  `params` and `dropout_keys` are keyed by component. A component without
  dropout has no key.
  """

  components: Components
  params: Params
  dropout_keys: Mapping[str, jax.Array]

  def frozen(self, component: str) -> "Encoders":
    """Returns encoders with one component's dropout and gradient turned off."""
    keys = {n: key for n, key in self.dropout_keys.items() if n != component}
    constant = jax.lax.stop_gradient(self.params[component])
    return Encoders(self.components, {**self.params, component: constant}, keys)

  def apply(self, component: str, *arguments: Any, **settings: Any) -> Any:
    """Applies a component's module: its `__call__`, or another `method`."""
    variables = {"params": self.params[component]}
    key = self.dropout_keys.get(component)
    rngs = None if key is None else {"dropout": key}
    module = self.components[component]
    return module.apply(variables, *arguments, rngs=rngs, **settings)

  def candidate_scores(self, inputs: EncoderInputs) -> Float[jax.Array, "b k"]:
    """Returns f(x, z) of each query's candidates (see `candidate_vectors`)."""
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

    `inputs.blocks` are distinct blocks, as `distinct_blocks` returns them.
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
    """Returns the cross-encoder's scores of each query's padded blocks.

    Reads `at_once` blocks of every query at a time, to bound memory.
    """
    size, count, length = blocks.shape
    read, added = jnp.asarray(query), -count % at_once
    whole = jnp.pad(jnp.asarray(blocks), ((0, 0), (0, added), (0, 0)))
    parts = whole.reshape(size, -1, at_once, length).swapaxes(0, 1)
    scores = lax.map(lambda own: self.apply(RERANKER, read, own), parts)
    return scores.swapaxes(0, 1).reshape(size, -1)[:, :count]


class StepOnHost(NamedTuple):
  """A step whose batch is being prepared, for a stage that calls a service.

  Attributes:
    model_dir: Directory of the run.
    step: Number of the step, from 0.
    stop_requested: Function that says whether the run should end. A stage that
      waits for a service then raises a `WaitPreemptedError`, and the step is
      not run.
  """

  model_dir: epath.PathLike
  step: int
  stop_requested: Callable[[], bool] = lambda: False


@dataclasses.dataclass(frozen=True)
class StageContext:
  """The parts of a run from which a stage makes its batches.

  Attributes:
    components: Modules of the run.
    corpus: Corpus version that is searched; rows are its block numbers.
    snapshot: Snapshot that was searched, if one was.
    block_length: Padded length of a block.
    examples: Corpus version that examples come from; None for `corpus`.
    answers: Occurrences of answers in the blocks of `corpus`, for a stage with
      `needs_answers`.
    step: Step for which the batch is made.
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

  def candidate_positions(
    self,
    retrieval: Retrieval,
    batch: Batch,
    rows: Int[np.ndarray, "b n"],
    preferred: Bool[np.ndarray, "b n"] | None = None,
    dropped: Bool[np.ndarray, "b n"] | None = None,
  ) -> Int[np.ndarray, "b k"]:
    """Returns the positions of the candidates among the retrieved blocks.

    The source of a query (or its sources) and verbatim copies are recognized by
    content hash, in any corpus. `preferred` is as in
    `Retrieval.candidate_positions`. Blocks marked in `dropped` are treated like
    sources.
    """
    is_source = np.zeros(rows.shape, bool)
    if retrieval.drop_source:
      sources = batch.array("source_hash").reshape(len(rows), 1, -1)
      hashes = self.corpus.content_hashes[rows]
      is_source = (hashes[..., None] == sources).any(axis=-1)
    if dropped is not None:
      is_source |= dropped
    return np.asarray(retrieval.candidate_positions(is_source, preferred))

  def candidate_rows(
    self,
    retrieval: Retrieval,
    batch: Batch,
    rows: Int[np.ndarray, "b n"],
    preferred: Bool[np.ndarray, "b n"] | None = None,
    dropped: Bool[np.ndarray, "b n"] | None = None,
  ) -> Int[np.ndarray, "b k"]:
    """Returns the rows of the candidates; see `candidate_positions`."""
    positions = self.candidate_positions(
      retrieval, batch, rows, preferred, dropped
    )
    return np.asarray(rows_at(rows, positions))

  def vectors(
    self, rows: Int[np.ndarray, "b n"]
  ) -> Float[np.ndarray, "b n d"] | Int[np.ndarray, "b n"]:
    """Returns the stored vectors of blocks, for a batch's field `retrieved`.

    If the devices hold the vectors, this returns the rows instead, and the
    devices look up the vectors before the step.
    """
    assert self.snapshot is not None
    if self.snapshot.device_vectors is not None:
      return rows
    return self.snapshot.vectors(rows)


class ExampleArrays(NamedTuple):
  """Arrays and sizes from which a stage makes a batch of the right shapes.

  Attributes:
    query: Padded queries.
    candidates: Padded blocks of each query.
    num_searched: Number of blocks that the search returns for each query.
    max_masks: Number of masks that are scored.
    passages: Passages of the candidates, for a stage with `reads_passages`.
  """

  components: Components
  query: Int[np.ndarray, "b q"]
  candidates: Int[np.ndarray, "b k l"]
  num_searched: int
  max_masks: int
  passages: Int[np.ndarray, "b k m"] | None = None


class Stage(abc.ABC):
  """One stage of training: data, and three functions.

  The host makes the batches (`features`). The step turns a batch into the
  inputs of the encoders (`inputs`), lays them out, and differentiates the
  `loss`.

  Attributes:
    components: Names of the components that the stage applies.
    frozen: Components whose parameters stay fixed, and which have no dropout.
    retrieval: How blocks are retrieved; None for a stage without an index.
    num_searches: Number of searches that the host does for each query.
    hops: Whether the second and later searches use `HopRetriever.hop_queries`.
    num_candidates: Number of blocks that the step reads for each query.
    null_block: Whether the first candidate is the null block.
    needs_answers: Whether the stage needs to know which blocks contain answers.
    reads_passages: Whether the reader reads the candidates' passages instead of
      their tokens.
    asked: Kind of text that the reader learns to answer; None for either kind.
    evaluation: Recipe that evaluates a run of the stage, or None.
    compares: Whether the loss needs all examples at once (in-batch negatives).
      Such a stage implements `embed(encoders, inputs)`, which returns vectors,
      and `compare(components, vectors, batch)`.

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
  num_searches: ClassVar[int] = 1
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
    """Components that the stage trains."""
    return {*self.components} - {*self.frozen}

  @property
  def retrieval(self) -> Retrieval | None:
    return None

  @property
  def null_block(self) -> bool:
    return False

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
    """Raises a `RealmError` if a service that the stage calls does not answer.

    The run calls this before it opens anything. By default there is no service.
    """

  def next_queries(
    self, batch: Batch, found: SearchResult, context: StageContext
  ) -> Int[np.ndarray, "b p"]:
    """Makes the padded queries of the next search from the last results.

    Called only if `num_searches` is above 1. By default the queries stay the
    same.
    """
    del found, context
    return batch.array("query")

  def joined_results(
    self, before: SearchResult, found: SearchResult
  ) -> SearchResult:
    """Joins the results of the searches so far with the next search's.

    `next_queries` and `features` get the joined results. By default only the
    last search counts.
    """
    del before
    return found

  @abc.abstractmethod
  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    """Makes the batch of a step from examples and retrieved blocks.

    `found` has the blocks that `retrieval` searches for, best first, or the
    results that `joined_results` made of several searches. It is None if
    nothing is retrieved, or if the step does its own retrieval.

    Raises:
      RetrievalUnavailableError: Blocks cannot be retrieved. All processes save
        the run as it was before the step, and end.
    """

  @abc.abstractmethod
  def dummy_batch(self, shapes: ExampleArrays) -> StepBatch:
    """Makes a batch of the same shapes and types, with empty targets."""

  def rerank(self, encoders: Encoders, batch: StepBatch) -> StepBatch:
    """Chooses the best candidates of a batch with another model, in the step.

    By default the batch stays as it was retrieved.
    """
    del encoders
    return batch

  @abc.abstractmethod
  def inputs(self, components: Components, batch: StepBatch) -> EncoderInputs:
    """Makes the inputs of the encoders from a batch, in the step."""

  @abc.abstractmethod
  def loss(
    self, encoders: Encoders, batch: StepBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the loss of a batch, with metrics, from inputs that are laid out.

    Runs on the devices.
    """

  def encoders(
    self, components: Components, params: Params, dropout_key: jax.Array | None
  ) -> Encoders:
    """Returns the components as the loss applies them.

    With a key they have dropout, except for components that the stage freezes.
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
