"""Answers of the page's requests, as plain data."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from realm_jax.evaluation.explaining.explainer import Explainer
from realm_jax.evaluation.explaining.masked_text import is_masked
from realm_jax.evaluation.explaining.results import (
  Candidate,
  Explanation,
  Kind,
)
from realm_jax.evaluation.explaining.trained_heads import (
  MASKED_LM,
  SPAN,
  trained_heads,
)
from realm_jax.serving.edited_generation import BlockEditor
from realm_jax.serving.errors import EditError, RequestError, ServerError
from realm_jax.serving.marks import marked_body
from realm_jax.serving.requests import Edit, Question
from realm_jax.storage.json_files import JsonValue
from realm_jax.text.answers import normalize_answer

SENTENCE: Kind = "masked sentence"
QUESTION: Kind = "question"
_MAX_REMEMBERED = 128
_WANTED = {
  SENTENCE: "fill in [MASK]; a run of pre-training does: --masked_model_dir",
  QUESTION: "answer questions; a run of open QA does: --model_dir",
}


class EditableRun:
  """A run whose blocks can be edited, for each question anew.

  Args:
    explainer: Explainer of the run.
  """

  def __init__(self, explainer: Explainer):
    self.explainer = explainer
    self.editor = BlockEditor(explainer.model, explainer.generation)

  @property
  def kinds(self) -> set[Kind]:
    """What the run can do; an import, which no steps trained, may do both."""
    model = self.explainer.model
    if self.explainer.config.index_scores:
      return {QUESTION}
    heads = trained_heads(model.model_dir, model.step)
    of_head = {MASKED_LM: SENTENCE, SPAN: QUESTION}
    return {of_head[head] for head in heads} or set(of_head.values())

  def about(self) -> dict[str, JsonValue]:
    """Describes the run."""
    explainer = self.explainer
    return {
      "model_dir": str(explainer.model.model_dir),
      "checkpoint": explainer.model.step,
      "generation": explainer.generation.step,
      "index": explainer.generation.index.kind,
      "num_blocks": explainer.generation.num_blocks,
      "can_edit": self.editor.can_edit,
    }

  def with_texts(
    self, texts: Mapping[int, str], *, hidden: frozenset[int] = frozenset()
  ) -> Explainer:
    """Returns an explainer over edited blocks, by row.

    Raises:
      EditError: A text does not fit, or the index has no vectors.
    """
    if not texts and not hidden:
      return self.explainer
    generation = self.editor.generation(texts, hidden=hidden)
    return Explainer(self.explainer.model, generation, self.explainer.config)


class Service:
  """Explains questions and sentences; one thread calls it.

  Args:
    run: Explainer of a run.
    masked_run: Explainer of a run of pre-training, for sentences; None leaves
      them to `run`.
    examples: Texts to offer, by kind.

  Raises:
    ServerError: The second run does not fill in sentences.
  """

  def __init__(
    self,
    run: Explainer,
    masked_run: Explainer | None = None,
    *,
    examples: Mapping[Kind, Sequence[str]],
  ):
    own = EditableRun(run)
    self.runs: dict[Kind, EditableRun] = dict.fromkeys(own.kinds, own)
    if masked_run is not None:
      other = EditableRun(masked_run)
      self.runs |= dict.fromkeys(other.kinds & {SENTENCE}, other)
      if SENTENCE not in other.kinds:
        raise ServerError(
          f"{masked_run.model.model_dir} was trained to answer questions "
          "alone; give a run of pre-training as --masked_model_dir"
        )
    self._examples = {kind: list(examples.get(kind, ())) for kind in self.runs}
    self._remembered = functools.lru_cache(_MAX_REMEMBERED)(self._ask)

  def about(self) -> dict[str, Any]:
    """Describes what the page can do."""
    return {
      "runs": {kind: run.about() for kind, run in self.runs.items()},
      "examples": self._examples,
      "missing": {
        kind: f"This page cannot {wanted}."
        for kind, wanted in _WANTED.items()
        if kind not in self.runs
      },
    }

  def warm_up(self) -> None:
    """Compiles the programs, so that the first question does not wait."""
    texts = {SENTENCE: "The sky is [MASK].", QUESTION: "what is the sky?"}
    for kind, run in self.runs.items():
      edits: tuple[Edit, ...] = ()
      if run.editor.can_edit:
        block_id = int(run.explainer.corpus.block_ids[0])
        edits = (Edit(block_id, "A text of a few words."),)
      self.ask(Question(texts[kind]))
      self.ask(Question(texts[kind], edits))

  def ask(self, question: Question) -> dict[str, Any]:
    """Explains a question or a sentence; the module `app` says what returns.

    Raises:
      ExplanationError: The text has no words, or does not fit the run.
      EditError: An edited text does not fit.
      RequestError: No run of the page can do this, or a block is unknown.
    """
    return self._remembered(question)

  def _ask(self, question: Question) -> dict[str, Any]:
    kind = SENTENCE if is_masked(question.text) else QUESTION
    if kind not in self.runs:
      raise RequestError(f"this page cannot {_WANTED[kind]}")
    run = self.runs[kind]
    texts = _texts_by_row(run.explainer, question)
    explainer = run.with_texts(texts)
    explained = explainer.explain(question.text)
    answers = explained.answer.split(" | ")
    return {
      "kind": explained.kind,
      "text": explained.text,
      "answer": explained.answer,
      "probability": _probability(explained.log_likelihood),
      "answers": [
        {
          "text": one.text,
          "probability": one.probability,
          "without_retrieval": one.without_retrieval,
          "by_released_reader": one.by_released_reader,
        }
        for one in explained.fillings
      ],
      "blocks": [
        _block(explainer, explained, one, answers, texts)
        for one in explained.candidates
      ],
      "without": _without_null(explained)
      if kind == SENTENCE
      else self._without_best(run, explained, texts),
      "notes": [*explained.notes],
      "run": run.about(),
    }

  def _without_best(
    self, run: EditableRun, explained: Explanation, texts: Mapping[int, str]
  ) -> dict[str, Any] | None:
    """Answers from all blocks but the one that gives most of the answer."""
    candidates = [one for one in explained.candidates if one.share]
    if not candidates or len(explained.candidates) == 1:
      return None
    best = max(candidates, key=lambda one: one.share or 0.0)
    explainer = run.with_texts(texts, hidden=frozenset({best.source.row}))
    other = explainer.explain(explained.text)
    return {
      "kind": "without the best block",
      "left_out": best.source.title or best.source.block,
      "answer": other.answer,
      "probability": _probability(other.log_likelihood),
      "same": normalize_answer(other.answer)
      == normalize_answer(explained.answer),
    }


def _texts_by_row(explainer: Explainer, question: Question) -> dict[int, str]:
  """Returns the edited texts by row, but those that are as they were."""
  corpus = explainer.corpus
  ids = np.array([edit.block_id for edit in question.edits], np.int64)
  texts = {}
  for row, edit in zip(
    corpus.rows_of(ids).tolist(), question.edits, strict=True
  ):
    if row < 0:
      raise EditError(
        f"no block has the id {edit.block_id}; the corpus may have changed: "
        "restore the block, or load the page again"
      )
    if edit.text.strip() != corpus.block(row).body.strip():
      texts[row] = edit.text
  return texts


def _without_null(explained: Explanation) -> dict[str, Any]:
  """Returns the filling by the null block, which is what it reads then."""
  null = explained.candidates[0].best
  answer = "" if null is None else null.text
  return {
    "kind": "null block",
    "left_out": "",
    "answer": answer,
    "probability": None if null is None else null.probability,
    "same": answer == explained.answer,
    "probability_of_answer": _probability(explained.log_likelihood_null),
    "utility": explained.utility,
  }


def _block(
  explainer: Explainer,
  explained: Explanation,
  candidate: Candidate,
  answers: Sequence[str],
  texts: Mapping[int, str],
) -> dict[str, Any]:
  source, best = candidate.source, candidate.best
  is_null = source.block_id is None
  said, marked = None, list(answers)
  if best is not None and best.start_byte is not None:
    assert best.limit_byte is not None
    said = (best.start_byte, best.limit_byte)
    if normalize_answer(best.text) in map(normalize_answer, answers):
      # As the block spells it, which may have another article.
      marked.append(best.text)
  return {
    # As a string, since JavaScript's numbers have 53 bits.
    "id": None if is_null else str(source.block_id),
    "name": source.block,
    "title": source.title,
    "body": source.body,
    "segments": []
    if is_null
    else [
      segment._asdict()
      for segment in marked_body(
        explainer.corpus,
        source.row,
        query=explained.text,
        answers=marked,
        said=said,
      )
    ],
    "is_edited": source.row in texts,
    "score": candidate.score,
    "retriever": candidate.probability,
    "reader": _probability(candidate.log_likelihood),
    "share": candidate.share,
    "utility": candidate.utility,
    "says": None
    if best is None
    else {"text": best.text, "probability": best.probability},
    "contains_sentence": candidate.contains_sentence,
  }


def _probability(log_probability: float | None) -> float:
  return 0.0 if log_probability is None else math.exp(log_probability)
