"""What a stage is to the loop, to the step and to the evaluations."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.generations.loading import Generation
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning.sharding import shared_partial
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.step import Loss, RowsOf

# Padded lengths of `query` and `block`, in tokens.
Lengths = Mapping[str, int]

# A batch of a stage: numpy's arrays, with a row for each example.
StepBatch = Any
# Such a batch, and metrics that only the host can compute.
Assembled = tuple[StepBatch, dict[str, float]]


class Models(NamedTuple):
  """The two modules of a run; inverse cloze has no reader."""

  retriever: Retriever
  reader: Reader | None

  def for_corpus(self, corpus: Corpus) -> "Models":
    """Returns the same models for the vocabulary of a corpus.

    Raises:
      ValueError: They are configured for another vocabulary.
    """
    words = corpus.vocabulary
    return self.for_vocabulary(words.vocab_size, words.sep_id)

  def for_vocabulary(self, vocab_size: int, separator_id: int) -> "Models":
    """Returns the same models for a vocabulary; raises as `for_corpus` does."""
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
      raise ValueError("this stage trains a reader; bind TrainConfig.reader")
    return self.reader


@dataclasses.dataclass(frozen=True)
class StageContext:
  """The parts of a run from which a stage makes its batches.

  Attributes:
    corpus: Corpus version that is searched, to which rows of blocks refer.
    generation: Generation that was searched, if one was.
    block_length: Padded length of a block.
    examples: Corpus version that examples come from; None for `corpus`.
    answers: Answers in the blocks of this corpus, for a stage that asks.
    max_answer_width: Width of the reader's widest span, in tokens.
  """

  corpus: Corpus
  generation: Generation | None
  block_length: int
  examples: Corpus | None = None
  answers: AnswersInBlocks | None = None
  max_answer_width: int = Reader.max_answer_width

  def gather(self, rows: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k l"]:
    """Returns the padded tokens of blocks."""
    return self.corpus.gather(rows, self.block_length)


class ExampleArrays(NamedTuple):
  """Arrays and sizes from which a stage makes a batch of the right shapes.

  Attributes:
    candidates: Padded blocks, `num_candidates` for each query.
    num_searched: Number of blocks that are searched for each query.
    vector_size: Number of components of a block's vector.
    max_masks: Number of masks that are scored.
    max_answer_width: Width of the reader's widest span, in tokens.
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
  encoders read (`rows`), lays that out, and differentiates the `loss`.

  Attributes:
    needs_index: Whether its step reads blocks that an index retrieves.
    reads_vectors: Whether its step reads the generation's stored vectors.
    current_queries: Whether queries are embedded for the search with the
      current parameters, instead of the tower that the generation was
      published with.
    retrieves_on_device: Whether a step can retrieve its own candidates.
    null_block: Whether the first candidate of each query is the null block.
    is_divisible: Whether the loss of a batch is the sum of its parts'.
    needs_answers: Whether it asks which blocks contain answers.
    num_candidates: Number of blocks that its step reads for each query.
    components: Components that it trains.
  """

  needs_index: ClassVar[bool] = False
  reads_vectors: ClassVar[bool] = False
  needs_answers: ClassVar[bool] = False
  is_divisible: ClassVar[bool] = True
  components: ClassVar[tuple[str, ...]] = ("retriever", "reader")

  @property
  def current_queries(self) -> bool:
    return True

  @property
  def retrieves_on_device(self) -> bool:
    return False

  @property
  def null_block(self) -> bool:
    return False

  @property
  def num_candidates(self) -> int:
    return 1

  def init(self, models: Models, lengths: Lengths, key: jax.Array) -> Params:
    """Initializes the parameters by component, in flax's boxes."""
    both = len(self.components) == 2
    retriever_key, reader_key = jax.random.split(key) if both else (key, key)
    query = jnp.ones((1, lengths["query"]), jnp.int32)
    block = jnp.ones((1, 1, lengths["block"]), jnp.int32)
    made = {}
    if "retriever" in self.components:
      made["retriever"] = models.retriever.init(retriever_key, query, block)
    if "reader" in self.components:
      reader = models.require_reader()
      made["reader"] = reader.init(reader_key, query, block, query[:, :1])
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
    self, batch: Batch, retrieved: SearchResult, context: StageContext
  ) -> Assembled:
    """Makes the batch of a step from examples and the blocks retrieved."""

  @abc.abstractmethod
  def example(self, shapes: ExampleArrays) -> StepBatch:
    """Makes a batch of the same shapes and types, with empty targets."""

  @abc.abstractmethod
  def rows(
    self, models: Models, batch: StepBatch, numbers: UInt32[Array, " b"]
  ) -> EncoderRows:
    """Makes what the encoders read, in the step, of numbered examples."""

  @abc.abstractmethod
  def loss(
    self,
    models: Models,
    params: Params,
    batch: StepBatch,
    rows: EncoderRows,
    dropout_key: jax.Array | None,
  ) -> WeightedLoss:
    """Returns the loss of a batch, and its metrics.

    Args:
      models: Models of the run.
      params: Parameters by component.
      batch: Batch, on the devices.
      rows: What the encoders read of it, laid out.
      dropout_key: Key of the dropout masks; None is without dropout.
    """

  def functions(self, models: Models) -> tuple[RowsOf[Any], Loss[Any]]:
    """Returns `rows` and `loss` of models; equal stages have the same ones.

    Raises:
      ValueError: The models do not fit the stage.
    """
    if "reader" in self.components:
      models.require_reader()
    of_class = type(self)
    return (
      shared_partial(of_class.rows, self, models),
      shared_partial(of_class.loss, self, models),
    )


def dropout_keys(
  dropout_key: jax.Array | None,
) -> tuple[jax.Array | None, jax.Array | None]:
  """Returns keys for the retriever and for the reader."""
  if dropout_key is None:
    return None, None
  retriever_key, reader_key = jax.random.split(dropout_key)
  return retriever_key, reader_key


def apply(
  module: Any,
  params: Params,
  dropout_key: jax.Array | None,
  *arguments: Any,
  **settings: Any,
) -> Any:
  """Applies a module, with dropout if there is a key."""
  rngs = None if dropout_key is None else {"dropout": dropout_key}
  return module.apply({"params": params}, *arguments, rngs=rngs, **settings)
