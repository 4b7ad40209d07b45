"""Figures of kinds of questions: by question word and by answer length."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from realm_jax.evaluation.scoring.question_scores import Line, Scores, means
from realm_jax.text.answers import normalize_answer

_QUESTION_WORDS = re.compile(
  r"\b(?:(how many|how much|when|where|what|which|why|how)|who(?:m|se|s)?)\b"
)
_LONGEST = 5
# Scores that a breakdown shows, of those that there are.
_SHOWN = ("exact_match", "f1", "recall_at_5", "recall_at_20", "mrr")

# Figures of a group of questions, by name.
Group = dict[str, float]


def question_word(line: Line) -> str:
  """Returns the first question word: "who", "how many" and so on, or "other".

  "whom", "whose" and "whos" count as "who". The word may stand anywhere, as
  in "in what year".
  """
  found = _QUESTION_WORDS.search(line["question"].lower())
  return "other" if found is None else found[1] or "who"


def answer_length(line: Line) -> str:
  """Returns the number of normalized words of the shortest answer.

  Patterns have no length.
  """
  if line["answer_kind"] == "regex":
    return "pattern"
  lengths = (len(normalize_answer(a).split()) for a in line["references"])
  length = min(lengths, default=0)
  if length >= _LONGEST:
    return f"{_LONGEST} or more words"
  return f"{length} word{'' if length == 1 else 's'}"


def breakdown(
  lines: Sequence[Line], scores: Scores, group_of: Callable[[Line], str]
) -> dict[str, Group]:
  """Returns the number of questions and the main scores of each group.

  Groups of question words are in the order of their size, those of lengths in
  the order of the lengths.
  """
  groups = np.array([group_of(line) for line in lines])
  names, sizes = np.unique(groups, return_counts=True)
  order = range(len(names))
  if group_of is question_word:
    order = np.argsort(-sizes, kind="stable").tolist()
  return {
    str(names[i]): {
      "num_questions": int(sizes[i]),
      **_means_of(scores, groups == names[i]),
    }
    for i in order
  }


def _means_of(scores: Scores, chosen: np.ndarray) -> Group:
  parts = {n: scores[n][chosen] for n in _SHOWN if n in scores}
  # A group of patterns has no F1.
  return means({n: v for n, v in parts.items() if not np.isnan(v).all()})
