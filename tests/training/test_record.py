"""Losses, gradients and answers at fixed parameters stay what they were.

`tests/golden/record.json` was written by the commit before the redesign, and is
deleted when that is done. The comparison takes four minutes of a core:

    RECORD=compare python -m pytest tests/training/test_record.py

and RECORD=write writes the file.
"""

import dataclasses
import json
import os
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from realm_jax.evaluation.ask import ask
from realm_jax.evaluation.explain import explain
from realm_jax.objectives.masked_lm import OBJECTIVES
from realm_jax.partitioning.mesh import make_mesh
from tests.training import tiny

_FILE = Path(__file__).parent.parent / "golden" / "record.json"
_MODE = os.environ.get("RECORD", "")
pytestmark = pytest.mark.skipif(not _MODE, reason="RECORD=compare compares")
_QUESTIONS = ("where was Ada born?", "where was Søren born?", "who built Tarn?")
_SETTINGS = (
  *(("pretraining", {"objective": name}) for name in sorted(OBJECTIVES)),
  ("pretraining", {"span_weight": 0.5}),
  ("pretraining", {"loss_form": "joint"}),
  ("pretraining", {"null_block": False}),
  ("pretraining", {"freeze_reader": True}),
  ("open_qa", {}),
  ("inverse_cloze", {}),
  ("reading", {"span_weight": 0.5}),
)
CASES = [
  (stage, settings, dropout, parts)
  for stage, settings in _SETTINGS
  for dropout, parts in ((0.0, 1), (0.3, 1), (0.3, 2))
]


def _name(stage, settings, dropout, parts):
  given = ",".join(f"{name}={value}" for name, value in settings.items())
  return f"{stage}({given}) dropout={dropout} parts={parts}"


def compute(stage_name, settings, dropout, parts):
  """Metrics, and for each gradient its norm and its product with a vector."""
  stage = dataclasses.replace(tiny.OF_STAGE[stage_name], **settings)
  mesh = make_mesh(devices=jax.devices()[:1])
  state, _ = tiny.state(stage_name, optax.sgd(1.0), mesh)
  step = tiny.step(
    stage, mesh, dropout_rate=dropout, seed=3, num_microbatches=parts
  )
  batch = (
    tiny.batch_with_answers()
    if stage_name == "pretraining"
    else tiny.batch(stage_name)
  )
  with jax.set_mesh(mesh):
    gradients, metrics = jax.jit(step.gradient)(state, batch)
  rng = np.random.default_rng(0)
  found = {name: float(value) for name, value in sorted(metrics.items())}
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
    leaf = np.asarray(leaf, np.float64)
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    direction = rng.normal(size=leaf.shape)
    found[name] = [float(np.linalg.norm(leaf)), float((leaf * direction).sum())]
  return found


def _check(part, name, computed):
  record = json.loads(_FILE.read_text()) if _FILE.exists() else {}
  if _MODE == "write":
    record.setdefault(part, {})[name] = computed
    _write(record)
  recorded = record[part][name]
  assert computed.keys() == recorded.keys()
  for key, value in recorded.items():
    np.testing.assert_allclose(
      computed[key], value, rtol=2e-5, atol=1e-6, err_msg=key
    )


def _write(record):
  """Writes a line for each case, with nine digits."""
  rounded = json.loads(
    json.dumps(record), parse_float=lambda x: float(f"{float(x):.9g}")
  )
  parts = (
    f"{json.dumps(part)}: {{\n"
    + ",\n".join(
      f"{json.dumps(name)}: {json.dumps(values)}"
      for name, values in sorted(cases.items())
    )
    + "\n}"
    for part, cases in sorted(rounded.items())
  )
  _FILE.write_text("{" + ",\n".join(parts) + "}\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: _name(*case))
def test_losses_and_gradients(case):
  _check("steps", _name(*case), compute(*case))


def test_answers(run):
  computed = {
    f"{answered.question} {i} {answer.text} {answer.block.title}": [
      answer.probability,
      answer.score,
    ]
    for answered in ask(run, _QUESTIONS)
    for i, answer in enumerate(answered.answers)
  }
  _check("predictions", "answers", computed)


def test_explained_sentences(run):
  found = explain(run, "Ada was born in [MASK].", "Velt")
  computed = {
    f"{i} {one.block.title}": [one.probability, one.likelihood]
    for i, one in enumerate(found.candidates)
  }
  _check("predictions", "sentence", computed)
