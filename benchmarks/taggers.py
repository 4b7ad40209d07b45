"""Measures what taggers of salient spans find, and what they miss.

    python -m benchmarks.taggers --tagger=bert:DIRECTORY --json=taggers.json

The rules, with and without bare numbers, and every --tagger (as `build_corpus`
takes them) are compared with two annotations of real text, of which each
tagger gets whole paragraphs with their titles:

- The named entities and dates of 100 sentences, marked by hand: see
  `benchmarks/data/tagged_sentences.py`. A span is correct if an annotated span
  begins and ends where it does; the kinds of names must agree where the tagger
  tells them apart. For a tagger that does not, each kind has a recall alone.
- The answers of QED's questions, which are what people asked of paragraphs. A
  paragraph has many more salient spans than answers, so there is no precision
  here. In its place stands chance: how many answers the spans touch after they
  have been moved along the paragraph, cyclically, by a random distance.
"""

import argparse
import dataclasses
import random
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.data.real_texts import TEXTS_DIR, answered_paragraphs
from benchmarks.data.tagged_sentences import tagged_sentences
from realm_jax.files.json_file import write_json
from realm_jax.text import salient_spans
from realm_jax.text.salient_spans import Span, Tagger
from realm_jax.text.sentences import byte_positions

NAMES = ("person", "organization", "location", "miscellaneous")
# What a tagger calls names that it does not tell apart.
_NAME = "name"
_NUM_MOVES = 20


def rules_without_numbers(text: str, title: str) -> list[Span]:
  """The spans that the rules find, bare numbers left out."""
  return [s for s in salient_spans.tag(text, title) if s.kind != "number"]


TAGGERS: Mapping[str, Tagger] = {
  "rules": salient_spans.tag,
  "rules, no numbers": rules_without_numbers,
}


@dataclasses.dataclass(frozen=True)
class Counts:
  """Spans of one kind: how many there are, were found, and were both.

  `found` is None where the tagger has no such kind. `touched` counts the wanted
  ones that overlap any span of the tagger.
  """

  tagger: str
  kind: str
  wanted: int
  found: int | None
  correct: int
  touched: int

  def cells(self) -> list[str]:
    """The cells of a table: counts, precision, recall, F1 and touched."""
    recall = self.correct / self.wanted if self.wanted else None
    precision = self.correct / self.found if self.found else None
    f1 = None
    if precision is not None and recall is not None:
      f1 = 2 * self.correct / (self.wanted + (self.found or 0))
    touched = self.touched / self.wanted if self.wanted else None
    counts = [str(self.wanted), "" if self.found is None else str(self.found)]
    shares = [
      "" if share is None else f"{share:.2f}"
      for share in (precision, recall, f1, touched)
    ]
    return [self.tagger, self.kind, *counts, *shares]


@dataclasses.dataclass(frozen=True)
class AnswerCounts:
  """Questions with an answer that a span equals, contains, or overlaps.

  `by_chance` is the mean number of those that moved spans overlap, and `tagged`
  the share of the characters that are in spans.
  """

  tagger: str
  questions: int
  equal: int
  contained: int
  touched: int
  by_chance: float
  tagged: float
  spans_per_paragraph: float
  seconds: float

  def cells(self) -> list[str]:
    """The cells of a table, in the order of the fields."""
    shares = [
      f"{count / self.questions:.3f}"
      for count in (self.equal, self.contained, self.touched, self.by_chance)
    ]
    return [
      *(self.tagger, str(self.questions), *shares, f"{self.tagged:.3f}"),
      *(f"{self.spans_per_paragraph:.1f}", f"{self.seconds:.1f}"),
    ]


def tag_characters(
  tagger: Tagger, texts: Sequence[str], titles: Sequence[str]
) -> list[list[Span]]:
  """Returns the spans of texts, in characters instead of bytes."""
  found = salient_spans.tag_many(tagger, texts, titles)
  rows = []
  for text, in_bytes in zip(texts, found, strict=True):
    positions = byte_positions(text)
    spans = []
    for *bounds, kind in in_bytes:
      start, limit = np.searchsorted(positions, bounds).tolist()
      spans.append(Span(start, limit, kind))
    rows.append(spans)
  return rows


class _Place(NamedTuple):
  """A span of the sentence `row`."""

  row: int
  start: int
  limit: int
  kind: str


def _places(
  spans_of: Sequence[Iterable[tuple[int, int, str]]],
) -> set[_Place]:
  return {
    _Place(row, start, limit, kind)
    for row, spans in enumerate(spans_of)
    for start, limit, kind in spans
  }


def _bounds(
  places: Iterable[_Place], kinds: Container[str]
) -> set[tuple[int, int, int]]:
  """Returns where the spans of some kinds are."""
  return {(p.row, p.start, p.limit) for p in places if p.kind in kinds}


