"""What a run reads: its task, files, batch size and lengths."""

import dataclasses
from collections.abc import Mapping, Sequence

from realm_jax.inputs.context import TaskContext

_MASK_FEATURES = ("mask_positions", "mask_targets", "mask_weights")
# Fields that the recipes in gin/ set by macros of the same names.
_MACROS = frozenset(
  "batch_size query_length block_length num_steps save_every_steps "
  "fsdp model_parallelism max_shape_buckets held_out_blocks "
  "max_staleness_steps".split()
)


def require_at_least(config: object, **minimums: int) -> None:
  """Raises `ValueError` where a field is too small; None is accepted."""
  for name, least in minimums.items():
    value = getattr(config, name)
    if value is not None and value < least:
      field = f"{type(config).__name__}.{name}"
      binding = name.upper() if name in _MACROS else field
      raise ValueError(
        f"{name}={value}; want {least} or more: change {binding}"
      )


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
  batch_size: int
  query_length: int
  block_length: int
  split: str = "train"
  task_modules: Sequence[str] = ("tasks",)
  seed: int = 0
  max_masks: int = 10
  other_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batches_ahead: int = 2

  def __post_init__(self) -> None:
    require_at_least(self, batch_size=1, max_masks=1)
    require_at_least(self, query_length=3)  # [CLS] word [SEP]
    require_at_least(self, block_length=4)  # [CLS] [SEP] word [SEP]
    require_at_least(self, batches_ahead=0, corpus_version=0)
    require_at_least(self, held_out_blocks=0)
    removal = self.sentence_removal_probability
    if not 0 <= removal <= 1:
      raise ValueError(
        f"sentence_removal_probability={removal}; want 0 to 1: change "
        "SENTENCE_REMOVAL_PROBABILITY"
      )

  @property
  def lengths(self) -> dict[str, int]:
    """The padded length of each feature, seqio's `sequence_length`."""
    return {
      "query": self.query_length,
      "block": self.block_length,
      **dict.fromkeys(_MASK_FEATURES, self.max_masks),
      **self.other_lengths,
    }
