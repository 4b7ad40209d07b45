"""Rooms: the numbers of rows that steps are compiled for.

They are chosen before the first step, so that each is compiled once: the room
that most batches need, and the one that holds any.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.models.packing import PackingPlan, plan_rows
from realm_jax.models.sequences import PAD_ID, Sequences
from realm_jax.training.step_texts import StepTexts, Texts

# Rows a group, by part.
Room = Mapping[str, int]

# What most batches need is guessed from this many random ones, …
_SAMPLES = 8
# … and this much more: blocks that are retrieved may be longer than most.
_MARGIN = 1.1
# A smaller room must save this share of the tokens, or it is not worth its
# compilation.
_LEAST_SAVING = 0.15


def plan_parts(texts: Texts, groups: int) -> dict[str, PackingPlan]:
  """How each part's texts lie in as few rows as are found."""

  def plan(padded: Int[np.ndarray, "n l"]) -> PackingPlan:
    lengths = np.count_nonzero(padded != PAD_ID, axis=1)
    return plan_rows(lengths.reshape(groups, -1), padded.shape[1])

  return {name: plan(padded) for name, padded in texts.items()}


def room_for(plans: Mapping[str, PackingPlan]) -> Room:
  """The smallest room that holds them."""
  return {name: plan.num_rows for name, plan in plans.items()}


def needed_room(step_texts: StepTexts, arrays: dict[str, np.ndarray]) -> Room:
  """The smallest room that holds a padded batch."""
  texts, _ = step_texts(arrays)
  return room_for(plan_parts(texts, step_texts.groups))


def largest_room(step_texts: StepTexts, arrays: dict[str, np.ndarray]) -> Room:
  """The room that holds any batch of these shapes: a row for each text."""
  texts, _ = step_texts(arrays)
  return {name: len(text) // step_texts.groups for name, text in texts.items()}


def holds(room: Room, needed: Room) -> bool:
  """Whether what needs one room fits in another."""
  return all(room[name] >= rows for name, rows in needed.items())


def choose_rooms(
  step_texts: StepTexts,
  shapes: Mapping[str, tuple[int, ...]],
  *,
  corpus: Corpus,
) -> list[Room]:
  """The room that most batches need, and the one that holds any.

  They follow from the corpus and the shapes alone, so that a resumed run has
  the same: its sums would be rounded otherwise.

  Args:
    step_texts: of the stage.
    shapes: of the padded texts of a batch.
    corpus: whose sentences and blocks stand for queries and candidates.
  """
  rng = np.random.default_rng(0)
  usual: dict[str, int] = {}
  for _ in range(_SAMPLES):
    drawn = needed_room(step_texts, _random_texts(shapes, corpus, rng))
    usual = {name: max(n, usual.get(name, 0)) for name, n in drawn.items()}
  empty = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
  most = largest_room(step_texts, empty)
  usual = {
    name: min(math.ceil(rows * _MARGIN), most[name])
    for name, rows in usual.items()
  }
  texts, _ = step_texts(empty)
  of_usual, of_most = (
    sum(rows * texts[name].shape[1] for name, rows in room.items())
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

  def abstract(leaf: Any, shape: tuple[int, ...]) -> Any:
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
