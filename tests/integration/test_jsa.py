"""A run whose blocks a posterior draws: what it starts from, and resumes."""

import shutil

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.training.metric_rows import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

SETTINGS = {
  "NUM_STEPS": 4,
  "SAVE_EVERY_STEPS": 2,
  "LAG_STEPS": 4,
  "OBJECTIVE": "jsa",
  "SUPPORT_SIZE": 6,
  "NUM_CANDIDATES": 5,
  "BURN_IN": 1,
  "PACK": False,
}
# What follows from the parameters, the data and the draws.
NAMES = ("loss", "acceptance_rate", "posterior_loss", "parameter_norm")


def _components(model_dir, step):
  store = CheckpointStore(model_dir)
  found = store.restore(step, items=("retriever", "posterior"))
  store.close()
  return found["retriever"], found["posterior"]


def test_a_run_trains_resumes_and_is_evaluated(commands, tmp_path):
  model_dir = tmp_path / "pretrain"
  with commands.index_builder(model_dir):
    commands.train("pretrain", model_dir, **SETTINGS)
  rows = read_rows(model_dir)
  assert len(rows) == 4
  for row in rows:
    assert 0 <= row["acceptance_rate"] <= 1
    assert row["candidate_entropy"] > 0
    terms = ("reader_loss", "retriever_loss", "posterior_loss")
    assert row["loss"] == pytest.approx(sum(row[n] for n in terms), rel=1e-4)
  # The posterior starts as the query tower, and learns apart from it.
  retriever, posterior = _components(model_dir, 0)
  jax.tree.map(np.testing.assert_array_equal, posterior, retriever)
  later_retriever, later = _components(model_dir, 4)
  for one, other in ((later, posterior), (later, later_retriever)):
    kernel, before = one["tower"], other["tower"]
    same = jax.tree.map(np.array_equal, kernel, before)
    assert not all(jax.tree.leaves(same))

  shutil.rmtree(model_dir / "checkpoints" / "4")
  commands.train("pretrain", model_dir, **SETTINGS)
  for row, resumed in zip(rows[2:], read_rows(model_dir)[2:], strict=True):
    assert {n: row[n] for n in NAMES} == {n: resumed[n] for n in NAMES}

  figures = commands.evaluate("eval_masked", tmp_path, tmp_path / "eval")
  assert 0 <= figures["null_probability"] <= 1
