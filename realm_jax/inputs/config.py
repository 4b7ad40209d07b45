"""What a run reads: its task, files, batch size and lengths."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from etils import epath

from realm_jax.inputs.context import TaskContext

_MASK_FEATURES = ("mask_positions", "mask_targets", "mask_weights")
# Fields for which the recipes in gin/ have a name of their own.
_MACROS = frozenset(
  "task task_modules batch_size query_length block_length seed".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
  """The data of a run, whichever processes read them and from where on.

  Attributes:
    task: Name of a seqio task.
    corpus_dir: Corpus directory, as `build_corpus` writes it.
    batch_size: Examples in a global batch, which all processes share.
    query_length: Wordpieces of a query, [CLS] and [SEP] included.
    block_length: Wordpieces of a block, its title and specials included.
    split: Split of the task's source.
    corpus_version: Version of the corpus; None opens the newest.
    question_files: JSON Lines of questions, by split.
    task_modules: Modules that register tasks when they are imported.
    seed: Seed of the order and of the masks.
    max_masks: Number of masks of a query that are scored.
    other_lengths: Padded lengths of further features, by name. A feature that
      has none stays on the host.
    batches_ahead: Number of batches that are prepared before they are needed.
  """

  task: str
  corpus_dir: epath.PathLike
  batch_size: int
  query_length: int
  block_length: int
  split: str = "train"
  corpus_version: int | None = None
  question_files: Mapping[str, epath.PathLike] = dataclasses.field(
    default_factory=dict
  )
  task_modules: Sequence[str] = ("tasks",)
  seed: int = 0
  max_masks: int = 10
  other_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batches_ahead: int = 2

  def __post_init__(self) -> None:
    """Checks the fields, since gin binds values of any type.

    Raises:
      ValueError: A field has the wrong type or is too small.
    """
    for name in ("task", "split"):
      if not isinstance(value := getattr(self, name), str) or not value:
        raise self._wrong(name, "a name")
    self._require_integer("batch_size", at_least=1)
    # [CLS] word [SEP], and [CLS] [SEP] word [SEP].
    self._require_integer("query_length", at_least=3)
    self._require_integer("block_length", at_least=4)
    self._require_integer("max_masks", at_least=1)
    self._require_integer("batches_ahead", at_least=0)
    self._require_integer("seed")
    if self.corpus_version is not None:
      self._require_integer("corpus_version", at_least=0)
    for name in ("question_files", "other_lengths"):
      if not isinstance(getattr(self, name), Mapping):
        raise self._wrong(name, 'a dictionary, such as {"train": …}')
    if isinstance(self.task_modules, str):
      raise self._wrong(
        "task_modules", f'a list, such as ["{self.task_modules}"]'
      )

  def _require_integer(self, name: str, at_least: int | None = None) -> None:
    value = getattr(self, name)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or (at_least is not None and value < at_least):
      limit = "" if at_least is None else f" of at least {at_least}"
      raise self._wrong(name, f"an integer{limit}")

  def _wrong(self, name: str, wanted: str) -> ValueError:
    binding = name.upper() if name in _MACROS else f"DataConfig.{name}"
    return ValueError(
      f"{name}={getattr(self, name)!r}; want {wanted}: change {binding}"
    )

  @functools.cached_property
  def context(self) -> TaskContext:
    """The files that sources and vocabularies read."""
    return TaskContext(
      self.corpus_dir, self.question_files, self.corpus_version
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
