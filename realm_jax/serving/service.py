"""Answers of the page's requests, as plain data."""

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from realm_jax.answers.match import exact_match
from realm_jax.answers.spans import find_token_spans
from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.explain import Candidate, Explanation, explain
from realm_jax.evaluation.masked_sentences import kind_of
from realm_jax.evaluation.run import (
  ABILITIES,
  QUESTION,
  SENTENCE,
  EditError,
  TrainedRun,
)
from realm_jax.settings import Asked

_WARM_UP = {SENTENCE: "The sky is [MASK].", QUESTION: "what is the sky?"}


class RequestError(RealmError):
  """A request that is malformed, beyond a limit, or for no run of the page."""


class Service:
  """Explains questions and sentences.

  A block goes by its name, `document id:ordinal`, which stays the same when the
  corpus is updated. A `masked_run` takes the sentences from `run`. `examples`
  are questions to offer.

  Raises:
    CheckpointError: The run has no reader, or the second one does not fill in
      sentences.
  """

  def __init__(
    self,
    run: TrainedRun,
    masked_run: TrainedRun | None = None,
    *,
    examples: Sequence[str] = (),
  ):
    run.require_reader()
    self.runs: dict[Asked, TrainedRun] = dict.fromkeys(run.kinds, run)
    if masked_run is not None:
      masked_run.require_kind(SENTENCE)
      self.runs[SENTENCE] = masked_run
    # For what changes the runs: updates, and newer runs from another thread.
    self._changing = threading.Lock()
    self._updates: dict[str, str] = {}
    self._examples = list(examples)

  def about(self) -> dict[str, Any]:
    """Describes what the page can do."""
    return {
      "runs": {kind: _about(run) for kind, run in self.runs.items()},
      "examples": self._examples if QUESTION in self.runs else [],
      "missing": [
        f"It cannot {wanted}."
        for kind, wanted in ABILITIES.items()
        if kind not in self.runs
      ],
    }

  def warm_up(self) -> None:
    """Compiles the programs, so that the first question does not wait."""
    for kind, run in self.runs.items():
      self.explain(_WARM_UP[kind])
      if run.can_edit:
        first = run.corpus.block(0).name
        self.explain(_WARM_UP[kind], {first: "A text of a few words."})

  def run_for(self, kind: Asked) -> TrainedRun:
    """Returns the run for questions or sentences, or raises `RequestError`."""
    if kind not in self.runs:
      raise RequestError(f"this page cannot {ABILITIES[kind]}")
    return self.runs[kind]

  def require_words(self, texts: Sequence[str]) -> None:
    """Raises a `ValueError` unless each text can be a query."""
    self.run_for(QUESTION).encode(texts)

  def retrieve(self, texts: Sequence[str], k: int) -> list[dict[str, Any]]:
    """Returns the k best blocks for each text; `app` has the fields."""
    run = self.run_for(QUESTION)
    found = run.search(run.encode(texts), k)
    return [
      {
        "query": text,
        "blocks": [*map(dataclasses.asdict, run.blocks(found, i))],
        **_source(run),
      }
      for i, text in enumerate(texts)
    ]

  def answer(self, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Answers questions; `app` has the fields."""
    run = self.run_for(QUESTION)
    return [
      {
        "question": one.question,
        "answer": one.text,
        "probability": one.probability,
        "answers": [
          answer._asdict() | {"block": answer.block and answer.block.id}
          for answer in one.answers
        ],
        "blocks": [dataclasses.asdict(one.blocks[place]) for place in one.read],
        **_source(run),
      }
      for one in ask(run, texts)
    ]

  def update(self, texts: Mapping[str, str]) -> dict[str, Any]:
    """Changes the texts of blocks for all clients, until the service ends.

    Raises:
      EditError: A text does not fit, or no block has its name.
    """
    with self._changing:
      # Requests that are computed keep the run that they have begun with.
      self.runs = {
        kind: run.edited(_edits(run, texts)) for kind, run in self.runs.items()
      }
      self._updates |= texts
    return {"updated": len(texts)}

  def replace(self, run: TrainedRun) -> None:
    """Answers with another run from now on, with the same updates of blocks.

    Updates of blocks that its corpus no longer has are left out.
    """
    with self._changing:
      run = run.edited(_edits(run, self._updates, missing_ok=True))
      self.runs = {**self.runs, **dict.fromkeys(run.kinds, run)}

  def explain(
    self, text: str, edits: Mapping[str, str] | None = None
  ) -> dict[str, Any]:
    """Explains a question or a sentence; `app` has the fields.

    `edits` are the texts of blocks by their names.

    Raises:
      RealmError: The text has no words, or does not fit the run.
      EditError: An edited text does not fit, or no block has its name.
      RequestError: No run of the page can do this.
    """
    run = self.run_for(kind_of(text))
    texts = _edits(run, edits or {})
    edited = run.edited(texts)
    explained = explain(edited, text)
    told = explained.to_json()
    for one, candidate in zip(
      told["candidates"], explained.candidates, strict=True
    ):
      row = candidate.block.row
      one["is_edited"] = row in edited.edits
      one["segments"] = _segments(edited, explained, candidate)
      one["around"] = _around(edited, row)
    without = _without(run, explained, texts)
    return {**told, "without": without, "run": _about(run)}


def _about(run: TrainedRun) -> dict[str, Any]:
  snapshot = run.snapshot
  return {
    "model_dir": str(run.model_dir),
    **_source(run),
    "index": snapshot.index.kind,
    "num_blocks": snapshot.num_blocks,
    "can_edit": run.can_edit,
  }


def _source(run: TrainedRun) -> dict[str, int]:
  return {"checkpoint": run.step, "snapshot": run.snapshot.step}


def _edits(
  run: TrainedRun, texts: Mapping[str, str], *, missing_ok: bool = False
) -> dict[int, str]:
  """Returns the texts of blocks by row, except those that are as they were.

  Raises `EditError` where no block has a name, unless some may be missing.
  """
  edits = {}
  for name, text in texts.items():
    document, _, ordinal = name.rpartition(":")
    number = int(ordinal) if ordinal.isdecimal() else -1
    known = block_id(run.corpus.name, document, number)
    row = int(run.corpus.rows_of(np.int64(known)))
    if row >= 0 and text.strip() != run.content(row).body.strip():
      edits[row] = text
    if row < 0 and not missing_ok:
      raise EditError(
        f"no block has the id {name!r}; the corpus may have changed: restore "
        "the block, or load the page again"
      )
  return edits


def _without(
  run: TrainedRun, explained: Explanation, texts: Mapping[int, str]
) -> dict[str, Any] | None:
  """Returns the filling by the null block, which is what is left to read.

  Of a question, it is the answer from all blocks but the one that gives most of
  the answer, in the run with these texts.
  """
  null = explained.candidates[0].best
  if explained.kind == SENTENCE and null is not None:
    return {
      "left_out": None,
      "answer": null.text,
      "probability": null.probability,
      "same": null.text == explained.answer,
    }
  candidates = [one for one in explained.candidates if one.share]
  if not candidates or len(explained.candidates) == 1:
    return None
  best = max(candidates, key=lambda one: one.share or 0.0).block
  other = explain(run.edited(texts, hidden=[best.row]), explained.text)
  return {
    "left_out": best.title or best.id,
    "answer": other.answer,
    "probability": other.probability,
    "same": exact_match(other.answer, explained.answer, run.corpus.language),
  }


def _around(run: TrainedRun, row: int) -> list[str | None]:
  """Returns the texts before and after a block in its document."""
  if row == NULL_ROW:
    return []
  document = run.corpus.block(row).document_id
  return [
    run.content(other).body
    if 0 <= other < run.corpus.num_blocks
    and run.corpus.block(other).document_id == document
    else None
    for other in (row - 1, row + 1)
  ]


def _segments(
  run: TrainedRun, explained: Explanation, candidate: Candidate
) -> list[dict[str, str]]:
  """Returns the body of a block in pieces, which joined are its whole text.

  A piece has a mark: "answer" for an occurrence of the answer, "said" for what
  the reader would say of this block alone, or "". Words are compared by their
  wordpieces, so capitals and accents do not matter.
  """
  best = candidate.best
  if not candidate.block.id:
    return []
  block, words = run.content(candidate.block.row), run.vocabulary
  text, token_ids = block.body, block.body_token_ids
  wanted, body = explained.answer.split(" | "), text.encode()
  marks = np.full(len(body), "", "U6")
  if best is not None and best.start is not None:
    first, limit = (
      len(text[:place].encode()) for place in (best.start, best.limit)
    )
    marks[first:limit] = "said"
    if any(exact_match(best.text, one, run.corpus.language) for one in wanted):
      # As the block spells it, which may have another article.
      wanted.append(best.text)
  found = find_token_spans(
    token_ids, np.array([0, len(token_ids)]), map(words.encode, wanted)
  )
  is_inside = np.append(words.is_continuation[token_ids], False)
  for start, width in zip(
    found.start.tolist(), found.width.tolist(), strict=True
  ):
    # A part of a word is no answer.
    if not (is_inside[start] or is_inside[start + width]):
      first, _ = block.byte_ranges[start]
      _, limit = block.byte_ranges[start + width - 1]
      marks[first:limit] = "answer"
  changes = np.flatnonzero(marks[1:] != marks[:-1]) + 1
  bounds = [0, *changes.tolist(), len(marks)]
  return [
    {"text": body[first:limit].decode(), "mark": str(marks[first])}
    for first, limit in itertools.pairwise(bounds)
    if first < limit
  ]
