"""Open QA over paths of two blocks, without gold paths.

The reader reads the blocks of a path, one after the other, as one block
(`realm_jax/corpus/paths.py`). Useful paths are learned only from the answers,
through p(y|x) = Σ p(z1, z2|x) p(y|x, z1, z2), while the index is refreshed.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import NULL_ROW
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.models import AnyArray
from realm_jax.models.components import Components
from realm_jax.models.packing import TokenSequences
from realm_jax.models.sequences import PAD_ID, joined_blocks
from realm_jax.objectives.open_qa import marginal_log_likelihood, span_loss
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.settings import NonNegativeFloat, OfRun, PositiveInt
from realm_jax.training.encoder_inputs import (
  Candidates,
  EncoderInputs,
  retriever_inputs,
)
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.open_qa import answer_spans
from realm_jax.training.stages.stage import (
  Encoders,
  ExampleArrays,
  Features,
  Stage,
  StageContext,
)
from realm_jax.training.two_hops import (
  NOT_A_PATH,
  Cells,
  TwoHops,
  distinct_log_p,
  hop_scores,
)


class TwoHopBatch(NamedTuple):
  """Questions with the 1 + n + n · m blocks of both hops.

  Attributes:
    query: Questions.
    hop_queries: Questions, each together with each of its first blocks.
    candidates: The null block, the first blocks, and the second blocks of each
      first block.
    cells: Paths of these blocks.
    has_answer: Whether each path has a block that contains an answer.
    places: Cells of the paths to read.
    read: Paths to read, each joined as one block.
    is_answer: Whether the span at each start with each width is an answer.
  """

  query: Int[AnyArray, "b q"]
  hop_queries: Int[AnyArray, "b n p"]
  candidates: Candidates
  cells: Cells
  has_answer: Bool[AnyArray, "b p"]
  places: Int[AnyArray, "b k"]
  read: Int[AnyArray, "b k l"]
  is_answer: Bool[AnyArray, "b k l w"]


@dataclasses.dataclass(frozen=True)
class TwoHopQa(Stage):
  """Fine-tuning on questions that one block or two blocks together answer.

  All blocks are embedded with the current parameters. As in ORQA, the retriever
  learns from all paths with an answer, and from the reader.

  Attributes:
    paths: The two searches, with their beams.
    num_read: Number of paths that the reader reads, the best ones.
    retriever_weight: Weight of the loss over all paths with an answer. If many
      blocks contain an answer by chance, the reader is a better signal.
    current_queries: Whether queries are embedded for the search with the
      current parameters instead of the snapshot's query tower.
  """

  paths: Annotated[TwoHops, OfRun()] = dataclasses.field(
    default_factory=TwoHops
  )
  num_read: Annotated[PositiveInt, OfRun()] = 8
  retriever_weight: NonNegativeFloat = 1.0
  current_queries: bool = True
  needs_answers = True
  num_searches = 2
  hops = True
  asked = "question"
  evaluation = "gin/runs/eval.gin"

  def __post_init__(self) -> None:
    super().__post_init__()
    first, second = self.paths.first_beam, self.paths.second_beam
    pairs = self.num_read - min(self.num_read // 2, first)
    # The search may find each pair in both orders.
    if pairs > (most := first * second // 2):
      raise RealmError(
        f"NUM_READ={self.num_read} takes {pairs} paths of two blocks, and "
        f"FIRST_BEAM={first} with SECOND_BEAM={second} may find {most}; lower "
        "NUM_READ, or widen a beam"
      )

  @property
  def retrieval(self) -> Retrieval:
    return Retrieval(
      self.paths.num_found,
      setting="FIRST_BEAM or SECOND_BEAM",
      current_queries=self.current_queries,
    )

  @property
  def num_candidates(self) -> int:
    beam = self.paths.first_beam
    return 1 + beam + beam * self.paths.second_beam

  def next_queries(
    self, batch: Batch, found: SearchResult, context: StageContext
  ) -> Int[np.ndarray, "q p"]:
    blocks = context.gather(found.rows[:, : self.paths.first_beam])
    retriever = context.components.hop_retriever
    queries = retriever.hop_queries(batch.array("query"), blocks)
    return np.asarray(queries).reshape(-1, queries.shape[-1])

  def joined_results(
    self, before: SearchResult, found: SearchResult
  ) -> SearchResult:
    """Returns the first blocks, and the second blocks of each first block."""
    first = before.rows[:, : self.paths.first_beam]
    scores = before.scores[:, : self.paths.first_beam]
    rows = found.rows.reshape(*first.shape, -1)
    places = self.paths.second_places(first, rows)
    second = (
      np.take_along_axis(x.reshape(rows.shape), places, axis=-1)
      for x in (rows, found.scores)
    )
    return SearchResult(
      *(
        np.concatenate([one, other.reshape(len(first), -1)], axis=1)
        for one, other in zip((first, scores), second, strict=True)
      )
    )

  def features(
    self, batch: Batch, found: SearchResult | None, context: StageContext
  ) -> Features:
    assert found is not None
    assert context.answers is not None
    size, beam, paths = len(found.rows), self.paths.first_beam, self.paths
    first, second = found.rows[:, :beam], found.rows[:, beam:]
    second = second.reshape(size, beam, -1)
    null = np.full((size, 1), NULL_ROW, found.rows.dtype)
    cells = paths.cells(first, second)
    scores = found.scores[:, beam:].reshape(second.shape)
    places = paths.to_read(found.scores[:, :beam], scores, cells, self.num_read)
    contained = map(context.answers.contained, batch.answers, found.rows)
    has_answer = np.pad(np.stack([*contained]), ((0, 0), (1, 0)))
    # Positions of each path's blocks among the candidates.
    of_cells = _blocks_of_cells(beam, second.shape[-1])
    rows = np.concatenate([null, found.rows], axis=1)
    tokens, query = context.gather(rows), batch.array("query")
    chosen = of_cells[places]
    examples = np.arange(size)[:, None, None]
    reader = context.components.span_reader
    retriever = context.components.hop_retriever
    features = TwoHopBatch(
      query,
      np.asarray(retriever.hop_queries(query, tokens[:, 1 : 1 + beam])),
      Candidates.of(tokens),
      cells,
      np.any(has_answer[:, of_cells], axis=-1),
      places,
      joined_blocks(tokens[examples, chosen], separator_id=reader.separator_id),
      _answers_of_paths(batch, rows[examples, chosen], context),
    )
    metrics = {
      "recall_first": has_answer[:, : 1 + beam].any(axis=1).mean(),
      "recall_searched": has_answer.any(axis=1).mean(),
    }
    return features, {name: float(value) for name, value in metrics.items()}

  def dummy_batch(self, shapes: ExampleArrays) -> TwoHopBatch:
    components, beam = shapes.components, self.paths.first_beam
    size, count = shapes.candidates.shape[:2]
    firsts = shapes.candidates[:, 1 : 1 + beam]
    reader, retriever = components.span_reader, components.hop_retriever
    places = np.arange(1, self.num_read + 1, dtype=np.int32)
    chosen = _blocks_of_cells(beam, self.paths.second_beam)[places]
    read = joined_blocks(
      shapes.candidates[:, chosen], separator_id=reader.separator_id
    )
    none = np.zeros((size, count - 1), bool)
    return TwoHopBatch(
      shapes.query,
      np.asarray(retriever.hop_queries(shapes.query, firsts)),
      Candidates.of(shapes.candidates),
      Cells(~none, np.full(none.shape, -1, np.int32)),
      none,
      np.tile(places, (size, 1)),
      read,
      np.zeros((*read.shape, reader.max_answer_width), bool),
    )

  def inputs(self, components: Components, batch: TwoHopBatch) -> EncoderInputs:
    retriever = components.retriever
    hop_queries = batch.hop_queries.reshape(-1, batch.hop_queries.shape[-1])
    inputs = retriever_inputs(retriever, batch.query, batch.candidates)
    return inputs._replace(
      reader=components.token_reader.join(batch.query, batch.read),
      hop_queries=TokenSequences(retriever.query_input(hop_queries)),
    )

  def loss(
    self, encoders: Encoders, batch: TwoHopBatch, inputs: EncoderInputs
  ) -> WeightedLoss:
    """Returns −log p of the paths with an answer, plus −log p of the answers.

    As in ORQA (section 5), the score of a span is its logit plus the score of
    its path, here log p(z1, z2|x), normalized over all paths that are read.
    """
    size, dim = len(batch.query), encoders.components.retriever.vector_size
    queries, candidates = encoders.candidate_vectors(inputs)
    hop_queries = encoders.apply(
      "retriever", inputs.hop_queries, method="embed_hop_queries"
    )
    first, second = hop_scores(
      queries,
      hop_queries.reshape(size, -1, dim),
      candidates.reshape(size, -1, dim),
      score_scale=encoders.components.retriever.score_scale,
    )
    log_p = jnp.asarray(self.paths.log_p(first, second, batch.cells))
    likelihood, has_correct = marginal_log_likelihood(
      log_p, jnp.asarray(batch.has_answer), jnp.asarray(batch.cells.is_path)
    )
    retriever_loss = Average.of(-likelihood)
    of_read = distinct_log_p(log_p, jnp.asarray(batch.places), batch.cells)
    spans = encoders.apply(
      "reader",
      inputs.reader,
      num_starts=batch.read.shape[-1],
      method="spans",
    )
    is_read = of_read > NOT_A_PATH / 2
    reader = span_loss(
      spans.logits + of_read[..., None, None],
      spans.is_span & is_read[..., None, None],
      batch.is_answer,
    )
    alone = log_p.reshape(second.shape)[..., 0]
    total = self.retriever_weight * retriever_loss.total + reader.loss.total
    return WeightedLoss(
      reader.loss._replace(total=total),
      {
        "retriever_loss": retriever_loss,
        "recall_paths": Average.of(has_correct),
        "null_second": Average.of(jnp.exp(alone).sum(axis=-1)),
        **reader.metrics,
      },
    )


def _blocks_of_cells(first: int, second: int) -> Int[np.ndarray, "c 2"]:
  """Returns the positions of each path's blocks among the candidates."""
  starts, ends = np.mgrid[0:first, 0 : second + 1].reshape(2, -1)
  following = 1 + first + starts * second + ends - 1
  return np.stack([1 + starts, np.where(ends == 0, 0, following)], axis=-1)