def count_spans(
  name: str,
  found: Sequence[Iterable[Span]],
  wanted: Sequence[Iterable[tuple[int, int, str]]],
) -> list[Counts]:
  """Counts a tagger's spans in sentences against the annotated ones.

  The kinds are all together, all names, each kind of name, dates, and whatever
  else the tagger has.
  """
  ours, gold = _places(found), _places(wanted)
  kinds = {place.kind for place in ours}
  tells_apart = _NAME not in kinds
  usual = {*NAMES, _NAME, "date"}
  groups: dict[str, set[str]] = {
    "all": usual | kinds,
    "names": {*NAMES, _NAME},
    **{kind: {kind} for kind in (*NAMES, "date", *sorted(kinds - usual))},
  }
  rows = []
  for label, group in groups.items():
    has_kind = tells_apart or label not in NAMES
    mine = _bounds(ours, group if has_kind else {_NAME})
    theirs = _bounds(gold, group)
    touched = sum(
      any(i == o.row and s < o.limit and o.start < t for o in ours)
      for i, s, t in theirs
    )
    number = len(mine) if has_kind else None
    correct = len(mine & theirs)
    rows.append(Counts(name, label, len(theirs), number, correct, touched))
  return rows


def measure_sentences(
  name: str, tagger: Tagger, texts_dir: Path
) -> list[Counts]:
  """Compares a tagger with what was marked by hand."""
  sentences = tagged_sentences(texts_dir)
  tagged = tag_characters(
    tagger, [s.text for s in sentences], [s.title for s in sentences]
  )
  found = [
    [s for s in spans if s.start < row.limit and row.start < s.limit]
    for row, spans in zip(sentences, tagged, strict=True)
  ]
  return count_spans(name, found, [row.spans for row in sentences])


def measure_answers(name: str, tagger: Tagger, texts_dir: Path) -> AnswerCounts:
  """Compares a tagger with the answers of QED's questions."""
  rows = answered_paragraphs(texts_dir)
  begin = time.perf_counter()
  texts = [row.text for row in rows]
  tagged = tag_characters(tagger, texts, [row.title for row in rows])
  seconds = time.perf_counter() - begin
  equal = contained = touched = touched_by_chance = 0
  rng = random.Random(0)
  for row, spans in zip(rows, tagged, strict=True):
    pairs = [(s, t, u, v) for s, t, _ in spans for u, v in row.answers]
    equal += any((s, t) == (u, v) for s, t, u, v in pairs)
    contained += any(s <= u and v <= t for s, t, u, v in pairs)
    touched += any(s < v and u < t for s, t, u, v in pairs)
    for _ in range(_NUM_MOVES):
      size = len(row.text)
      distance = rng.randrange(size)
      touched_by_chance += any(
        (s + distance) % size < v and u < (s + distance) % size + t - s
        for s, t, u, v in pairs
      )
  in_spans = sum(t - s for spans in tagged for s, t, _ in spans)
  return AnswerCounts(
    tagger=name,
    questions=len(rows),
    equal=equal,
    contained=contained,
    touched=touched,
    by_chance=touched_by_chance / _NUM_MOVES,
    tagged=in_spans / sum(len(row.text) for row in rows),
    spans_per_paragraph=sum(map(len, tagged)) / len(rows),
    seconds=seconds,
  )


def _table(header: str, rows: Iterable[Sequence[str]]) -> str:
  """Returns a table in Markdown; `header` has its cells between bars."""
  names = [cell.strip() for cell in header.split("|")]
  lines = [names, ["---"] * len(names), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
  """Measures the taggers and prints two tables."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--tagger", action="append", default=[], help="further tagger; repeatable"
  )
  parser.add_argument(
    "--texts_dir", type=Path, default=TEXTS_DIR, help="folder of the texts"
  )
  parser.add_argument("--json", type=Path, help="file to write the rows to")
  given = parser.parse_args()
  taggers = dict(TAGGERS)
  for name in given.tagger:
    tagger = salient_spans.find_tagger(name)
    if tagger is None:
      parser.error(f"--tagger={name} finds nothing to measure")
    taggers[name] = tagger
  sentences, answers = [], []
  for name, tagger in taggers.items():
    sentences += measure_sentences(name, tagger, given.texts_dir)
    answers.append(measure_answers(name, tagger, given.texts_dir))
  print(
    _table(
      "tagger | kind | wanted | found | precision | recall | F1 | touched",
      (row.cells() for row in sentences),
    )
  )
  print()
  print(
    _table(
      "tagger | questions | equal | contained | touched | … by chance | text "
      "tagged | spans a paragraph | seconds",
      (row.cells() for row in answers),
    )
  )
  if given.json:
    write_json(
      given.json,
      {
        "sentences": [dataclasses.asdict(row) for row in sentences],
        "answers": [dataclasses.asdict(row) for row in answers],
      },
    )


if __name__ == "__main__":
  main()
