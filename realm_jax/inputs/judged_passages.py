"""Queries with passages that were judged to be relevant or not.

A file has a line for each query, in one of these common formats, whose field
names may be mixed:

    {"query": …, "positive_passages": […], "negative_passages": […]}   Tevatron
    {"question": …, "answers": […], "positive_ctxs": […],
     "hard_negative_ctxs": […], "negative_ctxs": […]}                  DPR
    {"query": …, "pos": […], "neg": […]}                     FlagEmbedding
    {"anchor": …, "positive": …, "negative": …}      sentence-transformers

A passage is a text, or an object with a `text` and optionally a `title`. A .tsv
file has triples, as MS MARCO's: a query, a relevant passage and an irrelevant
one, separated by tabs. A folder is in BEIR's format; documents with grade 0 are
not relevant.

A line of JSON may have a teacher's scores of its passages: as `score` of each
passage, in `pos_scores` and `neg_scores` (FlagEmbedding), or in a list
`scores`, `score`, `labels` or `label`. The list has a score for each passage,
the relevant ones first. Or it has, for each irrelevant passage, the margin
between the relevant passage's score and its own (sentence-transformers'
MarginMSELoss).
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.errors import RealmError
from realm_jax.inputs.batch import TaskError
from realm_jax.inputs.beir import JudgedQuery, read_queries
from realm_jax.inputs.config import current_context
from realm_jax.inputs.sources import RunFilesSource
from realm_jax.storage.json_files import read_object, require_unicode
from realm_jax.storage.line_files import IndexedLines, lines_of

_QUERY = ("query", "question", "anchor")
_POSITIVES = ("positive_passages", "positive_ctxs", "pos", "positive")
# The first of these fields that is not empty counts.
_NEGATIVES = (
  *("negative_passages", "hard_negative_ctxs", "negative_ctxs"),
  *("neg", "negative"),
)
_WANTED = (
  'want {"query": "…", "positive_passages": [{"title": "…", "text": "…"}], '
  '"negative_passages": […]}, or another form of realm_jax/inputs/'
  "judged_passages.py"
)
_SCORES = ("scores", "score", "labels", "label")
# Number of lines to check at the start, so that a wrong file fails fast.
_CHECKED_LINES = 1000


class Passage(NamedTuple):
  """A text and its title, which may be empty."""

  title: str
  text: str


class Judged(NamedTuple):
  """A query and its judged passages.

  Attributes:
    positives: Relevant passages, at least one.
    negatives: Irrelevant passages.
    answers: Answers, if any; a passage that contains one counts as relevant.
    scores: Scores of the positives, then of the negatives, if they were read.
  """

  query: str
  positives: Sequence[Passage]
  negatives: Sequence[Passage] = ()
  answers: Sequence[str] = ()
  scores: Sequence[float] = ()


def read_judged(line: bytes) -> Judged:
  """Reads a line of JSON in any of the forms above.

  Raises:
    RealmError: The line has none of these forms.
  """
  fields = read_object(line)
  (query,) = _texts(_first(fields, _QUERY), "the query")[:1] or [None]
  if query is None:
    raise RealmError(f"there is no query, under any of {', '.join(_QUERY)}")
  positives = _passages(_first(fields, _POSITIVES), "a positive")
  if not positives:
    names = ", ".join(_POSITIVES)
    raise RealmError(f"there is no relevant passage, under any of {names}")
  negatives = _passages(_first(fields, _NEGATIVES), "a negative")
  answers = _texts(fields.get("answers"), "an answer")
  return Judged(query, positives, negatives, answers)


def read_scored(line: bytes) -> Judged:
  """Reads a line of JSON whose passages have a teacher's scores.

  Margins become scores relative to the relevant passage's.

  Raises:
    RealmError: The line has none of the forms above, or a passage has no score.
  """
  judged, fields = read_judged(line), read_object(line)
  num_positives, num_negatives = map(len, (judged.positives, judged.negatives))
  listed = next((fields[n] for n in _SCORES if fields.get(n) is not None), None)
  if listed is None and "pos_scores" in fields:
    listed = [
      *_listed(fields["pos_scores"]),
      *_listed(fields.get("neg_scores", [])),
    ]
  if listed is None:
    judged_lists = [
      _listed(_first(fields, names)) for names in (_POSITIVES, _NEGATIVES)
    ]
    passages = [one for part in judged_lists for one in part if one is not None]
    listed = [p.get("score") if isinstance(p, dict) else None for p in passages]
  scores = _listed(listed)
  for one in scores:
    is_number = isinstance(one, (int, float)) and not isinstance(one, bool)
    if not is_number or not math.isfinite(one):
      raise RealmError(
        f"the score of a passage is {one!r:.80}; want a number, as `score` of "
        "each passage or in the list `scores`"
      )
  are_margins = any(fields.get(name) is not None for name in _SCORES)
  if are_margins and num_positives == 1 and len(scores) == num_negatives:
    scores = [0.0, *(-margin for margin in scores)]
  if len(scores) != num_positives + num_negatives:
    raise RealmError(
      f"it has {len(scores)} scores for {num_positives} relevant passages and "
      f"{num_negatives} others; want one for each, or for each of the others "
      "its margin in `scores`"
    )
  return judged._replace(scores=scores)


def _listed(value: Any) -> list[Any]:
  return value if isinstance(value, list) else [value]


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
  return next((fields[name] for name in names if fields.get(name)), None)


def _texts(value: Any, name: str) -> list[str]:
  values = _listed(value)
  for one in values:
    if one is not None and not isinstance(one, str):
      raise RealmError(f"{name} is {one!r:.80}, not a text")
    require_unicode(one or "", name)
  return [one for one in values if one]


def _passages(value: Any, name: str) -> list[Passage]:
  passages = []
  for one in _listed(value):
    fields = one if isinstance(one, dict) else {"text": one}
    title, text = fields.get("title") or "", fields.get("text")
    if one is None:
      continue
    is_text = isinstance(text, str) and isinstance(title, str)
    # Documents of BEIR may have only a title.
    if not is_text or not (title + text).strip():
      raise RealmError(f"{name} is {one!r:.80}; want a text")
    require_unicode(title + text, name)
    passages.append(Passage(title, text))
  return passages


def _read_triple(line: bytes) -> Judged:
  parts = line.decode().rstrip("\r\n").split("\t")
  if len(parts) != 3 or not all(part.strip() for part in parts):
    raise RealmError(
      f"it has {len(parts)} columns; want a query, a relevant passage and one "
      "that is not, between tabs"
    )
  query, *passages = parts
  positive, negative = (Passage("", text) for text in passages)
  return Judged(query, [positive], [negative])


class _Lines:
  """The judged queries of a file, one on each line."""

  def __init__(self, path: epath.Path, *, has_scores: bool = False):
    self._path, self._lines = path, IndexedLines(path)
    self._read = _read_triple if path.suffix == ".tsv" else read_judged
    if has_scores:
      self._read = read_scored
    for number in range(min(len(self), _CHECKED_LINES)):
      _ = self[number]

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, number: int) -> Judged:
    try:
      return self._read(self._lines[number])
    except ValueError as error:
      raise TaskError(
        f"{self._path}, line {number + 1}: {error}; {_WANTED}"
      ) from error


class _BeirFolder:
  """The judged queries of a folder in BEIR's format."""

  def __init__(self, folder: epath.Path, split: str):
    queries = read_queries(folder, split)
    judged = {document for query in queries for document in query.grades}
    path = folder / "corpus.jsonl"
    self._lines = IndexedLines(path)
    self._line_of = dict[str, int]()
    for number, line in enumerate(lines_of(path)):
      try:
        document = read_object(line)
        if (name := str(document.get("_id"))) in judged:
          _passages([document], "the document")
          self._line_of[name] = number
      except RealmError as error:
        raise TaskError(f"{path}, line {number + 1}: {error}") from error
    self._queries = [query for query in queries if self._of(query, True)]
    if not self._queries:
      raise TaskError(
        f"{folder}/qrels/{split}.tsv judges no document of corpus.jsonl as "
        "relevant; want both from the same folder"
      )

  def _of(self, query: JudgedQuery, is_relevant: bool) -> list[int]:
    """Returns the line numbers of a query's documents."""
    return [
      self._line_of[document]
      for document, grade in query.grades.items()
      if document in self._line_of and (grade > 0) == is_relevant
    ]

  def __len__(self) -> int:
    return len(self._queries)

  def __getitem__(self, number: int) -> Judged:
    query = self._queries[number]
    positives, negatives = (
      _passages(
        [read_object(self._lines[line]) for line in self._of(query, relevant)],
        "a document",
      )
      for relevant in (True, False)
    )
    return Judged(query.text, positives, negatives)


