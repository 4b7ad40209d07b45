"""Which blocks a partial refresh embeds, and that no vector grows too old."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.refresh import KnownVectors, rows_to_embed
from realm_jax.generations.store import GenerationStore
from tests.generations.builds import RETRIEVER, build, save
from tests.generations.conftest import files_of, flip

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


def test_the_oldest_are_chosen_up_to_the_fraction_of_tokens():
  ages = [0, 5, 10, 15, 20, 25, 26, 27, 28, 29, 3, 4]
  # A third of the 120 tokens.
  assert _chosen(ages=ages) == [6, 7, 8, 9]
  # A third of 153: the oldest rows take 43, and the next does not fit.
  assert _chosen(ages=ages, costs=[10] * 9 + [43, 10, 10]) == [9]


def test_of_rows_of_one_age_a_random_part_is_chosen():
  some, others = (_chosen(ages=[5] * 12, step=step) for step in (30, 31))
  assert len(some) == len(others) == 4
  assert some != others


def test_new_and_overdue_rows_are_chosen_whatever_they_cost():
  assert _chosen(ages=[5] * 12, new=range(4)) == list(range(4))
  # Five of 12 rows are older than 30 steps, and four would fit.
  assert _chosen(ages=[61] * 5 + [0] * 7, step=100) == list(range(5))
  # Where the new ones alone exceed the fraction, nothing is gained.
  assert _chosen(ages=[5] * 12, new=range(5)) == list(range(12))


def test_where_only_the_corpus_has_changed_old_vectors_stay():
  ages = list(range(12))
  assert _chosen(ages=ages, new=[0], interval=0) == [0]
  rows = _chosen(ages=ages, new=[0], interval=0, max_age_steps=10)
  assert rows == [0, 11]


@given(
  num_blocks=st.integers(30, 80),
  fraction=st.floats(0.2, 0.8),
  generations=st.floats(1.5, 4.0),
  seed=st.integers(0, 99),
)
def test_over_many_generations_no_vector_grows_too_old_for_the_same_cost(
  num_blocks, fraction, generations, seed
):
  rng = np.random.default_rng(seed)
  interval = 10
  costs = rng.integers(8, 17, num_blocks)
  bound = round(generations / fraction * interval)
  ages = np.zeros(num_blocks, int)
  for generation in range(30):
    ages += interval
    rows = _chosen(
      ages=ages,
      step=1000 + generation * interval,
      costs=costs,
      fraction=fraction,
      max_age_steps=bound,
    )
    ages[rows] = 0
    assert ages.max() <= bound
    # Overdue rows exceed the budget by at most the rows that did not fit in the
    # generations before, one in each.
    rounding = bound // interval * costs.max()
    assert costs[rows].sum() <= fraction * costs.sum() + rounding


_PARTIAL = {"refresh_fraction": 0.4}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("case", ["damaged", "another model"])
def test_without_a_sound_earlier_generation_all_are_embedded(
  tmp_path, corpus, case, monkeypatch
):
  save(tmp_path, corpus, 0, 500)
  build(tmp_path, corpus, **_PARTIAL, checkpoint_step=0)
  # As where the damage comes while the builder runs.
  monkeypatch.setattr(GenerationStore, "remove_damaged", lambda *_, **__: [])
  generations_dir, other = tmp_path / "generations", {}
  if case == "damaged":
    flip(next(files_of(generations_dir, 0).glob("embeddings-*.npy")))
  else:
    other = {"retriever": dataclasses.replace(RETRIEVER, normalize=True)}
  build(tmp_path, corpus, **_PARTIAL, **other)
  assert GenerationStore(generations_dir).manifest(500).partial is None
