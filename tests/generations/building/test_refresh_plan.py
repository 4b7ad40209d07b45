"""The plan of a partial refresh: what is embedded, and what of the rest."""

import logging

import numpy as np
import pytest

from realm_jax.corpus.store import NULL_ROW
from realm_jax.generations.building.partial_refresh import (
  KnownVectors,
  PartialRefresh,
  make_plan,
)

_N, _D = 400, 8
_OLD = np.random.default_rng(0).standard_normal((_N, _D)).astype(np.float32)


def _base(vectors=_OLD, *, step=10, steps=None, rows=None, partials=0):
  steps = np.full(len(vectors), step) if steps is None else steps
  rows = np.arange(len(vectors)) if rows is None else rows
  return KnownVectors(
    step=step,
    partials=partials,
    rows=rows,
    gather=vectors.__getitem__,
    steps=steps.__getitem__,
  )


def _plan(base=None, *, step=20, **settings):
  return make_plan(
    PartialRefresh(**settings),
    base or _base(),
    step=step,
    costs=np.full(_N, 16),
  )


def test_rows_are_new_or_as_they_were_and_tell_their_steps():
  new = _OLD + np.float32(0.1)
  base = _base(steps=np.where(np.arange(_N) < 100, 5, 10))
  plan = _plan(base, max_age_steps=40)
  assert plan.record is not None
  asked = []

  def embed(rows):
    asked.extend(rows.tolist())
    return new[rows]

  parts = [
    plan.vectors(rows, embed=embed, step=20)
    for rows in np.split(np.arange(_N), 4)
  ]
  vectors, steps = map(np.concatenate, zip(*parts, strict=True))
  count = plan.record.embedded_blocks
  assert plan.embed.sum() == count == _N // 3
  assert plan.record.embedded_share == count / _N
  np.testing.assert_array_equal(vectors[plan.embed], new[plan.embed])
  np.testing.assert_array_equal(vectors[~plan.embed], _OLD[~plan.embed])
  np.testing.assert_array_equal(steps[plan.embed], 20)
  np.testing.assert_array_equal(
    steps[~plan.embed], base.steps(np.flatnonzero(~plan.embed))
  )
  assert len(asked) == len(set(asked)) == count


def test_the_oldest_are_embedded_first():
  steps = np.where(np.arange(_N) < 100, 0, 10)
  plan = _plan(_base(steps=steps))
  assert plan.embed[:100].all()
  # Those that would be too old are embedded whatever they cost.
  plan = _plan(_base(steps=steps), max_age_steps=15)
  assert plan.embed[:100].all()
  oldest = _plan(_base(steps=np.full(_N, 0)), max_age_steps=15)
  assert oldest.embed.all()


def test_new_blocks_are_always_embedded():
  rows = np.arange(_N) - 30
  rows[:30] = -1
  base = _base(rows=rows)
  new = np.concatenate([np.ones((30, _D), np.float32), _OLD[:-30]])
  plan = _plan(base)
  assert plan.embed[:30].all() and plan.record.new_blocks == 30
  vectors, _ = plan.vectors(np.arange(_N), embed=new.__getitem__, step=20)
  np.testing.assert_array_equal(vectors, new)


@pytest.mark.parametrize(
  "case, words",
  [
    ("new", "200 of 400 are new"),
    ("due", "full_every=3"),
  ],
)
def test_all_are_embedded_where_nothing_is_gained_by_less(case, words, caplog):
  rows = np.arange(_N)
  if case == "new":
    rows[:200] = -1
  with caplog.at_level(logging.INFO, logger="absl"):
    plan = _plan(
      _base(rows=rows, partials=2),
      full_every=3 if case == "due" else 4,
    )
  assert plan.record is None and plan.embed.all()
  assert words in caplog.text


def test_where_the_corpus_alone_has_changed_only_new_blocks_are_embedded():
  rows = np.arange(_N)
  rows[-3:] = NULL_ROW
  steps = np.where(np.arange(_N) < 100, 5, 20)
  base = _base(step=20, steps=steps, rows=rows, partials=2)
  plan = _plan(base, full_every=3)
  assert plan.record is not None
  must = {_N - 3, _N - 2, _N - 1}
  assert set(np.flatnonzero(plan.embed)) == must
  # It is the generation that it was, as to how many were partial.
  assert plan.record.partials == 2
  # What is older than is allowed now goes all the same.
  strict = _plan(base, max_age_steps=10)
  assert strict.embed[:100].all()
  assert strict.embed.sum() == len({*must, *range(100)})