class JudgedRecords:
  """Judged queries as records: texts, whose first passages are relevant."""

  def __init__(
    self, queries: _Lines | _BeirFolder, *, has_scores: bool = False
  ):
    self._queries, self._has_scores = queries, has_scores

  @property
  def spec(self) -> Mapping[str, Any]:
    """The types and shapes of a record, for tf.data."""
    import tensorflow as tf

    scores = {"scores": tf.TensorSpec((None,), tf.float32)}
    return (scores if self._has_scores else {}) | {
      "query": tf.TensorSpec((), tf.string),
      "titles": tf.TensorSpec((None,), tf.string),
      "texts": tf.TensorSpec((None,), tf.string),
      "num_positives": tf.TensorSpec((), tf.int32),
      "answers": tf.TensorSpec((None,), tf.string),
    }

  def __len__(self) -> int:
    return len(self._queries)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Reads queries by their indices."""
    queries = [self._queries[index] for index in indices.tolist()]
    passages = [[*one.positives, *one.negatives] for one in queries]
    scores = {"scores": [np.array(one.scores, np.float32) for one in queries]}
    return (scores if self._has_scores else {}) | {
      "query": [one.query.encode() for one in queries],
      "titles": [_encoded(p.title for p in of_query) for of_query in passages],
      "texts": [_encoded(p.text for p in of_query) for of_query in passages],
      "num_positives": [len(one.positives) for one in queries],
      "answers": [_encoded(one.answers) for one in queries],
    }


def _encoded(texts: Any) -> np.ndarray:
  return np.array([text.encode() for text in texts], object)


class JudgedSource(RunFilesSource):
  """The judged queries of the run's files or folders, one for each split.

  With `has_scores`, they are files of JSON that have a score for each passage.
  """

  def __init__(self, *, has_scores: bool = False):
    super().__init__()
    self._has_scores = has_scores

  def open(self, split: str) -> JudgedRecords:
    """Opens a file, or the folder in BEIR's format whose qrels have the split.

    Raises:
      TaskError: The file is missing, or a line has none of the forms.
    """
    path = current_context().question_file(split)
    if self._has_scores and (path.is_dir() or path.suffix == ".tsv"):
      raise TaskError(f"{path} has no scores of passages; want JSON Lines")
    if path.is_dir():
      return JudgedRecords(_BeirFolder(path, split))
    if not path.exists():
      raise TaskError(f"there is no file {os.fspath(path)}; {_WANTED}")
    queries = _Lines(path, has_scores=self._has_scores)
    if not len(queries):
      raise TaskError(f"{path} is empty; {_WANTED}")
    return JudgedRecords(queries, has_scores=self._has_scores)
