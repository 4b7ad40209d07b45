"""What a build did, in numbers: nothing is left out of them."""

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
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {count:>13,}" for label, count in rows]
    return "\n".join(lines + self.first_errors)
