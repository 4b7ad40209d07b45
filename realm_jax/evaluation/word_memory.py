"""A memory of hidden states at masked words, with the words (kNN-LM).

    manifest.json    checkpoint and vocabulary, index, and record of keys.bin
    keys.bin         for each masked word: its state (unit vector, float16), its
                     id, and the content hash of its block

States are computed with the null block, so they do not depend on an index. They
are the inputs of the masked-LM head; the paper's choice, the inputs of the last
feed-forward layer, does not exist in every encoder.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, Float, Float32, Int, Int64

from realm_jax.errors import RealmError
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.run import SENTENCE, TrainedRun
from realm_jax.indexes.protocol import Blocks, QueryBatch, as_config
from realm_jax.inputs.batch import padded
from realm_jax.inputs.config import TaskContext
from realm_jax.models import sequences
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader
from realm_jax.snapshots.manifest import from_checked_json, to_checked_json
from realm_jax.storage.paths import read_bytes
from realm_jax.storage.staging import FileRecord, StagedFiles, sha256_of
from realm_jax.weights.importing import new_directory

_MANIFEST, _KEYS, _FORMAT_VERSION = "manifest.json", "keys.bin", 1
_BATCH, _NUM_NEIGHBORS = 256, 1024


class WordMemory:
  """The memory of a run: its `records` of `key`, `word` and `source`.

  Raises:
    RealmError: The memory is missing or damaged, or belongs to another
      checkpoint or vocabulary.
  """

  def __init__(self, directory: epath.PathLike, run: TrainedRun):
    folder, owner = epath.Path(directory), _owner(run)
    try:
      manifest = from_checked_json(read_bytes(folder / _MANIFEST))
      if others := [name for name in owner if manifest[name] != owner[name]]:
        raise RealmError(f"it is of another {' and '.join(others)}")
      index = as_config(manifest["index"])
      file = StagedFiles(folder, [FileRecord(**manifest["keys"])]).get([_KEYS])
      self.records = np.memmap(file / _KEYS, _dtype(run), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise RealmError(
        f"{folder} has no memory of {run!r}: {error}; build one with `python "
        "-m realm_jax.build_memory`"
      ) from error
    self._run, keys = run, self.records["key"]
    _, counts = np.unique(self.records["source"], return_counts=True)
    self._num_found = min(_NUM_NEIGHBORS + int(counts.max()), len(keys))
    self._index = index.build(Blocks(len(keys), keys, mesh=run.mesh))

  def nearest(
    self,
    query: Int[np.ndarray, "b q"],
    positions: Int[np.ndarray, "b m"],
    sources: Int64[np.ndarray, " b"],
  ) -> tuple[Float32[np.ndarray, "b m k"], Int[np.ndarray, "b m k"]]:
    """Returns scores and words of the nearest keys of each mask.

    If possible, at least 1,024 of them are from other blocks than the query's
    `own` block, whose keys have a score of −∞.
    """
    states = null_states(self._run, query, positions)
    queries = QueryBatch.of_vectors(states.reshape(-1, states.shape[-1]))
    result = self._index.search(queries, self._num_found)
    rows = result.rows.reshape(*positions.shape, -1)
    is_own = self.records["source"][rows] == sources[:, None, None]
    scores = np.where(is_own, -np.inf, result.scores.reshape(rows.shape))
    return scores.astype(np.float32), self.records["word"][rows]


def _owner(run: TrainedRun) -> dict[str, str | int]:
  """Returns the properties that a memory must share with a run."""
  return {
    "format_version": _FORMAT_VERSION,
    "vocabulary": run.newest_corpus.vocab_sha256,
    "checkpoint": run.checkpoint_checksum,
  }


def _dtype(run: TrainedRun) -> np.dtype:
  run.require_kind(SENTENCE)
  reader: Any = run.require_reader()
  key = ("key", "<f2", (reader.bert.hidden_size,))
  return np.dtype([key, ("word", "<i4"), ("source", "<i8")])


def build_memory(
  *,
  config: RunConfig,
  data: TaskContext,
  output_dir: epath.PathLike,
  extend: epath.PathLike | None = None,
  index: str = "exact",
) -> str:
  """Masks each salient span in turn, and stores the states at its words.

  Blocks with the same text are read once. Returns a line to print.

  Args:
    config: Run of pre-training.
    data: Corpus, held-out blocks, and kinds of spans that are not masked.
    output_dir: Directory to make; it appears complete or not at all.
    extend: Memory of the run to extend. Its keys are kept, except for blocks
      that are no longer in the corpus, and only new blocks are read.
    index: Kind of index for searching the keys.

  Example:
    >>> config = realm_jax.load("runs/realm").config
    >>> data = TaskContext("corpus")
    >>> build_memory(config=config, data=data, output_dir="memory")
    '106 masked words; 28 blocks were read'
  """
  run, kind = TrainedRun.load(config, max_batch=_BATCH), as_config(index).kind
  corpus, old = data.examples, np.zeros(0, _dtype(run))
  if extend is not None:
    old = WordMemory(extend, run).records
  hashes = corpus.content_hashes[: corpus.num_blocks - data.held_out_blocks]
  hashes, rows = np.unique(hashes, return_index=True)
  rows = np.sort(rows[~np.isin(hashes, old["source"])]).tolist()

  def records() -> Iterator[np.ndarray]:
    for start in range(0, len(old), _BATCH):
      part = old[start : start + _BATCH]
      yield part[np.isin(part["source"], hashes)]
    spans = (span for row in rows for span in masked_spans(data, row, config))
    while batch := [*itertools.islice(spans, _BATCH)]:
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
    with (path := folder / _KEYS).open("wb") as file:
      file.writelines(part.tobytes() for part in records())
    keys = FileRecord(_KEYS, path.stat().length, sha256_of(path))
    manifest = {**_owner(run), "corpus": corpus.fingerprint, "index": kind}
    text = to_checked_json({**manifest, "keys": vars(keys), "step": run.step})
    (folder / _MANIFEST).write_text(text)
  number = keys.size // old.itemsize
  return f"{number} masked words; {len(rows)} blocks were read"


def masked_spans(
  data: TaskContext, row: int, config: RunConfig
) -> Iterator[tuple[np.ndarray, ...]]:
  """Yields examples of the task masked_salient_spans for each span of a block.

  An example has the query, positions and ids of masked words, and the block's
  hash.
  """
  corpus, block = data.examples, data.examples.block(row)
  words, body = corpus.vocabulary, block.body_token_ids
  spans = np.c_[block.salient_spans, block.salient_span_kinds].tolist()
  for start, limit, kind in spans:
    number = np.count_nonzero(block.sentences[:, 0] <= start) - 1
    first, last = block.sentences[number]
    last = min(last, first + config.query_length - 2)
    if limit > last or corpus.span_kinds[kind] in data.unmasked_span_kinds:
      continue
    masked = [words.mask_id] * (limit - start)
    tokens = [*body[first:start], *masked, *body[limit:last]]
    scored = np.arange(start, min(limit, start + config.max_masks))
    query = np.array([words.cls_id, *tokens, words.sep_id])
    yield query, 1 + scored - first, body[scored], corpus.content_hashes[row]


def null_states(
  run: TrainedRun,
  query: Int[np.ndarray, "n q"],
  positions: Int[np.ndarray, "n m"],
) -> Float32[np.ndarray, "n m d"]:
  """Returns the states at masks, with the null block, as unit vectors."""
  reader, params = run.require_reader(), run.params["reader"]
  return run.compute(_states, reader, params, query=query, positions=positions)


def _states(
  reader: BertReader,
  params: Params,
  query: Int[Array, "b q"],
  positions: Int[Array, "b m"],
) -> Float[Array, "b m d"]:
  # The null block adds only [SEP] after the query.
  ends = jnp.sum(query > 0, axis=1, keepdims=True)
  tokens = jnp.pad(query, ((0, 0), (0, 1)))
  is_end = jnp.arange(tokens.shape[1])[None, :] == ends
  inputs = sequences.padded(jnp.where(is_end, reader.separator_id, tokens))
  hidden = reader.apply({"params": params}, method=lambda r: r.encoder(inputs))
  states = sequences.gather(inputs, hidden, positions).astype(jnp.float32)
  return states / jnp.linalg.norm(states, axis=-1, keepdims=True)
