"""From padded batches to packed ones: the same step without the padding.

A packed batch has, in place of padded queries and blocks, what towers and
reader read (`queries`, `blocks`, `joint`), each as `Sequences`. Blocks that
several queries have as candidates, the null block above all, are embedded
once. The number of rows is one of a few that are known before the first step,
so that each is compiled once.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, UInt32

from realm_jax.corpus.store import Corpus
from realm_jax.models.packing import PackingPlan, lay_out, plan_rows
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import PAD_ID, Sequences

# Rows a group, by part.
Room = Mapping[str, int]

# What most batches need is guessed from this many random ones, …
_SAMPLES = 8
# … and this much more: blocks that are retrieved may be longer than most.
_MARGIN = 1.1
# A smaller room must save this share of the tokens, or it is not worth its
# compilation.
_LEAST_SAVING = 0.15


class BatchPacker:
  """Packs the padded batches of one stage.

  Args:
    parts: which of `queries`, `blocks` and `joint` the step reads.
    retriever: whose towers read queries and blocks.
    reader: that reads the joint input, if one does.
    groups: devices of this process's part of the data axis.
    rooms: from the smallest to one in which any batch fits.
  """

  def __init__(
    self,
    parts: frozenset[str],
    *,
    retriever: Retriever,
    reader: Reader | None,
    groups: int,
    rooms: Sequence[Room] = (),
  ):
    self._parts = parts
    self._retriever = retriever
    self._reader = reader
    self._groups = groups
    self.rooms = list(rooms)

  def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The packed batch, in the smallest room that holds it."""
    texts, rest = self._texts(arrays)
    plans = {name: self._plan(padded) for name, padded in texts.items()}
    needed = {name: plan.num_rows for name, plan in plans.items()}
    fits = [room for room in self.rooms if _holds(room, needed)]
    # Only the last room of several processes is the same for all of them.
    room = fits[0] if jax.process_count() == 1 else self.rooms[-1]
    laid_out = {
      name: lay_out(
        plan,
        texts[name],
        num_rows=room[name],
        numbers=self._numbers(name, texts[name]),
      )
      for name, plan in plans.items()
    }
    return rest | laid_out

  def needed(self, arrays: dict[str, np.ndarray]) -> Room:
    """The rows that a batch takes."""
    texts, _ = self._texts(arrays)
    return {name: self._plan(text).num_rows for name, text in texts.items()}

  def most(self, arrays: dict[str, np.ndarray]) -> Room:
    """The rows that any batch of these shapes fits in: one a sequence."""
    texts, _ = self._texts(arrays)
    return {name: len(text) // self._groups for name, text in texts.items()}

  def row_lengths(self, arrays: dict[str, np.ndarray]) -> dict[str, int]:
    """Tokens of a row, by part."""
    texts, _ = self._texts(arrays)
    return {name: text.shape[1] for name, text in texts.items()}

  def _plan(self, padded: Int[np.ndarray, "n l"]) -> PackingPlan:
    lengths = np.count_nonzero(padded != PAD_ID, axis=1)
    return plan_rows(lengths.reshape(self._groups, -1), padded.shape[1])

  def _numbers(
    self, name: str, text: Int[np.ndarray, "n l"]
  ) -> UInt32[np.ndarray, " n"]:
    """What is the same for a sequence on however many devices.

    A block that is on several of them for several queries has one number.
    """
    if name == "blocks" and "joint" in self._parts:
      return np.array([zlib.crc32(row.tobytes()) for row in text], np.uint32)
    first = jax.process_index() * len(text)
    return np.arange(first, first + len(text), dtype=np.uint32)

  def _texts(
    self, arrays: dict[str, np.ndarray]
  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is to be packed, by part, and all other arrays of the batch."""
    rest = dict(arrays)
    query = rest.pop("query")
    texts = {}
    if "queries" in self._parts:
      texts["queries"] = self._retriever.query_input(query)
    if "block" in rest:
      texts["blocks"] = self._retriever.block_input(rest.pop("block"))
    if "candidates" in rest:
      candidates = rest.pop("candidates")
      if "blocks" in self._parts:
        blocks, rest["block_index"] = _distinct(candidates, self._groups)
        texts["blocks"] = self._retriever.block_input(blocks)
      if "joint" in self._parts:
        assert self._reader is not None
        inputs = self._reader.join(query, candidates)
        texts["joint"] = inputs.token_ids.reshape(
          -1, inputs.token_ids.shape[-1]
        )
        rest["body_start"] = inputs.body_start.astype(np.int32)
        rest["body_length"] = inputs.body_length.astype(np.int32)
    return texts, rest


def _distinct(
  candidates: Int[np.ndarray, "b k l"], groups: int
) -> tuple[Int[np.ndarray, "n l"], Int[np.ndarray, "b k"]]:
  """Each group's distinct blocks, and which of them each candidate is.

  There are as many as candidates, so that shapes stay; the last are empty.
  """
  batch, num_candidates, length = candidates.shape
  blocks = np.zeros(
    (groups, batch // groups * num_candidates, length), np.int32
  )
  index = np.zeros((batch, num_candidates), np.int32)
  for group in range(groups):
    known: dict[bytes, int] = {}
    of_group = slice(group * batch // groups, (group + 1) * batch // groups)
    flat = candidates[of_group].reshape(-1, length)
    numbers = [known.setdefault(row.tobytes(), len(known)) for row in flat]
    index[of_group] = np.reshape(numbers, (-1, num_candidates))
    blocks[group, numbers] = flat
  return blocks.reshape(-1, length), index


def _holds(room: Room, needed: Room) -> bool:
  return all(room[name] >= rows for name, rows in needed.items())


def choose_rooms(
  packer: BatchPacker, shapes: Mapping[str, tuple[int, ...]], *, corpus: Corpus
) -> list[Room]:
  """The room that most batches need, and the one that holds any.

  They follow from the corpus and the shapes alone, so that a resumed run has
  the same: its sums would be rounded otherwise.

  Args:
    packer: of the stage.
    shapes: of the padded texts of a batch.
    corpus: whose sentences and blocks stand for queries and candidates.
  """
  rng = np.random.default_rng(0)
  usual: dict[str, int] = {}
  for _ in range(_SAMPLES):
    drawn = packer.needed(_random_texts(shapes, corpus, rng))
    usual = {name: max(n, usual.get(name, 0)) for name, n in drawn.items()}
  empty = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
  most, lengths = packer.most(empty), packer.row_lengths(empty)
  usual = {
    name: min(math.ceil(rows * _MARGIN), most[name])
    for name, rows in usual.items()
  }
  of_usual, of_most = (
    sum(rows * lengths[name] for name, rows in room.items())
    for room in (usual, most)
  )
  saved = 1 - of_usual / of_most
  return [usual, most] if saved >= _LEAST_SAVING else [most]


def _random_texts(
  shapes: Mapping[str, tuple[int, ...]],
  corpus: Corpus,
  rng: np.random.Generator,
) -> dict[str, np.ndarray]:
  """Random sentences as queries, and random blocks."""
  texts = {}
  for name, (*shape, length) in shapes.items():
    rows = rng.integers(corpus.num_blocks, size=shape)
    if name == "query":
      texts[name] = np.stack(
        [_random_sentence(corpus, row, length, rng) for row in rows.tolist()]
      )
    else:
      texts[name] = corpus.gather(rows, length)
  return texts


def _random_sentence(
  corpus: Corpus, row: int, length: int, rng: np.random.Generator
) -> Int[np.ndarray, " l"]:
  sentences = corpus.sentences(row)
  start, limit = (
    sentences[rng.integers(len(sentences))] if len(sentences) else (0, 0)
  )
  tokens = corpus.body_token_ids(row)[start:limit][: length - 2]
  words = corpus.vocabulary
  sentence = np.zeros(length, np.int32)
  sentence[: len(tokens) + 2] = [words.cls_id, *tokens, words.sep_id]
  return sentence


def in_room(batch: dict[str, Any], room: Room) -> dict[str, Any]:
  """Abstract arrays like those of a packed batch on the devices."""

  def abstract(leaf: jax.Array, shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

  def resized(name: str, value: Any) -> Any:
    if not isinstance(value, Sequences):
      return abstract(value, value.shape)
    groups = len(value.starts)
    shape = (groups * room[name], value.token_ids.shape[1])
    return Sequences(
      *(abstract(part, shape) for part in value[:3]),
      *(abstract(part, part.shape) for part in value[3:]),
    )

  return {name: resized(name, value) for name, value in batch.items()}


def room_of(batch: dict[str, Any]) -> tuple[int, ...]:
  """Which compiled step a batch needs: the rows of its parts."""
  return tuple(
    len(value.token_ids)
    for _, value in sorted(batch.items())
    if isinstance(value, Sequences)
  )
