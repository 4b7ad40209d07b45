"""Stages for questions with paths: a path retriever, and a reader of paths.

Both follow Asai et al. 2020 (arXiv 1911.10470), sections 3.1.2 and 3.2.
"""

import dataclasses
import itertools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.answers.spans import find_token_spans
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch, QuestionAnswers
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.path_reader import PathReader
from realm_jax.models.path_retriever import PATH_RETRIEVER
from realm_jax.models.sequences import joined_blocks
from realm_jax.objectives.open_qa import span_loss
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import Fraction, NonNegativeInt, OfRun, PositiveInt
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.path_search import BeamOverLinks, neighbours
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


@dataclasses.dataclass(frozen=True)
class _OfPaths(Stage):
  """A stage whose questions have gold paths; the search finds negatives.

  Attributes:
    paths: Search for paths, which also determines their length.
    num_negatives: Number of retrieved passages that are used.
    num_spare: Number of additional passages to search for, to replace those on
      the path or with an answer.
  """

  paths: Annotated[BeamOverLinks, OfRun()] = dataclasses.field(
    default_factory=BeamOverLinks
  )
  num_negatives: PositiveInt = 40
  num_spare: NonNegativeInt = 8

  @property
  def max_hops(self) -> int:
    return self.paths.max_hops

  @property
  def frozen(self) -> tuple[str, ...]:
    return self.components[:-1]

  @property
  def retrieval(self) -> Retrieval:
    return Retrieval(
      self.num_negatives + self.num_spare,
      setting="NUM_NEGATIVES",
      num_required=1,
      current_queries=False,
    )

  def gold_paths(self, batch: Batch, corpus: Corpus) -> list[list[int]]:
    """Returns the rows of each question's path; empty if a document is missing.

    The last document is represented by its first block that contains an answer,
    and others by their first block that links to the next document of the path;
    if there is no such block, by the first.

    Raises:
      RealmError: No question has a path, or one is longer than `max_hops`.
    """
    if "gold" not in batch.host:
      raise RealmError(
        "no question has a path; give each the documents that lead to its "
        "answer, as `gold_titles` or `gold_ids`"
      )
    search, paths = AnswersInBlocks(corpus), list[list[int]]()
    for ids, answers in zip(batch.host["gold"], batch.answers, strict=True):
      documents = [corpus.document_rows(one.decode()) for one in ids if one]
      if len(documents) > self.max_hops:
        raise RealmError(
          f"a question has a path of {len(documents)} documents, and a path "
          f"has {self.max_hops} at most; raise MAX_HOPS"
        )
      path = list[int]()
      for rows in documents[::-1] if all(map(len, documents)) else ():
        is_on_it = search.contained(answers, rows)
        if path:
          leads = neighbours(corpus, rows.tolist(), within_documents=False)
          is_on_it = np.array([path[0] in own for own in leads])
        path = [int(rows[is_on_it.argmax()]), *path]
      paths.append(path)
    return paths


