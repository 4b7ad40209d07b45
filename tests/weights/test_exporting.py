"""Towers and readers go out and come back, bit for bit."""

import json
import sys

import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.weights import WeightsError
from tests.weights import models

pytestmark = pytest.mark.slow


def test_the_commands_export_an_import_as_it_was(tmp_path, command_server):
  home = models.GOLDEN / "hf_bert" / "masked_lm"
  run, out, recipe = (tmp_path / name for name in ("run", "out", "towers.gin"))
  recipe.write_text(
    "from __gin__ import dynamic_registration\n"
    "from realm_jax.weights import formats\n"
    'formats.ImportConfig.pooling = "mean"\n'
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
  assert "pooling = 'mean'" in (run / "model.gin").read_text()
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
  of_home, config = (
    json.loads((folder / "config.json").read_text()) for folder in (home, out)
  )
  ours = {name: of_home.get(name) for name in config}
  assert config == ours
  assert (out / "vocab.txt").read_bytes() == (home / "vocab.txt").read_bytes()


_TWO_TOWERS = models.RETRIEVER.clone(shared_towers=False)
# [PAD] is a token that no text has.
_PREFIXED = models.RETRIEVER.clone(query_prefix=(0,))
_SENTENCE = {"to": "sentence_transformers"}


@pytest.mark.parametrize(
  ("retriever", "choices", "error", "word"),
  [
    (
      models.RETRIEVER,
      {"to": "hf_bert", "tower": "query"},
      WeightsError,
      "--tower=query",
    ),
    (_TWO_TOWERS, _SENTENCE, WeightsError, "two towers"),
    (_PREFIXED, _SENTENCE, WeightsError, "query prefix"),
    (
      models.RETRIEVER.clone(projection_size=5),
      _SENTENCE,
      CheckpointError,
      "does not fit this model",
    ),
  ],
)
def test_what_cannot_be_expressed_or_is_not_chosen_is_refused(
  tmp_path, retriever, choices, error, word
):
  models.save(tmp_path / "run")
  with pytest.raises(error, match=word):
    models.export(tmp_path / "run", tmp_path / "out", retriever, **choices)
  assert not (tmp_path / "out").exists()
