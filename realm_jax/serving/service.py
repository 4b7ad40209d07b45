"""Answers of the page's requests, as plain data."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from realm_jax.evaluation import answers
from realm_jax.evaluation.explain import (
  MASKED_LM,
  SPAN,
  explain,
  trained_heads,
)
from realm_jax.evaluation.explanation import (
  Candidate,
  Explanation,
  Kind,
  probability,
)
from realm_jax.evaluation.masked_sentences import is_masked
from realm_jax.evaluation.run import Block, EditError, Run
from realm_jax.serving.marks import marked_body
from realm_jax.text.answers import exact_match

SENTENCE: Kind = "masked sentence"
QUESTION: Kind = "question"
_OF_HEAD: dict[str, Kind] = {MASKED_LM: SENTENCE, SPAN: QUESTION}
_WANTED = {
  SENTENCE: "fill in [MASK], as a run of pre-training can",
  QUESTION: "answer questions, as a run of open QA can",
}
_WARM_UP = {SENTENCE: "The sky is [MASK].", QUESTION: "what is the sky?"}


class RequestError(ValueError):
  """A request that is malformed, beyond a limit, or for no run of the page."""


class Service:
  """Explains questions and sentences.

  Args:
    run: Run of open QA, or of pre-training.
    masked_run: Run of pre-training, for sentences; None leaves them to `run`.
    examples: Texts to offer, by kind.

  Raises:
    ValueError: The second run does not fill in sentences.
  """

  def __init__(
    self,
    run: Run,
    masked_run: Run | None = None,
    *,
    examples: Mapping[Kind, Sequence[str]],
  ):
    self.runs: dict[Kind, Run] = dict.fromkeys(_kinds(run), run)
    if masked_run is not None:
      if SENTENCE not in _kinds(masked_run):
        raise ValueError(
          f"{masked_run.model_dir} was trained to answer questions alone; give "
          "a run of pre-training as --masked_model_dir"
        )
      self.runs[SENTENCE] = masked_run
    # For what changes the runs: updates, and newer runs from another thread.
    self._changing = threading.Lock()
    self._updates: dict[int, str] = {}
    self._examples = {kind: list(examples.get(kind, ())) for kind in self.runs}

  def about(self) -> dict[str, Any]:
    """Describes what the page can do."""
    return {
      "runs": {kind: _about(run) for kind, run in self.runs.items()},
      "examples": self._examples,
      "missing": {
        kind: f"It cannot {wanted}."
        for kind, wanted in _WANTED.items()
        if kind not in self.runs
      },
    }

  def warm_up(self) -> None:
    """Compiles the programs, so that the first question does not wait."""
    for kind, run in self.runs.items():
      self.ask(_WARM_UP[kind])
      if run.can_edit:
        first = int(run.corpus.block_ids[0])
        self.ask(_WARM_UP[kind], {first: "A text of a few words."})

  def require_words(self, texts: Sequence[str]) -> None:
    """Checks that each text can be a query.

    Raises:
      RequestError: The service answers no questions.
      ValueError: A text has no words.
    """
    self._questions().encode(texts)

  def retrieve(self, texts: Sequence[str], k: int) -> list[dict[str, Any]]:
    """Returns the k best blocks, or all, for each text; `app` has the fields.

    Raises:
      SearchError: k is not positive.
    """
    run = self._questions()
    found = run.search(run.encode(texts), k)
    return [
      {
        "query": text,
        "blocks": [_plain(run, one) for one in run.blocks(found, i)],
        **_source(run),
      }
      for i, text in enumerate(texts)
    ]

  def answer(self, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Answers questions; `app` has the fields."""
    run = self._questions()
    return [
      {
        "question": one.question,
        "answer": one.text,
        "probability": one.probability,
        "answers": [
          {
            "text": answer.text,
            "probability": answer.probability,
            "block": answer.block.id,
            "start": answer.start,
            "limit": answer.limit,
          }
          for answer in one.answers
        ],
        "blocks": [_plain(run, one.blocks[place]) for place in one.read],
        **_source(run),
      }
      for one in answers.ask(run, texts)
    ]

  def around(self, block_id: int) -> dict[str, str | None]:
    """Returns the texts before and after a block in its document.

    Raises:
      EditError: No block has this id.
    """
    run = next(iter(self.runs.values()))
    ((row, _),) = _rows(run, {block_id: ""})
    document = run.corpus.block(row).document_id

    def text(row: int) -> str | None:
      is_inside = 0 <= row < run.corpus.num_blocks
      if is_inside and run.corpus.block(row).document_id == document:
        return run.content(row).body
      return None

    return {"before": text(row - 1), "after": text(row + 1)}

  def update(self, texts: Mapping[int, str]) -> dict[str, Any]:
    """Changes blocks for all clients, until the service ends.

    Args:
      texts: Texts by the blocks' stable ids.

    Raises:
      EditError: A text does not fit, or its block is unknown.
    """
    with self._changing:
      # Requests that are computed keep the run that they have begun with.
      self.runs = {
        kind: run.edited(_texts_by_row(run, texts))
        for kind, run in self.runs.items()
      }
      self._updates |= texts
    return {"updated": len(texts)}

  def replace(self, run: Run) -> None:
    """Answers with another run from now on, with the same updates of blocks.

    Those of blocks that its corpus has no more are left out.
    """
    with self._changing:
      rows = run.corpus.rows_of(np.array([*self._updates], np.int64)).tolist()
      there = zip(self._updates.items(), rows, strict=True)
      texts = dict(update for update, row in there if row >= 0)
      if texts:
        run = run.edited(_texts_by_row(run, texts))
      self.runs = {**self.runs, **dict.fromkeys(_kinds(run), run)}

  def _questions(self) -> Run:
    if QUESTION not in self.runs:
      raise RequestError(f"this service cannot {_WANTED[QUESTION]}")
    return self.runs[QUESTION]

  def ask(
    self, text: str, edits: Mapping[int, str] | None = None
  ) -> dict[str, Any]:
    """Explains a question or a sentence; the module `app` says what returns.

    Args:
      text: Question, or sentence with [MASK].
      edits: Texts of edited blocks, by the blocks' stable ids.

    Raises:
      ExplanationError: The text has no words, or does not fit the run.
      EditError: An edited text does not fit, or its block is unknown.
      RequestError: No run of the page can do this.
    """
    kind = SENTENCE if is_masked(text) else QUESTION
    if kind not in self.runs:
      raise RequestError(f"this page cannot {_WANTED[kind]}")
    run = self.runs[kind]
    texts = _texts_by_row(run, edits or {})
    edited = run.edited(texts) if texts else run
    explained = explain(edited, text)
    if kind == SENTENCE:
      without = _without_null(explained)
    else:
      without = _without_best(run, explained, texts)
    return {
      "kind": explained.kind,
      "text": explained.text,
      "answer": explained.answer,
      "probability": explained.probability,
      "answers": [
        {
          "text": one.text,
          "probability": one.probability,
          "without_retrieval": one.without_retrieval,
        }
        for one in explained.fillings
      ],
      "blocks": [
        _block(edited, explained, one) for one in explained.candidates
      ],
      "without": without,
      "notes": explained.notes,
      "run": _about(run),
    }


