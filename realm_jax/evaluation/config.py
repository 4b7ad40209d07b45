"""Settings of a trained run."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from etils import epath
from jaxtyping import Int32

from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.config import BlockLength, QueryLength
from realm_jax.models.components import Component, Reader, Retriever
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid


class PathSearch(Protocol):
  """Finds paths of blocks instead of single ones."""

  def search(
    self, run: Any, token_ids: Int32[np.ndarray, "n q"], k: int
  ) -> SearchResult:
    """Returns the best k paths of each query, with their `paths`.

    Args:
      run: The `TrainedRun`, whose `search_blocks` finds single blocks.
      token_ids: Queries, `[CLS] x [SEP]`, padded with 0.
      k: Number of paths.
    """
    ...


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """Settings for loading a trained run, and for asking it.

  Attributes:
    model_dir: MODEL_DIR of a run, or one of its checkpoints.
    corpus_dir: Corpus directory, as `build_corpus` wrote it.
    retriever: Retriever of the run.
    reader: Reader of the run; None to load only the retriever.
    components: Further components of the run, by name.
    snapshot: Snapshot to search, or a folder whose newest snapshot is searched.
      None takes the snapshot that the checkpoint was trained with. Without a
      reader, or with one that writes, the snapshot that was built from the
      checkpoint comes first.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the best one of `realm_jax.evaluate --follow`.
    query_length: Maximum tokens of a query, including [CLS] and [SEP].
    block_length: Maximum tokens of a block; None takes the corpus's.
    index_scores: Whether the run was trained on the index's own scores (BM25).
    candidates: Blocks to read: "index" for retrieved blocks; "none" for a
      reader that answers from its parameters alone; "random" for a control with
      random blocks; or "gold" for an upper bound, which first reads retrieved
      blocks that contain an answer, and needs questions with known answers.
    num_searched: Number of blocks retrieved for a question, over which the
      retriever's probabilities are normalized. A smaller corpus is searched
      whole.
    rerank_depth: Number of best blocks that the run's cross-encoder, if it has
      one, reorders; its scores replace those of the search. 0 disables it.
    paths: Search for paths of blocks, each of which the reader reads like one
      block; None searches for single blocks.
    num_read: Number of best blocks that the reader reads.
    num_spans: Number of best spans that are grouped into answers.
    rank_answers_by: "probability", which sums over all blocks and spans with
      the answer, as in the paper (equation 1), or "best_span", as in Google's
      released code.
    rouge_l: Whether to compute ROUGE-L, for tasks with long answers (the extra
      `rouge`).
    num_candidates: Number of candidates of a masked sentence, including the
      null block.
    max_masks: Number of masks that the run was trained to score together.
    num_fillings: Number of best fillings or answers that are explained.
  """

  model_dir: epath.PathLike
  corpus_dir: epath.PathLike
  retriever: Retriever
  reader: Reader | None = None
  components: Mapping[str, Component] = dataclasses.field(default_factory=dict)
  snapshot: epath.PathLike | None = None
  checkpoint_step: NonNegativeInt | Literal["best"] | None = None
  query_length: QueryLength = 64
  block_length: BlockLength | None = None
  index_scores: bool = False
  candidates: Literal["index", "none", "random", "gold"] = "index"
  num_searched: PositiveInt = 20
  rerank_depth: NonNegativeInt = 100
  paths: "PathSearch | None" = None
  num_read: PositiveInt = 5
  num_spans: PositiveInt = 50
  rank_answers_by: Literal["best_span", "probability"] = "probability"
  rouge_l: bool = False
  num_candidates: PositiveInt = 8
  max_masks: PositiveInt = 10
  num_fillings: PositiveInt = 5

  def __post_init__(self) -> None:
    require_valid(self)
