"""What a stage is to the loop, to the step and to the evaluations."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import Asked, require_valid
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.encoder_inputs import EncoderInputs, joint_inputs

# A batch of a stage: numpy's arrays, with a row for each example.
StepBatch = Any
# Such a batch, and metrics that only the host can compute.
Assembled = tuple[StepBatch, dict[str, float]]


class Models(NamedTuple):
  """The two modules of a run; inverse cloze has no reader."""

  retriever: Retriever
  reader: Reader | None

  def for_corpus(self, corpus: Corpus) -> "Models":
    """Returns the same models for the vocabulary of a corpus."""
    words = corpus.vocabulary
    return self.for_vocabulary(words.vocab_size, words.sep_id)

  def for_vocabulary(self, vocab_size: int, separator_id: int) -> "Models":
    """Returns the same models for a vocabulary.

    Raises:
      ValueError: They are configured for another one.
    """
    sizes = {"vocab_size": vocab_size, "separator_id": separator_id}
    return Models(
      self.retriever.for_vocabulary(**sizes),
      None if self.reader is None else self.reader.for_vocabulary(**sizes),
    )

  @property
  def max_answer_width(self) -> int:
    """Width of the reader's widest span, in tokens; 0 without a reader."""
    return 0 if self.reader is None else self.reader.max_answer_width

  def require_reader(self) -> Reader:
    """Returns the reader; raises a ValueError where there is none."""
    if self.reader is None:
      raise RealmError("this stage trains a reader; bind TrainConfig.reader")
    return self.reader


class Encoders(NamedTuple):
  """The models as a loss applies them: with parameters and dropout masks.

  Parameters and the keys of the dropout masks are by component; a component
  without dropout has no key.
  """

  models: Models
  params: Params
  dropout_keys: Mapping[str, jax.Array]

  def frozen(self, component: str) -> "Encoders":
    """Returns the same, but one component without dropout and gradient."""
    keys = {n: key for n, key in self.dropout_keys.items() if n != component}
    constant = jax.lax.stop_gradient(self.params[component])
    return Encoders(self.models, {**self.params, component: constant}, keys)

  def apply(self, component: str, *arguments: Any, **settings: Any) -> Any:
    """Applies the module of a component; all but the reader are retrievers."""
    is_reader = component == "reader"
    module: Any = self.models.reader if is_reader else self.models.retriever
    variables = {"params": self.params[component]}
    key = self.dropout_keys.get(component)
    rngs = None if key is None else {"dropout": key}
    return module.apply(variables, *arguments, rngs=rngs, **settings)


