"""A memory without text: states at masked words, and the words (kNN-LM).

    manifest.json    checkpoint and vocabulary; the record of keys.bin
    keys.bin         of each masked word: its state (unit vector, float16), its
                     id, and the content hash of its block

Each salient span is masked in turn, and read beside the null block: keys depend
on no index. They are the states that enter the masked-LM head; the paper's, the
inputs of the last feed-forward layer, are not in every encoder.
"""

import itertools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, Float, Float32, Int, Int64

from realm_jax.errors import RealmError
from realm_jax.evaluation.run import SENTENCE, RunConfig, TrainedRun
from realm_jax.indexes.protocol import (
  Blocks,
  IndexConfig,
  QueryBatch,
  as_config,
)
from realm_jax.inputs.batch import padded
from realm_jax.inputs.config import TaskContext
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader
from realm_jax.settings import PositiveInt
from realm_jax.snapshots.manifest import from_checked_json, to_checked_json
from realm_jax.storage.atomic import atomic_file, atomic_text_file
from realm_jax.storage.paths import read_bytes
from realm_jax.storage.staging import FileRecord, StagedFiles
from realm_jax.weights.importing import new_directory

_MANIFEST, _KEYS, _FORMAT_VERSION = "manifest.json", "keys.bin", 1


class WordMemory:
  """The memory of a run, verified, and in an index.

  Its `records`, memory-mapped, have a `key`, a `word` and a `source` each.

  Raises:
    RealmError: It is missing, damaged, or of another checkpoint or vocabulary.
  """

  def __init__(
    self,
    directory: epath.PathLike,
    run: TrainedRun,
    index: IndexConfig | str = "exact",
  ):
    folder, problem = epath.Path(directory), "has no memory"
    try:
      manifest = from_checked_json(read_bytes(folder / _MANIFEST))
      for name, value in _owner(run).items():
        if manifest[name] != value:
          problem = f"is a memory of another {name}"
          raise RealmError(f"{manifest[name]}, and {run!r} has {value}")
      file = StagedFiles(folder, [FileRecord(**manifest["keys"])]).get([_KEYS])
      self.records = np.memmap(file / _KEYS, _dtype(run), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise RealmError(
        f"{folder} {problem} ({error}); build one of this run with `python -m "
        "realm_jax.build_memory`"
      ) from error
    keys = Blocks(len(self.records), self.records["key"], mesh=run.mesh)
    self._index = as_config(index).build(keys)

  def nearest(
    self,
    states: Float32[np.ndarray, "b m d"],
    own: Int64[np.ndarray, " b"],
    k: int,
  ) -> tuple[Float32[np.ndarray, "b m k"], Int[np.ndarray, "b m k"]]:
    """Returns scores and words of the k nearest keys, or of all.

    Those of a query's `own` block are left out, with a score of −∞.
    """
    sources, (*shape, dim) = self.records["source"], states.shape
    most = int(np.unique(sources, return_counts=True)[1].max())
    queries = QueryBatch.of_vectors(states.reshape(-1, dim))
    found = self._index.search(queries, min(k + most, len(sources)))
    rows, scores = (a.reshape(*shape, -1) for a in (found.rows, found.scores))
    is_own = sources[rows] == own[:, None, None]
    scores = np.where(is_own, np.float32(-np.inf), scores)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    words = self.records["word"][np.take_along_axis(rows, best, axis=-1)]
    return np.take_along_axis(scores, best, axis=-1), words


def _dtype(run: TrainedRun) -> np.dtype:
  key = ("key", "<f2", (_reader(run).bert.hidden_size,))
  return np.dtype([key, ("word", "<i4"), ("source", "<i8")])


def _reader(run: TrainedRun) -> BertReader:
  run.require_kind(SENTENCE)
  if isinstance(reader := run.require_reader(), BertReader):
    return reader
  raise RealmError(f"{run!r} has no BERT as its reader, whose states are keys")


def _owner(run: TrainedRun) -> dict[str, str | int]:
  """Returns what a memory must have in common with a run."""
  vocabulary = run.newest_corpus.vocab_sha256
  own = {"vocabulary": vocabulary, "checkpoint": run.checkpoint_checksum}
  return {"format_version": _FORMAT_VERSION, **own}


def build_memory(
  *,
  config: RunConfig,
  data: TaskContext,
  output_dir: epath.PathLike,
  extend: epath.PathLike | None = None,
  batch_size: PositiveInt = 256,
) -> str:
  """Stores states at masked words; returns a line that says how many.

  Blocks with the same text are read once.

  Args:
    config: Run of pre-training.
    data: Corpus, blocks held out, and kinds of spans that are not masked.
    output_dir: Directory to make; it appears complete or not at all.
    extend: Memory of the run whose keys are kept, but for blocks that the
      corpus lacks by now. Only the other blocks are read.
    batch_size: Number of masked sentences that are read at once.

  Raises:
    RealmError: There are files in `output_dir`, the run fills in no words, or
      the memory is of another run; the message says which.
  """
  run = TrainedRun.load(config, max_batch=batch_size)
  corpus, old = data.examples, np.zeros(0, _dtype(run))
  if extend is not None:
    old = WordMemory(extend, run).records
  hashes = corpus.content_hashes[: corpus.num_blocks - data.held_out_blocks]
  hashes, rows = np.unique(hashes, return_index=True)
  rows = np.sort(rows[~np.isin(hashes, old["source"])])
  spans = (s for row in rows.tolist() for s in masked_spans(data, row, config))

  def records() -> Iterator[np.ndarray]:
    for start in range(0, len(old), batch_size):
      part = old[start : start + batch_size]
      yield part[np.isin(part["source"], hashes)]
    while batch := [*itertools.islice(spans, batch_size)]:
      *arrays, source = zip(*batch, strict=True)
      sizes = config.query_length, config.max_masks, config.max_masks
      query, positions, words = (
        padded(values, [size], np.int32)
        for values, size in zip(arrays, sizes, strict=True)
      )
      is_mask = positions > 0
      read = np.zeros(is_mask.sum(), old.dtype)
      read["key"] = null_states(run, query, positions)[is_mask]
      read["word"] = words[is_mask]
      read["source"] = np.repeat(source, is_mask.sum(axis=1))
      yield read

  with new_directory(output_dir) as folder:
    with atomic_file(folder / _KEYS) as path:
      with path.open("wb") as file:
        file.writelines(part.tobytes() for part in records())
      keys = FileRecord.of(path, _KEYS)
    manifest = {"corpus": corpus.fingerprint, "keys": vars(keys)}
    with atomic_text_file(folder / _MANIFEST) as text:
      text.write(to_checked_json({**_owner(run), **manifest}))
  number = keys.size // old.itemsize
  return f"{number} masked words; {len(rows)} blocks were read"


def masked_spans(
  data: TaskContext, row: int, config: RunConfig
) -> Iterator[tuple[np.ndarray, ...]]:
  """Yields what the task masked_salient_spans makes of each span of a block.

  These are query, positions and ids of masked words, and the block's hash.
  """
  corpus, block = data.examples, data.examples.block(row)
  words, room = corpus.vocabulary, config.query_length - 2
  kinds = [corpus.span_kinds[kind] for kind in block.salient_span_kinds]
  for (start, limit), kind in zip(block.salient_spans, kinds, strict=True):
    number = np.count_nonzero(block.sentences[:, 0] <= start) - 1
    first, last = block.sentences[number]
    if kind in data.unmasked_span_kinds or limit - first > room:
      continue
    tokens = block.body_token_ids[first:last].copy()
    tokens[start - first : limit - first] = words.mask_id
    query = np.array([words.cls_id, *tokens[:room], words.sep_id])
    scored = np.arange(start, min(limit, start + config.max_masks))
    targets = block.body_token_ids[scored]
    yield query, 1 + scored - first, targets, corpus.content_hashes[row]


def null_states(
  run: TrainedRun,
  query: Int[np.ndarray, "n q"],
  positions: Int[np.ndarray, "n m"],
) -> Float32[np.ndarray, "n m d"]:
  """Returns the states at masks, beside the null block, as unit vectors."""
  tokens = np.pad(query, ((0, 0), (0, 1)))
  # Of the null block, [SEP] alone follows the query.
  tokens[np.arange(len(query)), np.count_nonzero(query, axis=1)] = (
    run.vocabulary.sep_id
  )
  arrays = {"tokens": tokens, "positions": positions}
  return run.compute(_states, _reader(run), run.params["reader"], **arrays)


def _states(
  reader: BertReader,
  params: Params,
  tokens: Int[Array, "b l"],
  positions: Int[Array, "b m"],
) -> Float[Array, "b m d"]:
  inputs = sequences.padded(tokens)

  def at_masks(reader: BertReader) -> Float[Array, "b m d"]:
    return sequences.gather(inputs, reader.encoder(inputs), positions)

  states = reader.apply({"params": params}, method=at_masks)
  states = states.astype(jnp.float32)
  return states / jnp.linalg.norm(states, axis=-1, keepdims=True)
