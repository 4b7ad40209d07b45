"""What `benchmarks.taggers` counts, and what the rules reach."""

from benchmarks import taggers
from benchmarks.data.tagged_sentences import tagged_sentences
from realm_jax.text.salient_spans import Span, tag

_WANTED = [
  [(0, 3, "person"), (5, 9, "date")],
  [(0, 4, "location"), (6, 9, "person")],
]


def _row(rows, kind):
  row = next(row for row in rows if row.kind == kind)
  return row.wanted, row.found, row.correct, row.touched


def test_spans_are_correct_where_both_ends_are():
  found = [
    [Span(0, 3, "person"), Span(6, 9, "date"), Span(10, 12, "number")],
    [Span(0, 4, "person")],
  ]
  rows = taggers.count_spans("tagger", found, _WANTED)
  # The location was found as a person, the date's first character was not.
  assert _row(rows, "all") == (4, 4, 2, 3)
  assert _row(rows, "names") == (3, 2, 2, 2)
  assert _row(rows, "person") == (2, 2, 1, 1)
  assert _row(rows, "location") == (1, 0, 0, 1)
  assert _row(rows, "date") == (1, 1, 0, 1)
  assert _row(rows, "number") == (0, 1, 0, 0)
  cells = next(row.cells() for row in rows if row.kind == "names")
  assert cells == ["tagger", "names", "3", "2", "1.00", "0.67", "0.80", "0.67"]


def test_names_that_are_not_told_apart_have_a_recall():
  found = [[Span(0, 3, "name")], [Span(0, 4, "name")]]
  rows = taggers.count_spans("tagger", found, _WANTED)
  assert _row(rows, "names") == (3, 2, 2, 2)
  assert _row(rows, "person") == (2, None, 1, 1)
  assert _row(rows, "location") == (1, None, 1, 1)


def test_offsets_are_those_of_characters():
  (spans,) = taggers.tag_characters(tag, ["the Łódź of 1901"], [""])
  assert spans == [(4, 8, "name"), (12, 16, "date")]


def test_the_rules_find_what_was_marked_by_hand(shared_data):
  sentences = tagged_sentences(shared_data)
  assert len(sentences) == 100
  for row in sentences:
    for start, limit, _ in row.spans:
      assert row.start <= start < limit <= row.limit
      assert row.text[start:limit] == row.text[start:limit].strip()
  rows = taggers.measure_sentences(
    "rules", taggers.rules_without_numbers, shared_data
  )
  wanted, found, correct, _ = _row(rows, "all")
  assert correct / wanted > 0.85
  assert correct / found > 0.8


def test_the_rules_find_answers(shared_data):
  row = taggers.measure_answers("rules", tag, shared_data)
  assert row.questions == 1014
  assert 0.45 < row.equal / row.questions <= row.contained / row.questions
  assert row.touched / row.questions > 0.7
  assert row.equal < row.by_chance < row.touched
  assert 0.15 < row.tagged < 0.25
