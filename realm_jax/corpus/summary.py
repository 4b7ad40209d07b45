"""Counts of what a build or an update did; nothing is left out silently."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from realm_jax.console import columns
from realm_jax.corpus.block_builder import COUNTS, BuiltBlocks
from realm_jax.storage.json_files import JsonValue

# Messages of skipped lines that a summary keeps; all lines are counted.
FIRST_ERRORS = 10
_NO_WORDS = "no words in the text"
_DUPLICATES = "blocks that equal an earlier one"
_CUT_ENDS = "ends of blocks longer than the block length"


@dataclasses.dataclass
class BuildSummary:
  """Counts of one build; `skipped` has what was left out, by reason."""

  documents: int = 0
  blocks: int = 0
  tokens: int = 0
  sentences: int = 0
  cut_sentences: int = 0
  cut_titles: int = 0
  long_words: int = 0
  salient_spans: Counter[str] = dataclasses.field(default_factory=Counter)
  unaligned_spans: int = 0
  duplicate_blocks: int = 0
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)
  first_errors: list[str] = dataclasses.field(default_factory=list)

  def add(self, built: BuiltBlocks, num_documents: int) -> None:
    """Counts `num_documents`, of which those in `built` have words."""
    self.documents += len(built.documents)
    self.blocks += len(built.blocks.arrays["block_ids"])
    totals = built.counts.sum(0).tolist()
    for name, total in zip(COUNTS, totals, strict=True):
      setattr(self, name, getattr(self, name) + total)
    of_kinds = built.spans.sum(0).tolist()
    for kind, total in zip(built.blocks.span_kinds, of_kinds, strict=True):
      self.salient_spans[kind] += total
    self.unaligned_spans += int(built.unaligned.sum())
    if cut_ends := int(built.cut_ends.sum()):
      self.skipped[_CUT_ENDS] += cut_ends
    if wordless := num_documents - len(built.documents):
      self.skipped[_NO_WORDS] += wordless

  def merge(self, other: Mapping[str, Any]) -> None:
    """Adds the counts of a part of the build, as `to_json` gives them."""
    for name, value in vars(self).items():
      if isinstance(value, Counter):
        value.update(other[name])
      else:
        setattr(self, name, value + other[name])

  def remove_duplicates(self) -> None:
    """Counts duplicate blocks as left out."""
    if self.duplicate_blocks:
      self.skipped[_DUPLICATES] += self.duplicate_blocks
      self.blocks -= self.duplicate_blocks
      self.duplicate_blocks = 0

  def to_json(self) -> dict[str, JsonValue]:
    """Returns the counts as the manifest records them."""
    # Not `asdict`, which would make a Counter of a Counter's pairs.
    return {
      name: dict(value) if isinstance(value, Counter) else value
      for name, value in vars(self).items()
    }

  def table(self) -> str:
    """Returns one line for each count, aligned."""
    rows = [
      ("documents", self.documents),
      ("blocks", self.blocks),
      ("tokens", self.tokens),
      ("sentences", self.sentences),
      ("sentences cut (longer than a block)", self.cut_sentences),
      ("titles cut (longer than half a block)", self.cut_titles),
      ("words left out (over 1,000 characters)", self.long_words),
      *_labelled("salient spans", self.salient_spans),
      ("spans across sentences, left out", self.unaligned_spans),
      (_DUPLICATES, self.duplicate_blocks),
      *_labelled("skipped", self.skipped),
    ]
    return "\n".join([_aligned(rows), *self.first_errors])


@dataclasses.dataclass
class UpdateSummary:
  """Counts of one update.

  Attributes:
    version: Number of the newest version after the update.
    removed: Documents that were removed, by a line or for their title.
    blocks_removed: Blocks of documents that were replaced or removed.
    new: Counts of the documents that were added or replaced others.
  """

  version: int
  added: int = 0
  replaced: int = 0
  removed: int = 0
  unchanged: int = 0
  blocks_removed: int = 0
  new: BuildSummary = dataclasses.field(default_factory=BuildSummary)

  @property
  def changes_something(self) -> bool:
    """Whether blocks were added or removed."""
    return bool(self.new.blocks or self.blocks_removed)

  def to_json(self) -> dict[str, JsonValue]:
    """Returns the counts as the manifest records them."""
    return {**vars(self), "new": self.new.to_json()}

  def table(self) -> str:
    """Returns one line for each count, aligned."""
    rows = [
      ("documents added", self.added),
      ("documents replaced", self.replaced),
      ("documents removed", self.removed),
      ("documents unchanged", self.unchanged),
      ("blocks removed", self.blocks_removed),
    ]
    new = ["added and replacing documents:", self.new.table()]
    return "\n".join([_aligned(rows), *new])


def _labelled(label: str, counts: Counter[str]) -> list[tuple[str, int]]:
  return [(f"{label}: {name}", count) for name, count in sorted(counts.items())]


def _aligned(rows: list[tuple[str, int]]) -> str:
  return columns([(label, f"{count:,}") for label, count in rows])