def _kinds(run: Run) -> set[Kind]:
  """What a run can do; an import, which no steps trained, may do both."""
  if run.config.index_scores:
    return {QUESTION}
  heads = trained_heads(run.model_dir, run.step)
  return {_OF_HEAD[head] for head in heads} or set(_OF_HEAD.values())


def _about(run: Run) -> dict[str, Any]:
  generation = run.generation
  return {
    "model_dir": str(run.model_dir),
    "checkpoint": run.step,
    "generation": generation.step,
    "index": generation.index.kind,
    "num_blocks": generation.num_blocks,
    "can_edit": run.can_edit,
  }


def _texts_by_row(run: Run, edits: Mapping[int, str]) -> dict[int, str]:
  """Returns the edited texts by row, but those that are as they were."""
  return {
    row: text
    for row, text in _rows(run, edits)
    if text.strip() != run.content(row).body.strip()
  }


def _rows(run: Run, edits: Mapping[int, str]) -> list[tuple[int, str]]:
  rows = run.corpus.rows_of(np.array([*edits], np.int64)).tolist()
  for row, block_id in zip(rows, edits, strict=True):
    if row < 0:
      raise EditError(
        f"no block has the id {block_id}; the corpus may have changed: restore "
        "the block, or load the page again"
      )
  return [*zip(rows, edits.values(), strict=True)]


def _without_best(
  run: Run, explained: Explanation, texts: Mapping[int, str]
) -> dict[str, Any] | None:
  """Answers from all blocks but the one that gives most of the answer."""
  candidates = [one for one in explained.candidates if one.share]
  if not candidates or len(explained.candidates) == 1:
    return None
  best = max(candidates, key=lambda one: one.share or 0.0).block
  other = explain(run.edited(texts, hidden=[best.row]), explained.text)
  return {
    "kind": "without the best block",
    "left_out": best.title or best.id,
    "answer": other.answer,
    "probability": other.probability,
    "same": exact_match(other.answer, explained.answer, run.language),
  }


def _without_null(explained: Explanation) -> dict[str, Any]:
  """Returns the filling by the null block, which is what it reads then."""
  null = explained.candidates[0].best
  assert null is not None
  return {
    "kind": "null block",
    "left_out": "",
    "answer": null.text,
    "probability": null.probability,
    "same": null.text == explained.answer,
    "probability_of_answer": probability(explained.log_likelihood_null),
    "utility": explained.utility,
  }


def _source(run: Run) -> dict[str, int]:
  return {"checkpoint": run.step, "generation": run.generation.step}


def _plain(run: Run, block: Block) -> dict[str, Any]:
  """Returns a block that was retrieved, as JSON."""
  return {
    # As a string, since JavaScript's numbers have 53 bits.
    "id": str(run.corpus.block_ids[block.row]),
    "name": block.id,
    "title": block.title,
    "text": block.text,
    "url": block.url,
    "score": block.score,
    "probability": block.probability,
  }


def _block(
  run: Run, explained: Explanation, candidate: Candidate
) -> dict[str, Any]:
  block, best = candidate.block, candidate.best
  segments, said = [], None
  if block.id:
    answers = explained.answer.split(" | ")
    if best is not None and best.start is not None and best.limit is not None:
      said = (best.start, best.limit)
      if any(exact_match(best.text, a, run.language) for a in answers):
        # As the block spells it, which may have another article.
        answers.append(best.text)
    segments = marked_body(
      run.content(block.row), run.vocabulary, answers=answers, said=said
    )
  return {
    # As a string, since JavaScript's numbers have 53 bits.
    "id": str(run.corpus.block_ids[block.row]) if block.id else None,
    "name": block.id,
    "title": block.title,
    "body": block.text,
    "segments": [segment._asdict() for segment in segments],
    "is_edited": block.row in run.edits,
    "score": block.score,
    "retriever": block.probability,
    "probability": candidate.probability,
    "reader": probability(candidate.log_likelihood),
    "share": candidate.share,
    "utility": candidate.utility,
    "says": best and {"text": best.text, "probability": best.probability},
    "contains_sentence": candidate.contains_text,
  }
