"""Answers the page's requests with plain data."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from realm_jax.answers.match import exact_match
from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.filters import Where
from realm_jax.errors import RealmError
from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.encoding import EditError
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.masked_sentences import kind_of
from realm_jax.evaluation.result import Result
from realm_jax.evaluation.run import (
  ABILITIES,
  QUESTION,
  SENTENCE,
  TrainedRun,
)
from realm_jax.feedback.log import FeedbackLog, Served, drawn_order
from realm_jax.indexes.protocol import SearchResult
from realm_jax.serving.passages import passages_of
from realm_jax.serving.requests import RequestError, checked
from realm_jax.settings import Asked

# Number of blocks whose text in memory may differ from the corpus.
MAX_UPDATES = 256

_WARM_UP = {SENTENCE: "The sky is [MASK].", QUESTION: "what is the sky?"}


class Logged(NamedTuple):
  """A query whose list is logged under a request ID."""

  query: Any
  request_id: str


@dataclasses.dataclass(frozen=True)
class FeedbackConfig:
  """Settings for feedback: what is logged, and whether results are sampled.

  Attributes:
    log: Log of lists and rewards.
    pool_size: Number of candidates to log for a list; at least the shown blocks
      are logged.
    temperature: Temperature at which a list is sampled from the candidates by
      the retriever's scores; None returns the best ones.
  """

  log: FeedbackLog
  pool_size: int = 20
  temperature: float | None = None


class Service:
  """Retrieves, answers and explains for all clients.

  Blocks are named `document id:ordinal`; an update of the corpus does not
  change these names.

  Args:
    run: Run that answers.
    masked_run: Run that fills in sentences instead of `run`, if any.
    examples: Questions that the page offers.
    feedback: Settings for feedback; None accepts and logs none.

  Attributes:
    problem: Reason why a newer checkpoint could not be loaded, if any.
    feedback: Settings for feedback, if any.

  Raises:
    CheckpointError: The second run does not fill in sentences.
    RequestError: The run does not retrieve single blocks, and there is no
      feedback for others.
  """

  def __init__(
    self,
    run: TrainedRun,
    masked_run: TrainedRun | None = None,
    *,
    examples: Sequence[str] = (),
    feedback: FeedbackConfig | None = None,
  ):
    if masked_run is not None:
      masked_run.require_kind(SENTENCE)
    self._run, self._masked_run = run, masked_run
    self._loaded_at = time.monotonic()
    # Held while runs change: by updates, and by newer runs from another thread.
    self._changing = threading.Lock()
    self._updates: dict[str, str] = {}
    self._examples = list(examples)
    self.feedback = feedback
    if feedback is not None and (run.config.paths or not run.retrieves):
      kind = "paths of blocks" if run.retrieves else "nothing"
      raise RequestError(
        f"the run retrieves {kind}, but feedback is for single blocks; leave "
        "out --accept_feedback"
      )
    # Samples the order of lists.
    self._generator = np.random.default_rng()
    self.problem: str | None = None

  @property
  def runs(self) -> dict[Asked, TrainedRun]:
    """The runs by the kind of text that they answer.

    A retriever without a reader answers none.
    """
    runs = dict.fromkeys(self._run.kinds, self._run)
    if self._masked_run is not None:
      runs[SENTENCE] = self._masked_run
    return runs

  def about(self) -> dict[str, Any]:
    """Describes the abilities of the page."""
    runs = self.runs
    return {
      "runs": {kind: _about(run) for kind, run in runs.items()},
      "retriever": _about(self._run),
      "examples": self._examples if QUESTION in runs else [],
      "missing": [
        f"It cannot {wanted}."
        for kind, wanted in ABILITIES.items()
        if kind not in runs
      ],
    }

  def health(self) -> dict[str, Any]:
    """Describes the run that answers, and how long ago it was loaded."""
    health: dict[str, Any] = {
      "status": "ok" if self.problem is None else "stale",
      **_source(self._run),
      "age_seconds": round(time.monotonic() - self._loaded_at, 1),
      "problem": self.problem,
    }
    if self.feedback is not None:
      log = self.feedback.log
      health["feedback"] = {
        "lists": log.num_lists,
        "rewards": log.num_rewards,
        "is_full": log.is_full,
      }
    return health

  def warm_up(self) -> None:
    """Compiles the programs, so the first question does not have to wait."""
    for _ in self.retrieve(["the sky"], 5):
      pass
    for kind, run in self.runs.items():
      self.explain(_WARM_UP[kind])
      if run.can_edit:
        first = run.corpus.block(0).id
        self.explain(_WARM_UP[kind], {first: "A text of a few words."})

  def run_for(self, kind: Asked) -> TrainedRun:
    """Returns the run for questions or sentences, or raises `RequestError`."""
    runs = self.runs
    if kind not in runs:
      raise RequestError(f"this page cannot {ABILITIES[kind]}")
    return runs[kind]

  def retrieve(
    self,
    texts: Sequence[Any],
    k: int,
    where: Where | None = None,
    *,
    rerank: bool = True,
    explore: bool = False,
  ) -> Iterator[dict[str, Any]]:
    """Yields the k best blocks for each text; docs/service.md has the fields.

    Results for texts that are `Logged` are logged. A text that cannot be
    searched for gets an `error`.

    Args:
      texts: Texts to search for.
      k: Number of blocks for each.
      where: Filter of the blocks.
      rerank: Whether the run's cross-encoder, if any, orders the blocks.
      explore: Whether the blocks are sampled from the retriever's candidates,
        if `feedback` has a temperature.
    """
    feedback = self.feedback
    is_drawn = explore and feedback is not None and feedback.temperature
    run = self._run.restricted(where, rerank=rerank and not is_drawn)

    def blocks(
      token_ids: Int32[np.ndarray, "n q"], asked: Sequence[Any]
    ) -> Iterator[dict[str, Any]]:
      ids = [one.request_id for one in asked if isinstance(one, Logged)]
      if feedback is None or not ids:
        result = run.search(token_ids, k)
      else:
        queries = [one.query for one in asked]
        result = self._search_and_log(
          *(run, feedback, token_ids, queries, ids),
          k=k,
          temperature=feedback.temperature if is_drawn else None,
        )
      for number, hits in enumerate(run.hits(result)):
        fields = {"blocks": [hit.json() for hit in hits], **_source(run)}
        yield fields | ({"request_id": ids[number]} if ids else {})

    return _each(run, texts, "query", blocks)

  def _search_and_log(
    self,
    run: TrainedRun,
    feedback: FeedbackConfig,
    token_ids: Int32[np.ndarray, "n q"],
    queries: Sequence[str],
    ids: Sequence[str],
    *,
    k: int,
    temperature: float | None,
  ) -> SearchResult:
    """Searches for candidates, logs them, and returns the blocks to show."""
    result = run.search(token_ids, max(k, feedback.pool_size))
    shown = np.tile(np.arange(min(k, result.rows.shape[1])), (len(ids), 1))
    if temperature is not None:
      shown = drawn_order(
        result.scores, temperature=temperature, k=k, generator=self._generator
      )
    # A text that was edited in memory differs from the corpus.
    is_edited = np.isin(result.rows, [*run.edits])
    hashes = np.where(is_edited, 0, run.corpus.content_hashes[result.rows])
    # A cross-encoder may have ordered the candidates.
    by_retriever = result.retriever_scores
    scores = result.scores if by_retriever is None else by_retriever
    block_ids, source = run.corpus.block_ids[result.rows], _source(run)
    lists = [
      Served(
        query,
        block_ids[number],
        hashes[number],
        scores[number],
        shown[number],
        temperature,
        **source,
      )
      for number, query in enumerate(queries)
    ]
    feedback.log.add_lists(ids, lists)
    in_order = functools.partial(np.take_along_axis, indices=shown, axis=1)
    return SearchResult(
      in_order(result.rows),
      in_order(result.scores),
      None if by_retriever is None else in_order(by_retriever),
    )

  def documents(
    self, texts: Sequence[Any], *, return_scores: bool, **settings: Any
  ) -> Iterator[list[dict[str, Any]]]:
    """Yields the results of `retrieve` like Search-R1's retrieval server.

    A text that cannot be searched for gets no documents.
    """
    for result in self.retrieve(texts, **settings):
      documents = []
      for block in result.get("blocks", ()):
        document = {name: block[name] for name in ("id", "title", "text")}
        document["contents"] = f'"{block["title"]}"\n{block["text"]}'
        scored = {"document": document, "score": block["score"]}
        documents.append(scored if return_scores else document)
      yield documents

  def answer(
    self,
    texts: Sequence[Any],
    where: Where | None = None,
    *,
    rerank: bool = True,
  ) -> Iterator[dict[str, Any]]:
    """Yields answers to questions; docs/service.md has the fields.

    A question that cannot be searched for gets an `error`. For `where` and
    `rerank`, see `retrieve`.
    """
    run = self.run_for(QUESTION).restricted(where, rerank=rerank)
    return _each(
      run,
      texts,
      "question",
      lambda token_ids, good: (
        dataclasses.replace(result, source=_source(run)).json()
        for result in ask(run, good, token_ids=token_ids)
      ),
    )

  def update(self, texts: Mapping[str, str]) -> dict[str, Any]:
    """Changes the texts of blocks for all clients, until the service ends.

    Raises:
      EditError: A text does not fit, or no block has its name.
      RequestError: Too many blocks would be changed in memory.
    """
    with self._changing:
      updates = {**self._updates, **texts}
      if len(updates) > MAX_UPDATES:
        raise RequestError(
          f"{len(updates)} blocks would be changed in memory, and at most "
          f"{MAX_UPDATES} may be: change the corpus with `python -m "
          "realm_jax.update_corpus`, and build a new index"
        )
      # Current requests continue with the run that they started with.
      run, masked_run = self._run, self._masked_run
      run = run.edited(_edits(run, texts))
      if masked_run is not None:
        masked_run = masked_run.edited(_edits(masked_run, texts))
      self._run, self._masked_run = run, masked_run
      self._updates = updates
    return {"updated": len(texts)}

  def replace(self, run: TrainedRun) -> None:
    """Switches to another run, and keeps the updates of blocks.

    Updates of blocks that its corpus no longer has are dropped.
    """
    with self._changing:
      self._run = run.edited(_edits(run, self._updates, missing_ok=True))
      self._loaded_at = time.monotonic()
      self.problem = None

  def explain(
    self, text: str, edits: Mapping[str, str] | None = None
  ) -> dict[str, Any]:
    """Explains the answer to a question or a sentence; `app` has the fields.

    `edits` are texts of blocks by name.

    Raises:
      RealmError: The text has no words, or does not fit the run.
      EditError: An edited text does not fit, or no block has its name.
      RequestError: No run of the page can do this.
    """
    run = self.run_for(kind_of(text))
    texts = _edits(run, edits or {})
    edited = run.edited(texts)
    result = explain(edited, text)
    fields = result.json()
    for block, hit in zip(fields["blocks"], result.hits, strict=True):
      passages = passages_of(edited, result.answer, hit)
      for part, shown in zip(block.get("path", [block]), passages, strict=True):
        part.update(shown)
    without = _without(run, result, texts)
    return {**fields, "without": without, "run": _about(run)}


def _each(
  run: TrainedRun,
  texts: Sequence[Any],
  name: str,
  function: Callable[
    [Int32[np.ndarray, "n q"], Sequence[Any]], Iterable[dict[str, Any]]
  ],
) -> Iterator[dict[str, Any]]:
  """Yields a function's results, each with its text in the field `name`.

  The function takes the tokens of all texts that can be searched for, and the
  texts. Other texts get an `error`.
  """
  sent, refused = texts, dict[int, RealmError]()
  texts = [one.query if isinstance(one, Logged) else one for one in sent]
  for number, text in enumerate(texts):
    try:
      checked(text)
    except RequestError as error:
      refused[number] = error
  token_ids, unknown = run.encode_each(
    ["" if number in refused else text for number, text in enumerate(texts)]
  )
  refused = unknown | refused
  good = [number for number in range(len(texts)) if number not in refused]
  results = iter(function(token_ids[good], [sent[number] for number in good]))
  for number, text in enumerate(texts):
    if number in refused:
      # Other values are left out: they may be infinite, unlike JSON's numbers.
      shown = text if isinstance(text, str) else None
      yield {name: shown, "error": str(refused[number])}
    else:
      yield {name: text, **next(results)}


def _about(run: TrainedRun) -> dict[str, Any]:
  return {
    **run.source,
    "index": run.snapshot.index.kind if run.retrieves else None,
    "num_blocks": run.corpus.num_blocks,
    "can_edit": run.can_edit,
  }


def _source(run: TrainedRun) -> dict[str, Any]:
  """Describes a run's checkpoint and snapshot, without any paths."""
  return {"checkpoint": run.step, "snapshot": run.snapshot_step}