class PathBatch(NamedTuple):
  """Questions, each with the passages of its path and with negatives.

  Attributes:
    blocks: Passages of the path, padded to the longest path, then negatives.
    is_next: Whether a passage, or the end in the last column, is the right
      choice in a step.
    counts: Whether the passage has a term in the loss of the step.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b n l"]
  is_next: Bool[AnyArray, "b t m"]
  counts: Bool[AnyArray, "b t m"]


@dataclasses.dataclass(frozen=True)
class PathRetrieval(_OfPaths):
  """Learns to score, in each step, the next passage of the path above others.

  The loss is the binary cross-entropy of P(i | h_t).

  Attributes:
    num_linked: Number of passages that the path or retrieved passages link to.
    prefix_rate: Share of the questions whose path is extended at the front by
      the best retrieved passage that links to it, if any, so that paths may
      also start there.
  """

  num_linked: NonNegativeInt = 10
  prefix_rate: Fraction = 0.5
  components = ("retriever", PATH_RETRIEVER)
  evaluation = "gin/runs/eval_retrieval.gin"

  @property
  def num_candidates(self) -> int:
    return self.max_hops + self.num_negatives + self.num_linked

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    corpus, hops = context.corpus, self.max_hops
    if self.num_linked and not (
      corpus.has_links or self.paths.within_documents
    ):
      raise RealmError(
        f"{corpus.source} has no links, and NUM_LINKED={self.num_linked}; "
        "build it with links (--links=mentions), or set NUM_LINKED = 0"
      )
    rows = np.full((len(found.rows), self.num_candidates), NULL_ROW, np.int32)
    is_next, counts = self._nothing_learned(len(rows))
    for place, gold in enumerate(self.gold_paths(batch, corpus)):
      if not gold:
        continue
      path, retrieved = gold, found.rows[place].tolist()
      others, before = self._others(gold, retrieved, corpus)
      rng = np.random.default_rng(abs(int(batch.positions[place])))
      if before and rng.random() < self.prefix_rate:
        path = [before[0], *gold]
        others.remove(before[0])
      end, limit = len(path), hops + len(others)
      rows[place, :end], rows[place, hops:limit] = path, others
      step = np.arange(end)
      is_next[place, step, step] = is_next[place, end, -1] = True
      # The path's other passages are neither right nor wrong in a step.
      counts[place, : end + 1, hops:limit] = counts[place, : end + 1, -1] = True
      counts[place] |= is_next[place]
      if path is not gold:
        counts[place, 1:end, 0] = True
      elif before:
        counts[place, 0, hops + others.index(before[0])] = False
    query, blocks = batch.array("query"), context.gather(rows)
    return PathBatch(query, blocks, is_next, counts), {}

  def _others(
    self, path: list[int], found: list[int], corpus: Corpus
  ) -> tuple[list[int], list[int]]:
    """Returns the other passages, and the ones that may come before it."""
    found = [row for row in found if row not in path][: self.num_negatives]
    leads = neighbours(
      corpus, [*path, *found], within_documents=self.paths.within_documents
    )
    linked = dict.fromkeys(itertools.chain(*(own.tolist() for own in leads)))
    new = [row for row in linked if row not in {*path, *found}]
    before = list[int]()
    if len(path) < self.max_hops:
      of_found = zip(found, leads[len(path) :], strict=True)
      before = [row for row, own in of_found if path[0] in own]
    return [*found, *new[: self.num_linked]], before

  def _nothing_learned(
    self, size: int
  ) -> tuple[Bool[np.ndarray, "b t m"], Bool[np.ndarray, "b t m"]]:
    shape = (size, self.max_hops + 1, self.num_candidates + 1)
    return np.zeros(shape, bool), np.zeros(shape, bool)

  def dummy_batch(self, shapes: ExampleArrays) -> PathBatch:
    learned = self._nothing_learned(len(shapes.query))
    return PathBatch(shapes.query, shapes.candidates, *learned)

  def inputs(self, components: Components, batch: PathBatch) -> EncoderInputs:
    read = components[PATH_RETRIEVER].join(batch.query, batch.blocks)
    return EncoderInputs(reader=read)

  def loss(
    self, encoders: Encoders, batch: PathBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns the mean over all that counts, which is nothing without a path.

    The metric `path_accuracy` is the share of paths whose every passage, and
    whose end, scores best in its step.
    """
    logits = encoders.apply(
      PATH_RETRIEVER,
      inputs.reader,
      num_passages=batch.blocks.shape[1],
      num_hops=self.max_hops,
      method="path_logits",
    )
    is_next, counts = jnp.asarray(batch.is_next), jnp.asarray(batch.counts)
    best = jnp.argmax(jnp.where(counts, logits, -jnp.inf), axis=-1)
    is_best = jnp.take_along_axis(is_next, best[..., None], axis=-1)[..., 0]
    is_right = (is_best | ~counts.any(axis=-1)).all(axis=-1)
    accuracy = Average.of(is_right, counts.any(axis=(1, 2)))
    losses = Average.of(_cross_entropy(logits, is_next), counts)
    return WeightedLoss(losses, {"path_accuracy": accuracy})


class PathReadingBatch(NamedTuple):
  """Questions with paths, each joined as one block.

  Attributes:
    paths: The question's path, then distractors; null blocks fill it up.
    is_answer: Whether the span of a start and a width is an answer in the
      question's path.
  """

  query: Int[AnyArray, "b q"]
  paths: Int[AnyArray, "b k l"]
  is_answer: Bool[AnyArray, "b 1 l w"]


