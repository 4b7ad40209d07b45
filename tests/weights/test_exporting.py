"""Towers and readers go out and come back, bit for bit."""

import contextlib
import dataclasses
import functools
import sys

import jax
import numpy as np
import pytest
from flax import linen as nn

from harness.agreement.imported_model import ImportedModel, load
from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.models.components import embed_hop_queries, embed_queries
from realm_jax.models.sequences import padded
from realm_jax.models.t5 import T5, T5Config
from realm_jax.text.vocabulary_files import write_vocabulary
from realm_jax.weights import WeightsError, exporting
from realm_jax.weights.mapped_weights import nested
from realm_jax.weights.t5 import export_t5, read_t5
from tests.models.test_lora import LORA
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


def test_the_tower_of_a_second_search_is_exported_by_itself(tmp_path):
  retriever = models.RETRIEVER.clone(hop_length=24)
  *modules, words = model = models.bound(retriever, models.READER)
  flat = model.fresh_parameters(model.parameter_shapes(["retriever"]), seed=0)
  params = nested({path: x + 0.1 for path, x in flat.items()})
  write_vocabulary(tmp_path, words)
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    store.save(0, params)
  ids, to = np.arange(5, 29).reshape(3, 8), "sentence_transformers"
  for tower, embed in ((None, embed_queries), ("hop", embed_hop_queries)):
    out = tmp_path / str(tower)
    exporting.export_weights(tmp_path, retriever, None, out, to=to, tower=tower)
    theirs = load(models.read("hf_bert", out)).query_vectors(ids)
    embed = jax.jit(functools.partial(embed, modules[0]))
    vectors = embed(params["retriever"], ids)
    np.testing.assert_allclose(theirs, vectors, rtol=1e-4, atol=1e-4)
  with pytest.raises(WeightsError, match="no tower for a second search"):
    exporting.plan_export(models.bound(models.RETRIEVER), to=to, tower="hop")


def test_exports_with_lora_compute_what_the_run_does(tmp_path):
  lora = dataclasses.replace(LORA, modules_to_save=())
  bert = dataclasses.replace(models.BERT, lora=lora)
  retriever, reader = models.RETRIEVER.clone(bert=bert), models.READER
  reader = reader.clone(bert=bert)
  *modules, words = model = models.bound(retriever, reader)
  shapes = model.parameter_shapes(["retriever", "reader"])
  flat = model.fresh_parameters(shapes, seed=0)
  trained = ImportedModel(
    *modules, nested({p: x + 0.1 for p, x in flat.items()})
  )
  write_vocabulary(tmp_path, words)
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    store.save(0, trained.params)
  ids, masks = np.arange(5, 29).reshape(3, 8), np.ones((3, 1), int)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
  for to, read, value in (
    ("sentence_transformers", None, lambda one: one.query_vectors(ids)),
    (
      *("hf_bert", reader),
      lambda one: one.masked_lm_logits(ids, ids[:, None], masks),
    ),
  ):
    exporting.export_weights(tmp_path, retriever, read, tmp_path / to, to=to)
    close(value(load(models.read("hf_bert", tmp_path / to))), value(trained))

  t5 = T5Config(40, 8, 2, None, 2, 4, 12, lora=lora)
  params = nn.unbox(jax.jit(T5(t5).init_parameters)(jax.random.key(0)))
  params = jax.tree.map(lambda x: x + 0.1, params)
  export_t5(t5, params, tmp_path)
  close(
    *(
      jax.jit(T5(config).apply)({"params": params}, padded(ids), ids)
      for config, params in ((t5, params), read_t5(tmp_path)[:2])
    )
  )