@dataclasses.dataclass(frozen=True)
class StageContext:
  """The parts of a run from which a stage makes its batches.

  Attributes:
    corpus: Corpus version that is searched, to which rows of blocks refer.
    snapshot: Snapshot that was searched, if one was.
    block_length: Padded length of a block.
    examples: Corpus version that examples come from; None for `corpus`.
    answers: Answers in the blocks of this corpus, for a stage that asks.
    max_answer_width: Width of the reader's widest span, in tokens.
  """

  corpus: Corpus
  snapshot: Snapshot | None
  block_length: int
  examples: Corpus | None = None
  answers: AnswersInBlocks | None = None
  max_answer_width: int = Reader.max_answer_width

  def gather(self, rows: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k l"]:
    """Returns the padded tokens of blocks."""
    return self.corpus.gather(rows, self.block_length)

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
  for it. `max_masks` are scored. The `max_answer_width` is in tokens.
  """

  query: Int[np.ndarray, "b q"]
  candidates: Int[np.ndarray, "b k l"]
  num_searched: int
  vector_size: int
  max_masks: int
  max_answer_width: int = Reader.max_answer_width


class Stage(abc.ABC):
  """One stage of training.

  The host makes its batches (`assemble`); the step makes of them what the
  encoders read (`inputs`), lays that out, and differentiates the `loss`.

  Attributes:
    needs_index: Whether its step reads blocks that an index retrieves.
    reads_vectors: Whether its step reads the snapshot's stored vectors, in
      the field `retrieved` of its batch.
    current_queries: Whether queries are embedded for the search with the
      current parameters, instead of the tower that the snapshot was
      published with.
    retrieves_on_device: Whether a step can retrieve its own candidates.
    null_block: Whether the first candidate of each query is the null block.
    needs_answers: Whether it asks which blocks contain answers.
    asked: What its reader learns to answer; None if it may be either.
    evaluation: Recipe that evaluates a run of it; None if there is none.
    compares: Whether its loss compares all examples of a batch: the `compare`
      of what it makes of the models, the vectors that it has made of encoders
      and rows by `embed`, and the batch.
    num_candidates: Number of blocks that its step reads for each query.
    components: Components that it trains.
    frozen: Those of them whose parameters stay as they are.
  """

  components: ClassVar[tuple[str, ...]] = ("retriever", "reader")
  needs_answers: ClassVar[bool] = False
  compares: ClassVar[bool] = False
  asked: ClassVar[Asked | None] = None
  evaluation: ClassVar[str | None] = None

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def reads_vectors(self) -> bool:
    return False

  @property
  def needs_index(self) -> bool:
    return False

  @property
  def current_queries(self) -> bool:
    return True

  @property
  def null_block(self) -> bool:
    return False

  @property
  def retrieves_on_device(self) -> bool:
    return False

  @property
  def frozen(self) -> tuple[str, ...]:
    return ()

  @property
  def num_candidates(self) -> int:
    return 1

  def init(
    self, models: Models, query_length: int, block_length: int, key: jax.Array
  ) -> Params:
    """Initializes the parameters by component, in flax's boxes."""
    keys = _keys_of(self.components, key)
    query = jnp.ones((1, query_length), jnp.int32)
    block = jnp.ones((1, 1, block_length), jnp.int32)
    made = {}
    if "retriever" in keys:
      made["retriever"] = models.retriever.init(keys["retriever"], query, block)
    if "reader" in keys:
      reader = models.require_reader()
      made["reader"] = reader.init(keys["reader"], query, block, query[:, :1])
    return {name: variables["params"] for name, variables in made.items()}

  def num_searched(self, num_blocks: int) -> int:
    """Returns how many blocks to search for in a corpus of `num_blocks`.

    Raises:
      ValueError: The corpus has too few blocks.
    """
    del num_blocks
    return 0

  @abc.abstractmethod
  def assemble(
    self, batch: Batch, retrieved: SearchResult | None, context: StageContext
  ) -> Assembled:
    """Makes the batch of a step from examples and what the host retrieved."""

  @abc.abstractmethod
  def dummy_batch(self, shapes: ExampleArrays) -> StepBatch:
    """Makes a batch of the same shapes and types, with empty targets."""

  def inputs(self, models: Models, batch: StepBatch) -> EncoderInputs:
    """Makes what the encoders read of a batch, in the step.

    By default that is each `query` beside each of its `blocks`.
    """
    return joint_inputs(models.require_reader(), batch.query, batch.blocks)

  @abc.abstractmethod
  def loss(
    self, encoders: Encoders, batch: StepBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the loss of a batch on the devices, and its metrics.

    The `inputs` are what the encoders read of it, laid out.
    """

  def encoders(
    self, models: Models, params: Params, dropout_key: jax.Array | None
  ) -> Encoders:
    """Returns the models as the loss applies them, with dropout given a key."""
    keys = {}
    if dropout_key is not None:
      keys = _keys_of(self.components, dropout_key)
    return Encoders(models, params, keys)


def _keys_of(
  components: tuple[str, ...], key: jax.Array
) -> dict[str, jax.Array]:
  """Returns a key for each component."""
  count = len(components)
  keys = [key] if count == 1 else jax.random.split(key, count)
  return dict(zip(components, keys, strict=True))
