"""Questions with their answers, in JSON Lines.

A file may be compressed (.gz, .bz2, .xz, .zst). Reading it, and evaluating with
it, needs neither seqio nor TensorFlow.
"""

from collections.abc import (
  Callable,
  Generator,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int, Int64

from realm_jax.answers.match import AnswerKind
from realm_jax.answers.patterns import compiled
from realm_jax.corpus.links import title_key
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import Example, FeatureSpec, TaskError
from realm_jax.inputs.config import DataConfig, current_context, task_context
from realm_jax.storage.json_files import (
  JsonValue,
  read_object,
  require_unicode,
)
from realm_jax.storage.line_files import lines_of
from realm_jax.text.mentions import find_sorted
from realm_jax.text.vocabulary import MASK

# Tasks that read the run's files, with the kind of their answers.
TASKS: Mapping[str, AnswerKind] = {
  "open_qa": "string",
  "open_qa_regex": "regex",
}
_MAX_LISTED = 5
WANTED = 'wanted {"question": "…", "answer": ["…"]} on every line'


class Question(NamedTuple):
  """A question, its alternative answers, and optionally an id.

  The documents that lead to the answer, in order, may be given by ids or by
  titles.
  """

  question: str
  answers: Sequence[str]
  question_id: str = ""
  gold_ids: Sequence[str] = ()
  gold_titles: Sequence[str] = ()


# Function that makes a question from a line's object. It raises a ValueError or
# KeyError for other objects.
ToQuestion: TypeAlias = Callable[[Mapping[str, JsonValue]], Question]


def listed(items: Sequence[str]) -> str:
  """Joins the first few items, and states the number of the others."""
  text = "; ".join(items[:_MAX_LISTED])
  rest = len(items) - _MAX_LISTED
  return f"{text}; and {rest:,} more" if rest > 0 else text


def read_question(fields: Mapping[str, JsonValue]) -> Question:
  """Reads `{"question": …, "answer": […]}`, or "answers", and "id" if given.

  The documents that lead to the answer are in "gold_ids" or, as titles, in
  "gold_titles", in the order of the path. In HotpotQA, they are the titles of
  "supporting_facts", and the id is "_id".

  A line of KILT (Petroni et al. 2021) has `input` and `output`, a list of
  objects, some with an `answer`, and others only with the provenance of one.

  Raises:
    ValueError: A field is missing or is not text.
  """
  question, answers = fields.get("question"), fields.get("answer")
  if "input" in fields:
    question, outputs = fields["input"], fields.get("output")
    if not isinstance(outputs, list):
      raise RealmError(f"the output is {outputs!r}; want a list, as in KILT")
    entries = [entry for entry in outputs if isinstance(entry, Mapping)]
    answers = [entry["answer"] for entry in entries if entry.get("answer")]
  question = _text(question, "the question")
  answers = fields.get("answers") if answers is None else answers
  answers = [answers] if isinstance(answers, str) else answers
  if not isinstance(answers, list) or not answers:
    raise RealmError(f"the answer is {answers!r}")
  question_id = fields.get("id", fields.get("_id"))
  question_id = "" if question_id is None else str(question_id)
  require_unicode(question_id, f"the id {question_id!r}")
  texts = [_text(answer, "one answer") for answer in answers]
  facts: Any = fields.get("supporting_facts") or []
  if not isinstance(facts, list) or not all(
    isinstance(fact, list) and fact[:1] and isinstance(fact[0], str)
    for fact in facts
  ):
    raise RealmError(
      f"the supporting facts are {facts!r}; want a list of [title, sentence]"
    )
  gold, titles = {}, dict.fromkeys(title for title, *_ in facts)
  if "gold_ids" in fields:
    titles = {}
  for name, known in (("gold_ids", []), ("gold_titles", [*titles])):
    values = fields.get(name, known)
    if not isinstance(values, list):
      raise RealmError(f"{name} is {values!r}; want a list")
    gold[name] = tuple(_text(value, f"one of {name}") for value in values)
  if all(gold.values()):
    raise RealmError("it has gold_ids and gold_titles; give one of them")
  return Question(question, texts, question_id, **gold)


def _text(value: JsonValue, name: str) -> str:
  if not isinstance(value, str) or not value.strip():
    raise RealmError(f"{name} is {value!r}")
  require_unicode(value, f"{name} {value!r}")
  return value


def read_json_lines(
  path: epath.Path, to_question: ToQuestion = read_question
) -> Iterator[Question]:
  """Yields each line's question, which has an id.

  Raises:
    TaskError: Lines are not questions, or repeat the id of an earlier one. The
      message counts them, and shows the first.
  """
  complaints: list[str] = []
  lines: dict[str, int] = {}
  for number, line in enumerate(lines_of(path), start=1):
    try:
      question = to_question(read_object(line))
    except (ValueError, KeyError) as error:
      complaints.append(f"line {number}: {error}")
      continue
    name = question.question_id or f"{path.stem}:{number}"
    first = lines.setdefault(name, number) if question.question_id else number
    if first != number:
      complaints.append(f"line {number}: line {first} has its id {name!r}")
    if not complaints:
      yield question._replace(question_id=name)
  if complaints:
    raise TaskError(f"{path}, {listed(complaints)}; {WANTED}")


class QuestionRecords:
  """The questions of one split, each with an id, in memory."""

  def __init__(self, questions: Sequence[Question], answer_kind: AnswerKind):
    self.questions, self._answer_kind = questions, answer_kind
    self.has_paths = any(q.gold_ids or q.gold_titles for q in questions)
    self._context = current_context()

  def _gold(self, question: Question) -> list[str]:
    """Returns the document ids of its path; empty if one is missing."""
    corpus, ids = self._context.corpus, [*question.gold_ids]
    if keys := [*map(title_key, question.gold_titles)]:
      known, first_rows = corpus.graph.titles
      places, is_known = find_sorted(np.array(keys), known)
      rows = first_rows[places].tolist() if is_known.all() else []
      ids = [corpus.block(row).document_id for row in rows]
    return ids if all(len(corpus.document_rows(one)) for one in ids) else []

  @property
  def spec(self) -> Mapping[str, Any]:
    """Types and shapes of a record, for tf.data."""
    import tensorflow as tf

    gold = {"gold": tf.TensorSpec((None,), tf.string)}
    return (gold if self.has_paths else {}) | {
      "question": tf.TensorSpec((), tf.string),
      "question_tokens": tf.TensorSpec((None,), tf.int32),
      "answers": tf.TensorSpec((None,), tf.string),
      "answer_tokens": tf.TensorSpec((None, None), tf.int32),
      "question_id": tf.TensorSpec((), tf.string),
    }

  def __len__(self) -> int:
    return len(self.questions)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Returns questions by their index, as texts and as tokens.

    The tokens of a question's answers are int32[a, w], padded with 0 to the
    longest answer of all these questions. A pattern has no tokens.
    """
    questions = [self.questions[index] for index in indices.tolist()]
    words = self._context.corpus.vocabulary
    texts = [answer for q in questions for answer in q.answers]
    if self._answer_kind == "regex":
      texts = [""] * len(texts)
    tokens = words.tokenize_with_offsets(texts)
    lengths = np.diff(tokens.row_offsets)
    padded = np.zeros((len(texts), lengths.max(initial=0)), np.int32)
    is_token = np.arange(padded.shape[1]) < lengths[:, np.newaxis]
    padded[is_token] = tokens.token_ids
    limits = np.cumsum([len(q.answers) for q in questions])
    paths = [[one.encode() for one in self._gold(q)] for q in questions]
    gold = {"gold": [np.array(path, object) for path in paths]}
    return (gold if self.has_paths else {}) | {
      "question": [q.question.encode() for q in questions],
      "question_tokens": [words.encode_masked(q.question) for q in questions],
      "answer_tokens": np.split(padded, limits[:-1]),
      "answers": [
        np.array([answer.encode() for answer in q.answers], object)
        for q in questions
      ],
      "question_id": [q.question_id.encode() for q in questions],
    }

  def problems(self, lengths: Mapping[str, int]) -> Sequence[str]:
    """Describes questions that will be truncated, or cannot be scored."""
    complaints, num_words = [], lengths["query"] - 2
    # A mask is one wordpiece, like a punctuation mark.
    texts = [q.question.replace(MASK, ".") for q in self.questions]
    tokens = self._context.corpus.vocabulary.tokenize_with_offsets(texts)
    sizes = np.diff(tokens.row_offsets)
    if cut := np.flatnonzero(sizes > num_words).tolist():
      named = [f"{self.questions[i].question_id} ({sizes[i]})" for i in cut]
      complaints.append(
        f"{len(cut):,} of {len(self):,} questions have more than {num_words} "
        f"wordpieces and are cut; raise QUERY_LENGTH to {sizes.max() + 2} for "
        f"all: {listed(named)}"
      )
    unusable = []
    for _, answers, name, *_ in self.questions:
      patterns = answers if self._answer_kind == "regex" else ()
      reasons = {text: compiled(text).problem for text in patterns}
      if bad := [f"{text!r}: {why}" for text, why in reasons.items() if why]:
        unusable.append(f"{name} ({', '.join(bad)})")
      elif not any(answer.strip() for answer in answers):
        unusable.append(name)
    if unusable:
      complaints.append(
        f"{len(unusable):,} questions have no answer, or one that is no valid "
        "pattern and matches nothing; without any other, a question teaches "
        f"nothing and is scored as wrong: {listed(unusable)}"
      )
    lacking = [
      q.question_id
      for q in self.questions
      if (q.gold_ids or q.gold_titles) and not self._gold(q)
    ]
    if lacking:
      complaints.append(
        f"{len(lacking):,} questions have a path with a document that the "
        f"corpus lacks, and teach none: {listed(lacking)}"
      )
    return complaints


def read_split(
  split: str, answer_kind: AnswerKind, to_question: ToQuestion = read_question
) -> QuestionRecords:
  """Reads a whole file of the run, so that bad lines are reported at the start.

  Raises:
    TaskError: A line is not a question, the file has no question, or the run
      has no file for the split.
    FileNotFoundError: The file is missing.
  """
  path = current_context().question_file(split)
  questions = list(read_json_lines(path, to_question))
  if not questions:
    raise TaskError(f"{path} has no line; {WANTED}")
  return QuestionRecords(questions, answer_kind)


class QuestionExamples:
  """The same examples of `TASKS` as from seqio, in the order of the file.

  Args:
    config: Data of the run, of one of `TASKS`.
    positions: For each row of this process, its first question.
  """

  spec: Mapping[str, FeatureSpec] = {
    "position": FeatureSpec((), np.int64),
    "query": FeatureSpec((None,), np.int32),
    "question": FeatureSpec((), object),
    "question_id": FeatureSpec((), object),
    "answers": FeatureSpec((None,), object),
    "answer_tokens": FeatureSpec((None, None), np.int32),
    "answer_kind": FeatureSpec((), object),
  }

  def __init__(self, config: DataConfig, positions: Int64[np.ndarray, " b"]):
    self._config, self._kind = config, TASKS[config.task]
    with task_context(config):
      self._records = read_split(config.split, self._kind)
    if self._records.has_paths:
      self.spec = {**self.spec, "gold": FeatureSpec((None,), object)}
    rows = (
      np.arange(p, len(self._records), config.batch_size) for p in positions
    )
    self._positions = np.sort(np.concatenate([*rows]))
    for problem in self._records.problems(config.lengths):
      path = config.question_file(config.split)
      logging.warning("%s: %s", path, problem)

  def __iter__(self) -> Generator[Example, None, None]:
    words, length = self._config.corpus.vocabulary, self._config.query_length
    for position in self._positions:
      records = self._records.lookup(position[np.newaxis])
      record = {name: values[0] for name, values in records.items()}
      token_ids = record.pop("question_tokens")[: length - 2]
      query = np.array([words.cls_id, *token_ids, words.sep_id])
      kind = self._kind.encode()
      yield record | {"position": position, "query": query, "answer_kind": kind}
