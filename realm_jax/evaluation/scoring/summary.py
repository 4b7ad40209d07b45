"""All figures of an evaluation's questions, and their tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from realm_jax.console import columns, figures_table
from realm_jax.evaluation.scoring import breakdowns, resampling
from realm_jax.evaluation.scoring.question_scores import (
  Line,
  means,
  num_bad_patterns,
  question_scores,
)

INTERVALS = "intervals"
_BREAKDOWNS = {
  "by_question_word": breakdowns.question_word,
  "by_answer_length": breakdowns.answer_length,
}


def summarize(lines: Sequence[Line]) -> dict[str, Any]:
  """Returns the mean of each score, and how it spreads over the questions.

  Returns:
    The means of `question_scores`; `bad_patterns`, if answers are patterns;
    `intervals`, the 95 % bootstrap interval of each mean; `by_question_word`
    and `by_answer_length`, the figures of each group of questions.
  """
  scores = question_scores(lines)
  figures: dict[str, Any] = means(scores)
  if (bad_patterns := num_bad_patterns(lines)) is not None:
    figures["bad_patterns"] = bad_patterns
  figures["num_questions"] = len(lines)
  figures[INTERVALS] = resampling.bootstrap_intervals(scores)
  for name, group_of in _BREAKDOWNS.items():
    figures[name] = breakdowns.breakdown(lines, scores, group_of)
  return figures


def summary_table(figures: Mapping[str, Any]) -> str:
  """Returns the figures of an evaluation as tables for a terminal.

  A figure's interval stands beside it, and breakdowns follow the others.
  """
  intervals = figures.get(INTERVALS, {})
  shown = {
    name: _with_interval(value, intervals.get(name))
    for name, value in figures.items()
    if name != INTERVALS and not isinstance(value, Mapping)
  }
  tables = [figures_table(shown)]
  for name in _BREAKDOWNS:
    if name in figures:
      tables.append(_groups_table(name, figures[name]))
  return "\n\n".join(tables)


def _with_interval(value: Any, interval: Sequence[float] | None) -> Any:
  if interval is None:
    return value
  low, high = interval
  return f"{value:.4f}  [{low:.4f}, {high:.4f}]"


def _groups_table(name: str, groups: Mapping[str, Mapping[str, float]]) -> str:
  names = list(dict.fromkeys(n for group in groups.values() for n in group))
  rows: list[Sequence[object]] = [[name, *names]]
  for label, group in groups.items():
    rows.append([label, *(group.get(n, "") for n in names)])
  return columns(rows)
