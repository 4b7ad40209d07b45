"""What a stage is to the loop and to the evaluations."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import Generation
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.training.batches import MaskTargets, StepBatch
from realm_jax.training.stage_losses import Loss
from realm_jax.training.stages.model_inputs import ModelInputs, Models

# Padded lengths of `query` and `block`, in tokens.
Lengths = Mapping[str, int]


# A batch on the host, and metrics that only the host can compute.
Assembled = tuple[StepBatch, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class StageContext:
  """The parts of a run from which a stage makes its batches.

  Attributes:
    corpus: Corpus version that is searched, to which rows of blocks refer.
    generation: Generation that was searched, if one was.
    block_length: Padded length of a block.
    examples: Corpus version that examples come from; None for `corpus`.
    answers: Answers in the blocks of this corpus, for a stage that asks.
  """

  inputs: ModelInputs
  corpus: Corpus
  generation: Generation | None
  block_length: int
  examples: Corpus | None = None
  answers: AnswersInBlocks | None = None

  def gather(self, rows: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k l"]:
    """Returns the padded tokens of blocks."""
    return self.corpus.gather(rows, self.block_length)


class ExampleArrays(NamedTuple):
  """Arrays and sizes from which a stage makes a batch of the right shapes.

  Attributes:
    candidates: Padded blocks, `num_candidates` for each query.
    num_searched: Number of blocks that are searched for each query.
    max_masks: Number of masks that are scored.
  """

  query: Int[np.ndarray, "b q"]
  candidates: Int[np.ndarray, "b k l"]
  num_searched: int
  max_masks: int


class Stage(abc.ABC):
  """One stage of training.

  Attributes:
    needs_index: Whether its step reads blocks that an index retrieves.
    reads_vectors: Whether its step reads the generation's stored vectors.
    current_queries: Whether queries are embedded for the search with the
      current parameters, instead of the tower that the generation was
      published with.
    retrieves_on_device: Whether a step can retrieve its own candidates.
    has_null_block: Whether the first candidate of each query is the null block.
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
  def has_null_block(self) -> bool:
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

  @abc.abstractmethod
  def loss(self, models: Models) -> Loss[Any]:
    """Returns the loss, which takes this stage's batches."""

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
  def example(self, shapes: ExampleArrays, inputs: ModelInputs) -> StepBatch:
    """Makes a batch of the same shapes and types, with empty targets."""


def mask_targets(batch: Batch) -> MaskTargets:
  """Returns the masked tokens of a task's examples."""
  names = ("mask_positions", "mask_targets", "mask_weights")
  return MaskTargets(*(batch.arrays[name] for name in names))


def empty_mask_targets(shapes: ExampleArrays) -> MaskTargets:
  """Returns mask targets of the same shapes and types, all padding."""
  shape = (len(shapes.query), shapes.max_masks)
  return MaskTargets(
    np.zeros(shape, np.int32),
    np.zeros(shape, np.int32),
    np.zeros(shape, np.float32),
  )
