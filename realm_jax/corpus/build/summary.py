"""What a build or an update did, in numbers: nothing is left out."""

import dataclasses
from collections import Counter
from typing import Any


@dataclasses.dataclass
class BuildSummary:
  """Counts of one build; `skipped` is by reason."""

  documents: int = 0
  blocks: int = 0
  tokens: int = 0
  sentences: int = 0
  cut_sentences: int = 0
  cut_titles: int = 0
  salient_spans: Counter[str] = dataclasses.field(default_factory=Counter)
  unaligned_spans: int = 0
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)
  first_errors: list[str] = dataclasses.field(default_factory=list)

  def to_json(self) -> dict[str, Any]:
    # Not `asdict`, which rebuilds a Counter from its pairs and counts those.
    return {
      name: dict(value) if isinstance(value, Counter) else value
      for name, value in vars(self).items()
    }

  def table(self) -> str:
    """For people: a line a number, aligned."""
    rows = [
      ("documents", self.documents),
      ("blocks", self.blocks),
      ("tokens", self.tokens),
      ("sentences", self.sentences),
      ("sentences cut (longer than a block)", self.cut_sentences),
      ("titles cut (longer than half a block)", self.cut_titles),
    ]
    rows += [
      (f"salient spans: {kind}", count)
      for kind, count in sorted(self.salient_spans.items())
    ]
    rows.append(("spans across sentences, left out", self.unaligned_spans))
    rows += [
      (f"skipped: {reason}", count)
      for reason, count in sorted(self.skipped.items())
    ]
    return "\n".join(_aligned(rows) + self.first_errors)


@dataclasses.dataclass
class UpdateSummary:
  """Counts of one update.

  Attributes:
    version: the newest version after it.
    added: documents with new ids.
    replaced: documents that took the place of another with their id.
    removed: documents that are gone, those left out by their title among them.
    unchanged: documents that were given as they were.
    blocks_removed: of documents replaced and removed.
    new: what the blocks of documents added and replaced were cut from.
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
    """Whether blocks came or went."""
    return bool(self.new.blocks or self.blocks_removed)

  def to_json(self) -> dict[str, Any]:
    return {**vars(self), "new": self.new.to_json()}

  def table(self) -> str:
    """For people: a line a number, aligned."""
    rows = [
      ("documents added", self.added),
      ("documents replaced", self.replaced),
      ("documents removed", self.removed),
      ("documents unchanged", self.unchanged),
      ("blocks removed", self.blocks_removed),
    ]
    return "\n".join([*_aligned(rows), "of what is new:", self.new.table()])


def _aligned(rows: list[tuple[str, int]]) -> list[str]:
  width = max(len(label) for label, _ in rows)
  return [f"{label:<{width}}  {count:>13,}" for label, count in rows]
