"""Towers and readers go out and come back, bit for bit."""

import sys

import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.weights import WeightsError, exporting
from tests.weights import models

pytestmark = pytest.mark.slow


def test_the_commands_export_an_import_as_it_was(tmp_path, command_server):
  home = models.GOLDEN / "hf_bert" / "masked_lm"
  run, out, recipe = (tmp_path / name for name in ("run", "out", "towers.gin"))
  recipe.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.weights import registry\n"
    'registry.ImportConfig.pooling = "mean"\n'
  )
  python = (sys.executable, "-m")
  done = command_server.run(
    [
      *(*python, "realm_jax.import_weights", "--from=hf_bert"),
      *(f"--input={home}", f"--output_dir={run}", f"--gin_file={recipe}"),
    ]
  )
  assert done.returncode == 0, done.stderr
  assert (
    "reader/encoder/layer_0/down/kernel [48, 24] <- "
    "bert.encoder.layer.0.output.dense.weight"
  ) in done.stdout
  assert models.load(run)[0].pooling == "mean"
  done = command_server.run(
    [
      *(*python, "realm_jax.export_weights", "--to=hf_bert"),
      *(f"--model_dir={run}", f"--output_dir={out}"),
    ]
  )
  assert done.returncode == 0, done.stderr
  assert (
    "bert.encoder.layer.0.output.dense.weight [24, 48] <- "
    "reader/encoder/layer_0/down/kernel"
  ) in done.stdout
  # BERT has no span head.
  left = done.stdout.partition("not written")[2]
  assert "reader/span_head/projection/kernel [24, 512]" in left
  models.assert_same_bits(models.tensors(out), models.tensors(home))
  assert (out / "vocab.txt").read_bytes() == (home / "vocab.txt").read_bytes()

  retriever, reader = models.load(run)
  other = retriever.clone(projection_size=5)
  with pytest.raises(CheckpointError, match="does not fit this model"):
    exporting.export_weights(
      run, other, reader, tmp_path / "other", to="sentence_transformers"
    )
  assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"shared_towers": False}, "two towers"),
    # [PAD] is a token that no text has.
    ({"query_prefix": (0,)}, "query prefix"),
  ],
)
def test_what_cannot_be_expressed_is_refused(changes, word):
  model = models.bound(models.RETRIEVER.clone(**changes))
  with pytest.raises(WeightsError, match=word):
    exporting.plan_export(model, to="sentence_transformers")