def _edits(
  run: TrainedRun, texts: Mapping[str, str], *, missing_ok: bool = False
) -> dict[int, str]:
  """Returns the texts of blocks by row, without unchanged ones.

  Raises:
    EditError: No block has one of the names, and not `missing_ok`.
  """
  edits = {}
  for name, text in texts.items():
    document, _, ordinal = name.rpartition(":")
    number = int(ordinal) if ordinal.isdecimal() else -1
    known = block_id(run.corpus.name, document, number)
    row = int(run.corpus.rows_of(np.int64(known)))
    if row >= 0 and text.strip() != run.block(row).text.strip():
      edits[row] = text
    if row < 0 and not missing_ok:
      raise EditError(
        f"no block has the id {name!r}; the corpus may have changed: restore "
        "the block, or load the page again"
      )
  return edits


def _without(
  run: TrainedRun, result: Result, texts: Mapping[int, str]
) -> dict[str, Any] | None:
  """Returns the answer without the evidence.

  For a sentence, this is the filling by the null block. For a question, it is
  the answer without the block or path that contributes most to the answer, in
  the run with these texts.
  """
  null = result.hits[0].best
  if result.kind == SENTENCE and null is not None:
    return {
      "left_out": None,
      "answer": null.text,
      "probability": null.probability,
      "same": null.text == result.answer,
    }
  best = max(result.hits, key=lambda hit: hit.share or 0.0)
  parts = best.block.parts
  read = {part.row for hit in result.hits for part in hit.block.parts}
  hidden = {part.row for part in parts}
  if not best.share or read == hidden:
    return None
  other = explain(run.edited(texts, hidden=hidden), result.text)
  return {
    "left_out": " → ".join(part.title or part.id for part in parts),
    "answer": other.answer,
    "probability": other.probability,
    "same": exact_match(other.answer, result.answer, run.corpus.language),
  }
