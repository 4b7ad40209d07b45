"""Counts of what a build or an update did; nothing is left out silently."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from realm_jax.console import columns
from realm_jax.storage.json_files import JsonValue

# Messages of skipped lines that a summary keeps; all lines are counted.
_FIRST_ERRORS = 10
_DUPLICATES = "blocks that equal an earlier one"


@dataclasses.dataclass
class BuildSummary:
  """Counts of one build; `vars` gives what a manifest records.

  Attributes:
    documents, blocks, tokens, sentences: What the corpus has.
    cut_sentences: Sentences that are longer than a block.
    cut_titles: Titles that are longer than half a block.
    long_words: Words of over 1,000 characters, which are left out.
    salient_spans: Spans that were found, by kind.
    unaligned_spans: Of these, spans that begin or end inside a token or cross
      the end of a sentence, which are left out.
    duplicate_blocks: Blocks that equal an earlier one.
    skipped: What was left out, by reason.
    first_errors: Messages of the first bad lines.
  """

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

  def skip(self, reason: str, message: str) -> None:
    """Counts a bad line, and keeps the message if it is one of the first."""
    self.skipped[reason] += 1
    if len(self.first_errors) < _FIRST_ERRORS:
      self.first_errors.append(message)

  def merge(self, other: Mapping[str, Any]) -> None:
    """Adds the counts of a part of the build, as `vars` gives them."""
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

  def table(self) -> str:
    """Returns one line for each count, aligned."""
    return "\n".join([columns([*_rows(vars(self))]), *self.first_errors])


@dataclasses.dataclass
class UpdateSummary:
  """Counts of one update.

  Attributes:
    version: Number of the newest version after the update.
    added, replaced, unchanged: Documents that were given.
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
    return {**vars(self), "new": vars(self.new)}

  def table(self) -> str:
    """Returns one line for each count, aligned."""
    counts = columns([*_rows(vars(self))])
    return f"{counts}\nadded and replacing documents:\n{self.new.table()}"


def _rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  for name, value in counts.items():
    label = name.replace("_", " ")
    if isinstance(value, int):
      yield label, f"{value:,}"
    elif isinstance(value, Counter):
      for kind, count in sorted(value.items()):
        yield f"{label}: {kind}", f"{count:,}"
