"""A trained run: one checkpoint, its corpus, and the snapshot it searches.

Evaluations, questions, explanations, the service and notebooks all use a
trained model through `TrainedRun`. `search` finds blocks and scores them as in
training, and `gather` returns their tokens. `edited` returns the same run with
other texts in some blocks, in memory.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from jaxtyping import Bool, Float32, Int, Int32
from scipy.special import softmax

from realm_jax.checkpoints.store import (
  FOLDER,
  READER_VOCABULARY,
  CheckpointError,
  locate,
  recorded_snapshots,
)
from realm_jax.configuration.kept import Kept
from realm_jax.corpus.filters import Where, allowed_rows
from realm_jax.corpus.paths import joined_block
from realm_jax.corpus.store import (
  NULL_BLOCK,
  NULL_ROW,
  Block,
  Corpus,
  require_block_length,
)
from realm_jax.errors import RealmError
from realm_jax.evaluation import search as searches
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.encoding import (
  EditError,
  block_tokens,
  edited_block,
  encode_queries,
)
from realm_jax.evaluation.result import Hit
from realm_jax.evaluation.snapshot_choice import load_chosen_snapshot
from realm_jax.indexes.protocol import IndexConfig, SearchResult, as_config
from realm_jax.models.components import (
  Components,
  Reader,
  TextReader,
  embed_blocks,
  embed_hop_queries,
  embed_queries,
)
from realm_jax.models.cross_encoder import RERANKER
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import joined_blocks
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.settings import Asked
from realm_jax.snapshots.loading import Snapshot
from realm_jax.snapshots.manifest import json_checksum
from realm_jax.storage.access import require_readable
from realm_jax.storage.paths import sizes_below
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.stage import StageContext

AnyRun = TypeVar("AnyRun", bound="TrainedRun")
# Kinds of text that a run can be asked: a sentence with [MASK], or a question.
SENTENCE, QUESTION = get_args(Asked)
ABILITIES: Mapping[Asked, str] = {
  SENTENCE: "fill in [MASK], as a run of pre-training can",
  QUESTION: "answer questions, as a run of open QA can",
}
MAX_BATCH = 16
# Lengths of pairs are padded to multiples of this, to compile few programs.
_LENGTH_STEP = 64


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedRun:
  """A checkpoint's parameters on this process's devices, with its snapshot.

  Attributes:
    asked: Kind of text that the stage learned to answer; None for both.
    step: Step of the checkpoint.
    components: Modules by name, with the corpus's vocabulary.
    params: Parameters by component, replicated over `mesh`.
    mesh: Mesh of this process's devices.
    newest_corpus: Newest version of the corpus. The snapshot may be for an
      earlier one (see `corpus`).
    open_snapshot: Function that returns the snapshot, which is loaded once.
    max_batch: Largest number of rows of a batch.
    edits: Edited blocks, by row.
    edited_vectors: Vectors of the edited blocks, as a snapshot would store
      them.
    hidden: Rows that searches leave out.
    allowed: Whether a search may return each row; None allows all.
  """

  config: RunConfig
  model_dir: epath.Path
  asked: Asked | None
  step: int
  components: Components
  params: Params
  mesh: Mesh
  newest_corpus: Corpus
  open_snapshot: Callable[[], Snapshot]
  max_batch: int = MAX_BATCH
  edits: Mapping[int, Block] = dataclasses.field(default_factory=dict)
  edited_vectors: Mapping[int, np.ndarray] = dataclasses.field(
    default_factory=dict
  )
  hidden: frozenset[int] = frozenset()
  allowed: Bool[np.ndarray, " N"] | None = None

  @classmethod
  def load(
    cls: type[AnyRun],
    config: RunConfig,
    *,
    index: IndexConfig | str | None = None,
    max_batch: int = MAX_BATCH,
  ) -> AnyRun:
    """Restores the parameters of a checkpoint, including a reader's, if any.

    The snapshot is verified and loaded on first use (see `RunConfig.snapshot`).
    With an `index`, such an index is built over the snapshot's blocks, to be
    searched instead of its own.

    Raises:
      CheckpointError: The checkpoint is missing, lacks a component, or belongs
        to another model or vocabulary.
      CorpusError: There is no corpus, or block_length does not fit its blocks.
      StoreAccessError: A bucket cannot be read.
    """
    require_readable(config.model_dir, config.corpus_dir, config.snapshot)
    path = epath.Path(config.model_dir)
    if config.checkpoint_step is not None:
      path = path / FOLDER / str(config.checkpoint_step)
    store, step = locate(path)
    with contextlib.closing(store):
      present = store.components(step)
      corpus = Corpus.open(config.corpus_dir)
      length = config.block_length or corpus.block_length
      require_block_length(length, corpus)
      config = dataclasses.replace(config, block_length=length)
      store.require_vocabulary(step, corpus.vocab_sha256)
      named = {"retriever": config.retriever, "reader": config.reader}
      components = Components({**named, **config.components}).only(present)
      components = components.for_vocabulary(
        vocab_size=corpus.vocab_size,
        separator_id=corpus.vocabulary.sep_id,
        views=corpus.view_sizes,
      )
      if view := components.reader_view:
        digest = corpus.view(view).digest
        store.require_vocabulary(step, digest, name=READER_VOCABULARY)
      mesh = make_mesh(devices=jax.local_devices())
      # Shapes of the components to restore.
      abstract = components.abstract_parameters(
        query_length=config.query_length, block_length=length
      )
      if config.index_scores:
        abstract["retriever"] = {"scale": jax.ShapeDtypeStruct((), "f4")}
      like = sharding.abstract_replicated(abstract, mesh)
      params = store.restore(step, items=tuple(like), like=like)
      used = recorded_snapshots(store.loop_item(step))[:1]
    if index is None and config.candidates == "random":
      index = "random"
    model_dir, kept = store.directory.parent, Kept.find(path)
    snapshots = used or [step]
    # With a reader that writes, or for paths, the block tower may be trained.
    is_own = "reader" not in components or config.paths is not None
    if is_own or isinstance(components.reader, TextReader):
      snapshots = [step, *used]
    open_snapshot = functools.partial(
      load_chosen_snapshot,
      config,
      model_dir,
      snapshots,
      corpus=corpus,
      mesh=mesh,
      index=None if index is None else as_config(index),
    )
    return cls(
      config,
      model_dir,
      None if kept is None else kept.asked,
      step,
      components,
      params,
      mesh,
      corpus,
      functools.cache(open_snapshot),
      max_batch,
    )

  def __repr__(self) -> str:
    return (
      f"<{type(self).__name__} {str(self.model_dir)!r}, checkpoint {self.step}>"
    )

  @property
  def kinds(self) -> set[Asked]:
    """Kinds of text that the run can be asked.

    A checkpoint has the parameters of both heads of its reader. But open QA
    trains only the span head, and pre-training only the masked-LM head, while
    the encoder below both changes. An import may be able to answer both kinds.
    A reader that writes fills in no masks, and a retriever alone answers
    nothing.
    """
    if "reader" not in self.components:
      return set()
    scores_tokens = hasattr(self.components.reader, "token_logits")
    if self.config.index_scores or not scores_tokens:
      return {QUESTION}
    return {SENTENCE, QUESTION} if self.asked is None else {self.asked}

  def require_kind(self, kind: Asked) -> None:
    """Raises a `CheckpointError` if the run cannot be asked this kind."""
    self.require_reader()
    if kind not in self.kinds:
      raise CheckpointError(
        f"the reader of {self!r} has not learnt to {ABILITIES[kind]}; write "
        "[MASK] in a sentence that is to be filled in, and in no question"
      )

  def require_reader(self) -> Reader:
    """Returns the reader, or raises a `CheckpointError` if there is none."""
    if "reader" not in self.components:
      raise CheckpointError(
        f"checkpoint {self.step} of {self.model_dir} has no reader: it can "
        "retrieve and embed; evaluate its retriever with "
        "gin/runs/eval_retrieval.gin, or give a run of open QA"
      )
    return self.components.reader

  @property
  def checkpoint_checksum(self) -> str:
    """Checksum of the names (which are random) and sizes of the files."""
    return json_checksum(sizes_below(self.model_dir / FOLDER / str(self.step)))

  @property
  def vocabulary(self) -> BertVocabulary:
    """Vocabulary of the corpus, and thus of the models."""
    return self.newest_corpus.vocabulary

  @property
  def snapshot(self) -> Snapshot:
    """Snapshot that is searched.

    Raises:
      SnapshotError: The snapshot is missing, damaged, or for another corpus.
      SearchError: The index does not fit INDEX_SCORES.
    """
    return self.open_snapshot()

  @property
  def retrieves(self) -> bool:
    """Whether the run searches a snapshot before its reader answers."""
    return self.config.candidates != "none"

  @property
  def snapshot_step(self) -> int | None:
    """Step of the snapshot; None for a run that retrieves nothing."""
    return self.snapshot.step if self.retrieves else None

  @property
  def corpus(self) -> Corpus:
    """Corpus version that the snapshot was built on."""
    return self.snapshot.corpus if self.retrieves else self.newest_corpus

  def compute(
    self,
    function: Callable[..., Any],
    module: Any,
    params: Params,
    **arrays: np.ndarray,
  ) -> Any:
    """Returns `function(module, params, **arrays)` on the host, row by row.

    The function takes and returns arrays [n …]. Rows are computed in batches of
    at most `max_batch`, padded to powers of two, so that few shapes are
    compiled.
    """
    compiled = sharding.jit_on_mesh(
      function,
      module,
      mesh=self.mesh,
      out_shardings=sharding.batch_sharding(self.mesh),
    )
    return self.in_batches(
      lambda rows: compiled(params, **sharding.to_devices(rows, self.mesh)),
      arrays,
    )

  def compute_pairs(
    self,
    component: str,
    function: Callable[..., Any],
    queries: Int[np.ndarray, "n q"],
    blocks: Int[np.ndarray, "n l"],
  ) -> np.ndarray:
    """Returns `function(module, params, query, block)` of a `PairEncoder`.

    The function gets a copy of the module for each range of pair lengths.
    """
    lengths = (queries != 0).sum(axis=1) + (blocks != 0).sum(axis=1)
    lengths = -(-lengths // _LENGTH_STEP) * _LENGTH_STEP
    module, params = self.components[component], self.params[component]
    order, parts = np.argsort(lengths, kind="stable"), []
    for length in np.unique(lengths).tolist():
      has_length = lengths == length
      # Pairs longer than `joint_length` are truncated, as in training.
      read = module.clone(joint_length=min(length, module.joint_length))
      arrays = {"query": queries[has_length], "block": blocks[has_length]}
      parts.append(self.compute(function, read, params, **arrays))
    return np.concatenate(parts)[np.argsort(order)]

  def in_batches(self, function: Callable[[Any], Any], arrays: Any) -> Any:
    """Applies a function to padded batches of rows, and removes the padding."""
    (number,) = {len(array) for array in jax.tree.leaves(arrays)}
    parts = []
    for start in range(0, number, self.max_batch):
      count = min(self.max_batch, number - start)
      size = min(1 << (count - 1).bit_length(), self.max_batch)
      size = whole_batch(size, self.mesh.size)
      # Copies of the last row fill the batch.
      places = start + np.minimum(np.arange(size), count - 1)
      result = function(jax.tree.map(operator.itemgetter(places), arrays))
      parts.append(jax.tree.map(lambda a, n=count: np.asarray(a)[:n], result))
    return jax.tree.map(lambda *results: np.concatenate(results), *parts)

  def encode(self, texts: Sequence[str]) -> Int32[np.ndarray, "n q"]:
    """Returns `[CLS] x [SEP]` of each text, padded; long texts are truncated.

    Raises:
      RealmError: A text has no words, or none that the vocabulary can spell.

    Example:
      >>> run.encode(["where was Ada born?", "what did Oda build?"]).shape
      (2, 16)
    """
    queries, refused = self.encode_each(texts)
    for error in refused.values():
      raise error
    return queries

  def encode_each(
    self, texts: Sequence[str]
  ) -> tuple[Int32[np.ndarray, "n q"], dict[int, RealmError]]:
    """Returns the result of `encode`, and errors by the index of their text."""
    return encode_queries(self.vocabulary, texts, self.config.query_length)

  def embed_tokens(
    self,
    token_ids: Int32[np.ndarray, "n q"],
    *,
    current: bool = True,
    hop: bool = False,
  ) -> Float32[np.ndarray, "n d"]:
    """Returns the vectors of queries `[CLS] x [SEP]`, padded.

    If `current`, the checkpoint's query tower embeds them, and otherwise the
    tower that the snapshot was published with. With `hop`, they are queries of
    a second search (`HopRetriever.hop_queries`).
    """
    retriever = self.components.retriever
    if not len(token_ids):
      return np.zeros((0, retriever.vector_size), np.float32)
    if current:
      params = retriever.query_tower_parameters(self.params["retriever"])
    else:
      params = self.snapshot.query_params
    embed = embed_hop_queries if hop else embed_queries
    return self.compute(embed, retriever, params, token_ids=token_ids)

  def search(
    self, token_ids: Int32[np.ndarray, "n q"], k: int, *, current: bool = True
  ) -> SearchResult:
    """Returns the k best blocks of each query, or all if there are fewer.

    A cross-encoder, if the run has one, reorders the first `rerank_depth`
    blocks, and its scores replace theirs; further blocks follow. If the run
    searches for paths, returns the k best paths.

    Args:
      token_ids, current: As in `embed_tokens`.
      k: Number of blocks.

    Example:
      >>> found = run.search(run.encode(["where was Ada born?"]), k=3)
      >>> found.rows.shape, found.scores.shape
      ((1, 3), (1, 3))
    """
    if self.config.paths is not None and self.retrieves:
      return self.config.paths.search(self, token_ids, k)
    if not self.reranks:
      return self.search_blocks(token_ids, k, current=current)
    number = self.config.rerank_depth
    result = self.search_blocks(token_ids, max(k, number), current=current)
    return searches.reranked(self, token_ids, result, number, k)

  # A method, so that a `PathSearch` can call it.
  search_blocks = searches.search_blocks

  @property
  def reranks(self) -> bool:
    """Whether a cross-encoder reorders the retrieved blocks (never paths)."""
    finds_blocks = self.retrieves and self.config.paths is None
    depth = self.config.rerank_depth if RERANKER in self.components else 0
    return finds_blocks and depth > 0

  def restricted(self: AnyRun, where: Where | None, *, rerank: bool) -> AnyRun:
    """Returns this run with a filter, and with or without reranking.

    `where` is as in `filtered`. `rerank` has no effect on a run without a
    cross-encoder.
    """
    run = self if where is None else self.filtered(where)
    if rerank or not run.reranks:
      return run
    config = dataclasses.replace(run.config, rerank_depth=0)
    return dataclasses.replace(run, config=config)

  @property
  def searchable(self) -> Bool[np.ndarray, " n"]:
    """Whether the filter allows each block, and it is not hidden."""
    allowed = np.ones(self.snapshot.index.num_blocks, bool)
    if self.allowed is not None:
      allowed = self.allowed.copy()
    allowed[[*self.hidden]] = False
    return allowed

  def stage_context(self, retrieval: Retrieval | None) -> StageContext:
    """Returns the parts of the run from which a stage makes its batches."""
    length = self.newest_corpus.block_length
    if retrieval is None:
      return StageContext(self.components, self.newest_corpus, None, length)
    return StageContext(self.components, self.corpus, self.snapshot, length)

  def hits(self, result: SearchResult) -> list[list[Hit]]:
    """Returns the retrieved blocks of each query as `Hit`s.

    Example:
      >>> found = run.search(run.encode(["where was Ada born?"]), k=2)
      >>> (hits,) = run.hits(found)
      >>> [hit.block.row for hit in hits] == found.rows[0].tolist()
      True
    """
    by_retriever, paths = result.retriever_scores, result.paths
    scores = result.scores if by_retriever is None else by_retriever
    probabilities = softmax(np.float64(scores), 1)
    if paths is None:
      paths = result.rows[..., None]
    if by_retriever is None:
      by_retriever = np.full(result.scores.shape, None)
    columns = paths, result.scores, probabilities, by_retriever
    return [
      [
        Hit(self.joined(path), score, p, retriever_score=retriever_score)
        for path, score, p, retriever_score in zip(*of_query, strict=True)
      ]
      for of_query in zip(*(array.tolist() for array in columns), strict=True)
    ]

  def block(self, row: int) -> Block:
    """Returns a block of the corpus, edited if there is an edit.

    Example:
      >>> run.block(1).id, run.block(1).title
      ('p1:0', 'Béla Stone')
    """
    if row == NULL_ROW:
      return NULL_BLOCK
    return self.edits.get(row) or self.corpus.block(row)

  def joined(self, path: Sequence[int]) -> Block:
    """Joins the blocks of a path; a single block stays as it is."""
    return joined_block([*map(self.block, path)], self.vocabulary)

  def gather_hits(
    self, hits: Sequence[Sequence[Hit]]
  ) -> Int32[np.ndarray, "b k l"]:
    """Returns the padded tokens of retrieved blocks or paths.

    Paths are padded to the length of the longest one.
    """
    paths = [
      [[part.row for part in hit.block.parts] for hit in each] for each in hits
    ]
    hops = max((len(path) for each in paths for path in each), default=1)
    padded = [
      [[*path, *[NULL_ROW] * (hops - len(path))] for path in each]
      for each in paths
    ]
    tokens = self.gather(np.array(padded, np.int32))
    if hops == 1:
      return tokens[:, :, 0]
    separator = self.vocabulary.sep_id
    return np.asarray(joined_blocks(tokens, separator_id=separator))

  def gather(self, rows: Int[np.ndarray, "*b"]) -> Int32[np.ndarray, "*b l"]:
    """Returns `[CLS] title [SEP] body [SEP]` of blocks, padded with 0.

    Example:
      >>> run.gather(np.array([[0, 1, 2], [-1, 3, 4]])).shape
      (2, 3, 40)
    """
    length = self.newest_corpus.block_length
    tokens = self.corpus.gather(rows, length)
    for row, block in self.edits.items():
      if (is_row := rows == row).any():
        title = block.token_ids[: block.title_length].tolist()
        tokens[is_row] = block_tokens(
          self.vocabulary, title, block.body_token_ids.tolist(), length
        )
    return tokens

  @property
  def source(self) -> dict[str, Any]:
    """Run, checkpoint and snapshot, for the `source` of a result."""
    return {
      "model_dir": str(self.model_dir),
      "checkpoint": self.step,
      "snapshot": self.snapshot_step,
    }

  @property
  def can_edit(self) -> bool:
    """Whether blocks can be edited: the index must score by vectors only."""
    return self.retrieves and not self.snapshot.index.has_own_scores

  def edited(
    self: AnyRun, texts: Mapping[int, str], *, hidden: Iterable[int] = ()
  ) -> AnyRun:
    """Returns this run with other texts in further blocks, only in memory.

    With an exact index, it retrieves and reads as if the corpus and the index
    had been built from these texts. The snapshot's block tower embeds them if
    queries share it, since training on questions has changed the checkpoint's.
    Titles stay.

    Args:
      texts: Texts of bodies, by row.
      hidden: Rows that searches leave out.

    Raises:
      EditError: A text has no words, or is too long for its block, or the index
        has no vectors.

    Example:
      >>> edited = run.edited({0: "Ada was born in Pola in 1901."})
      >>> edited.block(0).text
      'Ada was born in Pola in 1901.'
      >>> run.block(0).text
      'Ada was born in Velt in 1900. Later Ada built the bridge of Tarn.'
    """
    if texts and not self.can_edit:
      raise EditError(
        f"the index is {self.snapshot.index.kind!r}, which counts words over "
        "the whole corpus; only blocks of an index of vectors can be edited "
        "here"
      )
    edits = {
      row: edited_block(
        self.vocabulary, self.corpus.block(row), text, self.corpus.block_length
      )
      for row, text in texts.items()
    }
    run = dataclasses.replace(
      self, edits={**self.edits, **edits}, hidden=frozenset(hidden)
    )
    if not edits:
      return run
    vectors = self.compute(
      embed_blocks,
      self.components.retriever,
      {**self.params["retriever"], **self.snapshot.query_params},
      token_ids=run.gather(np.array([*edits])),
    )
    # Rounded as in a snapshot.
    stored = vectors.astype(self.snapshot.embeddings.dtype).astype(np.float32)
    vectors = {**self.edited_vectors, **dict(zip(edits, stored, strict=True))}
    return dataclasses.replace(run, edited_vectors=vectors)

  def filtered(self: AnyRun, where: Where) -> AnyRun:
    """Returns this run with a filter, which its searches obey.

    `corpus.filters` describes filters, such as `{"language": "de"}`.

    Raises:
      RealmError: The filter is malformed, has a field that the corpus does not
        keep, or allows no block.

    Example:
      >>> of_1901 = run.filtered({"year": "1901"})
      >>> {hit.block.fields["year"] for hit in of_1901.retrieve("who is Ada?")}
      {'1901'}
    """
    return dataclasses.replace(self, allowed=allowed_rows(self.corpus, where))


def whole_batch(batch_size: int, devices: int) -> int:
  """Rounds a batch size up to a multiple of the number of devices."""
  return -(-batch_size // devices) * devices
