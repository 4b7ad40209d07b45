"""Open QA over a graph of blocks; only the reader is trained."""

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from realm_jax.corpus.graphs import edge_kinds, expanded
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.graph_reader import GraphInputs, GraphReader
from realm_jax.objectives.open_qa import span_loss
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.settings import OfRun, PositiveInt
from realm_jax.training.encoder_inputs import EncoderInputs
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.open_qa import answer_spans
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)


@dataclasses.dataclass(frozen=True)
class LinkedBlocks:
  """Searches for seeds, and adds the blocks that they link to.

  Attributes:
    num_seeds: Number of retrieved blocks.
  """

  num_seeds: PositiveInt = 20

  def search(
    self, run: Any, token_ids: Int32[np.ndarray, "b q"], k: int
  ) -> SearchResult:
    """Returns the graph of each query, with k blocks (see `PathSearch`).

    Seeds keep their scores; the others have lower scores, in order.
    """
    seeds = run.search_blocks(token_ids, min(self.num_seeds, k))
    rows = expanded(run.corpus, seeds.rows, k, allowed=run.searchable)
    count = seeds.rows.shape[1]
    following = np.arange(1, k - count + 1, dtype=np.float32)
    others = seeds.scores[:, -1:] - following
    scores = np.concatenate([seeds.scores, others], axis=1)
    return SearchResult(rows, scores)


class GraphBatch(NamedTuple):
  """Questions with the blocks of a graph.

  Attributes:
    query: Questions.
    blocks: Blocks of the graph, padded.
    edges: Kind of the edge between two blocks (`graphs.edge_kinds`).
    is_answer: Whether the span at a start and of a width is an answer.
  """

  query: Int[AnyArray, "b q"]
  blocks: Int[AnyArray, "b k l"]
  edges: Int[AnyArray, "b k k"]
  is_answer: Bool[AnyArray, "b k l w"]


@dataclasses.dataclass(frozen=True)
class GraphQa(Stage):
  """Learns to point at answers in connected blocks (Min et al. 2019b).

  Attributes:
    paths: Search for the blocks of a graph.
    num_read: Number of blocks in a graph.
  """

  paths: Annotated[LinkedBlocks, OfRun()] = dataclasses.field(
    default_factory=LinkedBlocks
  )
  num_read: Annotated[PositiveInt, OfRun()] = 40
  needs_answers = True
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  @property
  def frozen(self) -> tuple[str, ...]:
    return ("retriever",)

  @property
  def retrieval(self) -> Retrieval:
    seeds = min(self.paths.num_seeds, self.num_read)
    return Retrieval(seeds, setting="NUM_SEEDS", current_queries=False)

  @property
  def num_candidates(self) -> int:
    return self.num_read

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    rows = expanded(context.corpus, found.rows, self.num_read)
    is_answer = answer_spans(batch.answers, rows, context)
    graphs = GraphBatch(
      batch.array("query"),
      context.gather(rows),
      edge_kinds(context.corpus, rows),
      is_answer,
    )
    has_answer = np.any(is_answer, axis=-1).any(axis=-1)
    of_seeds = has_answer[:, : found.rows.shape[1]]
    return graphs, {
      "recall_seeds": float(of_seeds.any(axis=1).mean()),
      "recall_graph": float(has_answer.any(axis=1).mean()),
    }

  def dummy_batch(self, shapes: ExampleArrays) -> GraphBatch:
    size, count, length = shapes.candidates.shape
    width = shapes.components.span_reader.max_answer_width
    return GraphBatch(
      shapes.query,
      shapes.candidates,
      np.zeros((size, count, count), np.int32),
      np.zeros((size, count, length, width), bool),
    )

  def inputs(self, components: Components, batch: GraphBatch) -> EncoderInputs:
    reader = components.reader
    if not isinstance(reader, GraphReader):
      raise RealmError(
        "this stage trains a reader of connected blocks, and not a "
        f"{type(reader).__name__}; bind READER as in gin/runs/graph_qa.gin"
      )
    joint = reader.join(batch.query, batch.blocks)
    return EncoderInputs(reader=GraphInputs(joint, batch.edges))

  def loss(
    self, encoders: Encoders, batch: GraphBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns −log Σ p(span|x) over the spans in the graph that are answers."""
    spans = encoders.apply(
      "reader",
      inputs.reader,
      num_starts=batch.blocks.shape[-1],
      method="graph_spans",
    )
    return span_loss(spans.logits, spans.is_span, batch.is_answer)