@dataclasses.dataclass(frozen=True)
class PathReading(_OfPaths):
  """The reader learns the answer's spans, and which paths have the answer.

  A distractor is the question's path with another passage, without an answer,
  in place of the last one that has an answer.
  """

  num_negatives: PositiveInt = 3
  components = ("retriever", PATH_RETRIEVER, "reader")
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  @property
  def num_candidates(self) -> int:
    return (1 + self.num_negatives) * self.max_hops

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    reader, search = (
      _reader(context.components),
      AnswersInBlocks(context.corpus),
    )
    shape = len(found.rows), 1 + self.num_negatives, self.max_hops
    rows = np.full(shape, NULL_ROW, np.int32)
    for place, path in enumerate(self.gold_paths(batch, context.corpus)):
      answers, retrieved = batch.answers[place], found.rows[place]
      has_answer = search.contained(answers, np.array(path, np.int32))
      if not has_answer.any():
        continue
      is_other = ~search.contained(answers, retrieved) & ~np.isin(
        retrieved, path
      )
      others = retrieved[is_other][: self.num_negatives]
      rows[place, : 1 + len(others), : len(path)] = path
      replaced = np.flatnonzero(has_answer)[-1]
      rows[place, 1 : 1 + len(others), replaced] = others
    flat = rows.reshape(len(rows), -1)
    paths = self._joined(context.gather(flat), reader)
    spans = [
      _answers(path, answers, reader)
      for path, answers in zip(paths[:, 0], batch.answers, strict=True)
    ]
    query = batch.array("query")
    return PathReadingBatch(query, paths, np.stack(spans)[:, None]), {}

  def _joined(
    self, blocks: Int[np.ndarray, "b n l"], reader: PathReader
  ) -> Int[np.ndarray, "b k p"]:
    """Returns the blocks of each path as one."""
    of_paths = blocks.reshape(len(blocks), -1, self.max_hops, blocks.shape[-1])
    joined = joined_blocks(of_paths, separator_id=reader.separator_id)
    return np.asarray(joined)

  def dummy_batch(self, shapes: ExampleArrays) -> PathReadingBatch:
    reader = _reader(shapes.components)
    paths = self._joined(shapes.candidates, reader)
    spans = (len(paths), 1, paths.shape[-1], reader.max_answer_width)
    return PathReadingBatch(shapes.query, paths, np.zeros(spans, bool))

  def inputs(
    self, components: Components, batch: PathReadingBatch
  ) -> EncoderInputs:
    read = _reader(components).join(batch.query, batch.paths)
    return EncoderInputs(reader=read)

  def loss(
    self, encoders: Encoders, batch: PathReadingBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns −log p(spans | path), plus the binary cross-entropy of paths."""
    logits, spans = encoders.apply(
      "reader",
      inputs.reader,
      num_starts=batch.paths.shape[-1],
      method="paths_and_spans",
    )
    # Only the question's own path has spans that are right.
    read = span_loss(
      spans.logits[:, :1], spans.is_span[:, :1], jnp.asarray(batch.is_answer)
    )
    is_path = spans.is_span.any(axis=(2, 3))
    is_first = jnp.broadcast_to(jnp.arange(logits.shape[1]) == 0, logits.shape)
    losses = _cross_entropy(logits, is_first)
    of_paths = Average.of(jnp.sum(losses, axis=1, where=is_path))
    best = jnp.argmax(jnp.where(is_path, logits, -jnp.inf), axis=1)
    accuracy = Average.of(best == 0, is_path[:, 0])
    return WeightedLoss(
      read.loss._replace(total=read.loss.total + of_paths.total),
      {**read.metrics, "path_loss": of_paths, "path_accuracy": accuracy},
    )


def _cross_entropy(
  logits: Float[Array, "*s"], is_right: Bool[Array, "*s"]
) -> Float[Array, "*s"]:
  return jax.nn.softplus(jnp.where(is_right, -logits, logits))


def _reader(components: Components) -> PathReader:
  """Returns the reader; raises a `RealmError` if it does not score paths."""
  if isinstance(reader := components.reader, PathReader):
    return reader
  raise RealmError(
    f"a {type(reader).__name__} does not score paths; READER has to be a "
    "PathReader, as in gin/runs/path_reading.gin"
  )


def _answers(
  path: Int[np.ndarray, " l"], answers: QuestionAnswers, reader: PathReader
) -> Bool[np.ndarray, "l w"]:
  """Returns which spans of the body of a joined path are answers."""
  if answers.kind != "string":
    raise RealmError("a reader of paths learns from answers that are strings")
  is_answer = np.zeros((len(path), reader.max_answer_width), bool)
  first = 1 + int(np.argmax(path == reader.separator_id))
  body = path[first : max(first, np.count_nonzero(path) - 1)]
  spans = find_token_spans(body, np.array([0, len(body)]), answers.tokens)
  fits = spans.width <= reader.max_answer_width
  is_answer[spans.start[fits], spans.width[fits] - 1] = True
  return is_answer
