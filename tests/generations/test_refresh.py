"""Which blocks a partial refresh embeds, and that no vector grows too old."""

import types

import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.refresh import (
  KnownVectors,
  known_vectors,
  rows_to_embed,
)
from realm_jax.generations.store import GenerationStore
from realm_jax.partitioning.agreement import Agreement
from tests.generations.conftest import files_of, flip, publish_one

_STEP = 30


def _chosen(*, ages, new=(), step=_STEP, interval=10, costs=None, **settings):
  """The rows that are embedded of those with vectors of some ages."""
  ages = np.asarray(ages)
  rows = np.arange(len(ages))
  rows[list(new)] = NULL_ROW
  known = KnownVectors(
    rows=rows,
    gather=lambda rows: np.zeros((len(rows), 2), np.float32),
    steps=lambda rows: step - ages[rows],
    base=types.SimpleNamespace(step=step - interval),
  )
  chosen, _ = rows_to_embed(
    known,
    step=step,
    costs=np.full(len(ages), 10) if costs is None else np.asarray(costs),
    **{"fraction": 1 / 3, **settings},
  )
  return np.flatnonzero(chosen).tolist()


def test_all_are_embedded_without_known_vectors_and_none_of_a_checkpoint():
  assert rows_to_embed(None, step=0, costs=np.full(3, 10))[0].all()
  known = KnownVectors(np.arange(3), lambda rows: rows, lambda rows: rows)
  assert not rows_to_embed(known, step=9, costs=np.full(3, 10))[0].any()


_AGES = [0, 5, 10, 15, 20, 25, 26, 27, 28, 29, 3, 4]


@pytest.mark.parametrize(
  "case, rows",
  [
    # The oldest are chosen, up to a third of the 120 tokens.
    ({"ages": _AGES}, [6, 7, 8, 9]),
    # A third of 153: the oldest takes 43, and the next does not fit.
    ({"ages": _AGES, "costs": [10] * 9 + [43, 10, 10]}, [9]),
    # New and overdue rows are chosen whatever they cost.
    ({"ages": [5] * 12, "new": range(4)}, range(4)),
    ({"ages": [61] * 5 + [0] * 7, "step": 100}, range(5)),
    # Where the new ones alone exceed the fraction, nothing is gained.
    ({"ages": [5] * 12, "new": range(5)}, range(12)),
    # Where only the corpus has changed, old vectors stay.
    ({"ages": range(12), "new": [0], "interval": 0}, [0]),
    (
      {"ages": range(12), "new": [0], "interval": 0, "max_age_steps": 10},
      [0, 11],
    ),
  ],
)
def test_new_and_overdue_rows_are_chosen_and_then_the_oldest(case, rows):
  assert _chosen(**case) == [*rows]


def test_of_rows_of_one_age_a_random_part_is_chosen():
  some, others = (_chosen(ages=[5] * 12, step=step) for step in (30, 31))
  assert len(some) == len(others) == 4
  assert some != others


def test_only_a_sound_generation_of_the_model_has_known_vectors(
  generations_dir, corpus
):
  publish_one(generations_dir, corpus, 0, model="model")

  def base(model):
    known = known_vectors(
      GenerationStore(generations_dir),
      500,
      corpus=corpus,
      model=model,
      dtype="float32",
      agreement=Agreement("test"),
    )
    return known and known.base.step

  assert (base("model"), base("another")) == (0, None)
  flip(next(files_of(generations_dir, 0).glob("embeddings-*.npy")))
  assert base("model") is None