def _answers_of_paths(
  batch: Batch, paths: Int[np.ndarray, "b k h"], context: StageContext
) -> Bool[np.ndarray, "b k t w"]:
  """Returns whether the span at each start with each width is an answer.

  In the body of a path, the title of each further block precedes its body.
  """
  size, count, hops = paths.shape
  rows = paths.reshape(size, -1)
  of_blocks = answer_spans(batch.answers, rows, context)
  tokens = context.gather(rows)
  separator = context.components.span_reader.separator_id
  titles = (tokens == separator).argmax(axis=-1) - 1
  bodies = (tokens != PAD_ID).sum(axis=-1) - titles - NUM_SPECIAL_TOKENS
  titles, bodies = (x.reshape(paths.shape) for x in (titles, bodies))
  # Start of each block's body in the body of the path.
  before = np.cumsum(bodies + titles, axis=-1) - bodies - titles[..., :1]
  length = of_blocks.shape[2]
  of_paths = np.zeros((size, count, hops * length, of_blocks.shape[-1]), bool)
  of_blocks = of_blocks.reshape(size, count, hops, length, -1)
  for place in np.argwhere(of_blocks):
    example, path, hop, start, width = place.tolist()
    of_paths[example, path, before[example, path, hop] + start, width] = True
  return of_paths
