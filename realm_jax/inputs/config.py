"""What a run reads: its task, files, batch size and lengths."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

from realm_jax.inputs.context import TaskContext
from realm_jax.settings import NonNegativeInt, PositiveInt, Range, require_valid

_MASK_FEATURES = ("mask_positions", "mask_targets", "mask_weights")
# [CLS] word [SEP], and [CLS] [SEP] word [SEP].
QueryLength = Annotated[int, Range(least=3)]
BlockLength = Annotated[int, Range(least=4)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(TaskContext):
  """The data of a run, whichever processes read them and from where on.

  Attributes:
    task: Name of a seqio task.
    batch_size: Examples in a global batch, which all processes share.
    query_length: Wordpieces of a query, [CLS] and [SEP] included.
    block_length: Wordpieces of a block, its title and specials included.
    split: Split of the task's source.
    task_modules: Modules that register tasks when they are imported.
    seed: Seed of the order and of the masks.
    max_masks: Number of masks of a query that are scored.
    other_lengths: Padded lengths of further features, by name. A feature that
      has none stays on the host.
    batches_ahead: Number of batches that are prepared before they are needed.
  """

  task: str
  batch_size: PositiveInt
  query_length: QueryLength
  block_length: BlockLength
  split: str = "train"
  task_modules: Sequence[str] = ("tasks",)
  seed: NonNegativeInt = 0
  max_masks: PositiveInt = 10
  other_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batches_ahead: NonNegativeInt = 2

  def __post_init__(self) -> None:
    require_valid(self)

  @property
  def lengths(self) -> dict[str, int]:
    """The padded length of each feature, seqio's `sequence_length`."""
    return {
      "query": self.query_length,
      "block": self.block_length,
      **dict.fromkeys(_MASK_FEATURES, self.max_masks),
      **self.other_lengths,
    }
