"""The stages: what each searches for, and what its step is given.

A stage says which components train, how many blocks a query wants, and how
the blocks found become the arrays of its step.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.retrieval import candidates
from realm_jax.text.answer_spans import TokenSpans, find_token_spans
from realm_jax.text.answers import contains_characters
from realm_jax.training import step

ANSWERS_IN_BLOCKS = ("characters", "tokens")


class Models(NamedTuple):
  """The two modules of a run; inverse cloze has no reader."""

  retriever: Retriever
  reader: Reader | None


class Stage(Protocol):
  """What the loop asks of a stage."""

  @property
  def needs_index(self) -> bool:
    """Whether its step reads blocks that an index finds."""
    ...

  @property
  def current_queries(self) -> bool:
    """Whether queries are embedded with today's parameters.

    Otherwise with the tower that the generation was published with.
    """
    ...

  @property
  def parts(self) -> frozenset[str]:
    """What its step reads: some of `queries`, `blocks` and `joint`."""
    ...

  def text_shapes(
    self, batch_size: int, query_length: int, block_length: int
  ) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the texts that `assemble` gives, padded."""
    ...

  def init(
    self, models: Models, lengths: dict[str, int], key: jax.Array
  ) -> Any:
    """Parameters by component, in flax's boxes."""

  def loss(self, models: Models) -> step.Loss:
    """The loss of the stage."""

  def num_searched(self, num_blocks: int) -> int:
    """How many blocks to search for, in a corpus of `num_blocks`."""

  def assemble(
    self,
    batch: Batch,
    found: SearchResult,
    *,
    corpus: Corpus,
    generation: Any,
    block_length: int,
  ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The step's arrays, and metrics that only the host can tell."""


def _tokens(*shape: int) -> jax.Array:
  return jnp.ones(shape, jnp.int32)


def _init_reader(
  models: Models, lengths: dict[str, int], key: jax.Array
) -> Any:
  if models.reader is None:
    raise ValueError("this stage trains a reader; bind train.reader")
  query = _tokens(1, lengths["query"])
  block = _tokens(1, 1, lengths["block"])
  return models.reader.init(key, query, block, _tokens(1, 1))["params"]


def _init_both(models: Models, lengths: dict[str, int], key: jax.Array) -> Any:
  retriever_key, reader_key = jax.random.split(key)
  query = _tokens(1, lengths["query"])
  block = _tokens(1, 1, lengths["block"])
  return {
    "retriever": models.retriever.init(retriever_key, query, block)["params"],
    "reader": _init_reader(models, lengths, reader_key),
  }


def _shapes(
  batch_size: int, num_candidates: int, query_length: int, block_length: int
) -> dict[str, tuple[int, ...]]:
  return {
    "query": (batch_size, query_length),
    "candidates": (batch_size, num_candidates, block_length),
  }


@dataclasses.dataclass(frozen=True)
class InverseCloze:
  """A sentence finds its block among the blocks of the global batch."""

  needs_index = False
  current_queries = True
  parts = frozenset({"queries", "blocks"})

  def text_shapes(self, batch_size, query_length, block_length):
    return {
      "query": (batch_size, query_length),
      "block": (batch_size, block_length),
    }

  def init(self, models, lengths, key):
    query = _tokens(1, lengths["query"])
    block = _tokens(1, lengths["block"])
    return {"retriever": models.retriever.init(key, query, block)["params"]}

  def loss(self, models):
    return step.inverse_cloze(models.retriever)

  def num_searched(self, num_blocks):
    return 0

  def assemble(self, batch, found, *, corpus, generation, block_length):
    names = ("query", "block", "removed")
    return {name: batch.arrays[name] for name in names}, {}


@dataclasses.dataclass(frozen=True)
class Reading:
  """A masked sentence beside its own block: how a reader starts from nothing.

  Where BERT's weights are at hand they are the better start. What is masked
  stands in the block, so a retriever would learn nothing of it (section 3.4),
  and none takes part; nor does the null block.
  """

  needs_index = False
  current_queries = True
  parts = frozenset({"joint"})

  def text_shapes(self, batch_size, query_length, block_length):
    return _shapes(batch_size, 1, query_length, block_length)

  def init(self, models, lengths, key):
    return {"reader": _init_reader(models, lengths, key)}

  def loss(self, models):
    return step.reading(models.reader)

  def num_searched(self, num_blocks):
    return 0

  def assemble(self, batch, found, *, corpus, generation, block_length):
    rows = corpus.rows_of(batch.arrays["source_id"])[:, None]
    return _masked_with_blocks(batch, rows, corpus, block_length), {}


@dataclasses.dataclass(frozen=True)
class Pretraining:
  """A masked sentence, the null block and what the index finds.

  Attributes:
    num_candidates: with the null block.
    form: of the marginal loss, `per_token` or `joint`.
    current_queries: whether queries are embedded for the search with today's
      parameters instead of the generation's own query tower (as released).
  """

  num_candidates: int = 8
  form: str = "per_token"
  current_queries: bool = False
  needs_index = True
  parts = frozenset({"queries", "blocks", "joint"})

  def text_shapes(self, batch_size, query_length, block_length):
    return _shapes(batch_size, self.num_candidates, query_length, block_length)

  def init(self, models, lengths, key):
    return _init_both(models, lengths, key)

  def loss(self, models):
    return step.pretraining(models.retriever, models.reader, form=self.form)

  def num_searched(self, num_blocks):
    # The null block takes one place, and the source, once dropped, another.
    if self.num_candidates > num_blocks:
      raise ValueError(
        f"num_candidates={self.num_candidates} needs {self.num_candidates} "
        f"blocks (the null block replaces the source's), but the corpus has "
        f"{num_blocks}; lower NUM_CANDIDATES"
      )
    return self.num_candidates

  def assemble(self, batch, found, *, corpus, generation, block_length):
    sources = corpus.rows_of(batch.arrays["source_id"])
    rows, _ = candidates.without_source(found.rows, found.scores, sources)
    rows = candidates.with_null(rows)
    arrays = _masked_with_blocks(batch, rows, corpus, block_length)
    recall = _masked_recall(batch.arrays, arrays["candidates"][:, 1:])
    return arrays, {"recall": recall}


def _masked_with_blocks(
  batch: Batch, rows: np.ndarray, corpus: Corpus, block_length: int
) -> dict[str, np.ndarray]:
  """Masked sentences and the blocks of `rows` as their candidates."""
  names = ("query", "mask_positions", "mask_targets", "mask_weights")
  return {
    **{name: batch.arrays[name] for name in names},
    "candidates": corpus.gather(rows, block_length),
  }


def _masked_recall(arrays: dict[str, np.ndarray], blocks: np.ndarray) -> float:
  """Share of queries whose masked words stand, in order, in a candidate."""
  batch, num_blocks, length = blocks.shape
  found = 0
  offsets = np.arange(num_blocks + 1) * length
  for row in range(batch):
    size = int(arrays["mask_weights"][row].sum())
    answer = arrays["mask_targets"][row, :size]
    spans = find_token_spans(
      blocks[row].reshape(-1), offsets, [answer.tolist()]
    )
    found += len(spans.block) > 0
  return found / max(batch, 1)


@dataclasses.dataclass(frozen=True)
class OpenQa:
  """A question, the best blocks of the index, and the spans of the first few.

  The retriever learns from `num_searched_blocks`, against the generation's
  own vectors, and the reader from the best `num_read`. No null block.

  Attributes:
    num_searched_blocks: the retriever's beam (or all, in a smaller corpus).
    num_read: the reader's beam.
    index_scores: for an index without vectors (BM25): the score of a block is
      the index's, times a scale that is learnt.
    initial_scale: of `index_scores`.
    max_answer_width: the widest answer, in tokens, as the reader has it.
    answers_in_blocks: which blocks hold an answer, for the retriever's loss:
      those in whose text its `characters` stand (Google's released code), or
      its `tokens`, in what the reader is given of the block (Hugging Face's).
      The reader learns from tokens in both.
    joint_length: of query and body, as the reader has it; for `tokens`.
  """

  num_searched_blocks: int = 5000
  num_read: int = 5
  index_scores: bool = False
  initial_scale: float = 0.1
  max_answer_width: int = 10
  answers_in_blocks: str = "characters"
  joint_length: int | None = None
  current_queries: bool = True
  needs_index = True

  def __post_init__(self):
    if self.answers_in_blocks not in ANSWERS_IN_BLOCKS:
      raise ValueError(
        f"answers_in_blocks={self.answers_in_blocks!r}; want one of "
        f"{ANSWERS_IN_BLOCKS}"
      )

  def text_shapes(self, batch_size, query_length, block_length):
    return _shapes(batch_size, self.num_read, query_length, block_length)

  @property
  def parts(self):
    towers = () if self.index_scores else ("queries",)
    return frozenset({*towers, "joint"})

  def init(self, models, lengths, key):
    params = _init_both(models, lengths, key)
    if self.index_scores:
      params["retriever"] = {"scale": jnp.float32(self.initial_scale)}
    return params

  def loss(self, models):
    names = ["max_answer_width"]
    if self.answers_in_blocks == "tokens":
      names.append("joint_length")
    for name in names:
      ours, readers = getattr(self, name), getattr(models.reader, name)
      if ours != readers:
        raise ValueError(
          f"Reader.{name}={readers}, but OpenQa.{name}={ours}; bind both to "
          "the same"
        )
    return step.open_qa(models.retriever, models.reader)

  def num_searched(self, num_blocks):
    if self.num_read > num_blocks:
      raise ValueError(
        f"num_read={self.num_read} exceeds the corpus's {num_blocks} blocks; "
        "lower NUM_READ"
      )
    return min(max(self.num_searched_blocks, self.num_read), num_blocks)

  def assemble(self, batch, found, *, corpus, generation, block_length):
    max_width = self.max_answer_width
    num_queries, num_found = found.rows.shape
    read = found.rows[:, : self.num_read]
    has_answer = np.zeros((num_queries, num_found), bool)
    is_answer = np.zeros(
      (num_queries, self.num_read, block_length, max_width), bool
    )
    for query in range(num_queries):
      flat, offsets = corpus.body_tokens_flat(found.rows[query])
      spans = find_token_spans(flat, offsets, batch.answer_tokens[query])
      has_answer[query] = self._has_answer(batch, query, found, spans, corpus)
      fits = (
        (spans.block < self.num_read)
        & (spans.start < block_length)
        & (spans.width <= max_width)
      )
      is_answer[
        query, spans.block[fits], spans.start[fits], spans.width[fits] - 1
      ] = True
    arrays = {
      "query": batch.arrays["query"],
      "candidates": corpus.gather(read, block_length),
      "has_answer": has_answer,
      "is_answer": is_answer,
    }
    if self.index_scores:
      arrays["scores"] = found.scores
    else:
      arrays["vectors"] = generation.vectors(found.rows)
    first_answer = has_answer[:, :5].any(axis=1)
    return arrays, {"recall_at_5": float(first_answer.mean())}

  def _has_answer(
    self,
    batch: Batch,
    query: int,
    found: SearchResult,
    spans: TokenSpans,
    corpus: Corpus,
  ) -> Bool[np.ndarray, " n"]:
    """Which of the blocks found for a query hold an answer of it."""
    rows = found.rows[query]
    if self.answers_in_blocks == "characters":
      # Patterns have no tokens, and stand in no text as they are.
      is_text = bool(batch.answer_tokens[query])
      answers = batch.answers[query] if is_text else []
      bodies = corpus.bodies_utf8(rows) if answers else [b""] * len(rows)
      return np.array([contains_characters(b, answers) for b in bodies], bool)
    assert self.joint_length is not None
    # The joint input is `[CLS] x [SEP] body [SEP]`.
    query_tokens = np.count_nonzero(batch.arrays["query"][query])
    room = self.joint_length - query_tokens - 1
    has_answer = np.zeros(len(rows), bool)
    has_answer[spans.block[spans.start + spans.width <= room]] = True
    return has_answer
