"""An imported MODEL_DIR serves every command; a failed one leaves nothing."""

import fnmatch
import json
import shutil
import sys
import types

import numpy as np
import pytest

from harness.jobs import Job, running, wait_until
from realm_jax import configuration
from realm_jax.configuration.bindings import Reference
from realm_jax.storage.atomic import TargetError
from realm_jax.training.config import TrainConfig
from realm_jax.weights import WeightsError
from realm_jax.weights.mapped_weights import flattened, nested
from tests.integration.commands import FUNCTIONS
from tests.weights import models
from tests.weights.test_unpickling import write_torch_file

_BERT = models.GOLDEN / "hf_bert" / "masked_lm"


def test_its_config_is_the_same_model_with_recipes_and_names(tmp_path):
  retriever = models.RETRIEVER.clone(
    pooling="cls", normalize=True, score_scale=20.0, block_prefix=(5, 6)
  )
  reader = models.READER.clone(span_norm_eps=1e-2)
  record = Reference(
    TrainConfig, kept={"retriever": retriever, "reader": reader}
  )
  configuration.Kept.of(record).write(tmp_path)
  function = FUNCTIONS["pretrain"]
  recipes = [str(tmp_path / "config.json"), "gin/runs/pretrain.gin"]
  bindings = ["MODEL_DIR = ''", "CORPUS_DIR = ''"]
  parsed = configuration.parsed(function, recipes, bindings)
  assert parsed.build(function).retriever == retriever
  # Recipes may have a joint length of their own.
  same = {"joint_length": reader.joint_length}
  assert parsed.build(function).reader.clone(**same) == reader
  bindings += ["DROPOUT_RATE = 0.0", "SCORE_SCALE = 3.0", "JOINT_LENGTH = 33"]
  parsed = configuration.parsed(function, recipes, bindings)
  changed = parsed.build(function).retriever
  assert (changed.score_scale, changed.bert.dropout_rate) == (3.0, 0.0)
  assert changed.projection_dropout_rate == 0.0
  assert parsed.build(function).reader.joint_length == 33


def test_layers_are_stacked_in_their_order_and_come_back():
  path = "reader/encoder/layer_{}/up/bias"
  flat = {path.format(i): np.full(2, i) for i in range(12)}
  tree = nested(flat)
  encoder = tree["reader"]["encoder"]
  assert encoder["layers"]["up"]["bias"][:, 0].tolist() == [*range(11)]
  assert encoder["last_layer"]["up"]["bias"].tolist() == [11, 11]
  models.assert_same_bits(flattened(tree), flat)


def test_a_model_on_the_hub_is_fetched_by_its_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  # A module of None cannot be imported.
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(WeightsError, match=r"pip install 'realm_jax\[hub\]'"):
    models.read("hf_bert", "lovelace/bert")
  commit, cache = "a1b2c3", tmp_path / "cache"
  repository = models.copy("hf_bert/masked_lm", tmp_path / "repository")
  models.write_sentence_modules(repository)
  # A module that has no other weights.
  write_torch_file(repository / "1_Pooling" / "pytorch_model.bin", {}, {})

  def snapshot_download(name, *, revision, allow_patterns):
    if name != "lovelace/bert" or revision not in ("v1", commit):
      raise FileNotFoundError("it is in no cache, and the network is away")
    for path in repository.rglob("*.*"):
      place = str(path.relative_to(repository))
      if any(fnmatch.fnmatchcase(place, one) for one in allow_patterns):
        target = cache / commit / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return str(cache / commit)

  hub = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
  for name, revision in (("bort", "v1"), ("bert", "v2")):
    with pytest.raises(WeightsError, match="network is away"):
      models.read("hf_bert", f"lovelace/{name}", revision=revision)
  with pytest.raises(WeightsError, match=r"on this disk.*v1.*leave the flag"):
    models.read("hf_bert", str(_BERT), revision="v1")
  options = {"parts": ["retriever"], "revision": "v1"}
  models.import_weights("hf_bert", "lovelace/bert", tmp_path / "run", **options)
  assert (cache / commit / "model.safetensors").exists()
  assert not (cache / commit / "pytorch_model.bin").exists()
  assert (cache / commit / "1_Pooling" / "pytorch_model.bin").exists()
  assert json.loads((tmp_path / "run/imported.json").read_text()) == {
    "format": "hf_bert",
    "input": "lovelace/bert",
    "parts": ["retriever"],
    "revision": commit,
  }


# --- What goes wrong ------------------------------------------------------


@pytest.mark.parametrize(
  ("options", "word"),
  [
    ({"output_dir": "old/run"}, "checkpoints already"),
    ({"corpus_dir": "old"}, r"corpus\.json.*--corpus_dir"),
    ({"path": "gs://bucket/bert"}, "in a bucket"),
    ({"block_records": "a", "index": "exact"}, "--block_records, --index with"),
  ],
)
def test_a_choice_that_does_not_fit_leaves_nothing(tmp_path, options, word):
  (tmp_path / "old" / "run" / "checkpoints").mkdir(parents=True)
  (tmp_path / "old" / "corpus.json").write_text("{}")
  arguments = {"path": _BERT, "output_dir": "run"} | options
  for name in ("output_dir", "corpus_dir"):
    if name in arguments:
      arguments[name] = tmp_path / arguments[name]
  with pytest.raises((WeightsError, TargetError), match=word):
    models.import_weights("hf_bert", **arguments)
  assert [path.name for path in tmp_path.iterdir()] == ["old"]


_STUCK = """
import sys, time
from realm_jax.checkpoints.store import CheckpointStore
from tests.weights.models import import_weights

def stick(self, step, items):
  print("writing", flush=True)
  time.sleep(600)
CheckpointStore.save = stick
import_weights("hf_bert", sys.argv[1], sys.argv[2], parts=["retriever"])
"""


@pytest.mark.slow
def test_a_killed_import_leaves_no_model_and_is_cleared_away(
  tmp_path, quick_jobs
):
  target, log = tmp_path / "run", tmp_path / "log"
  command = [sys.executable, "-c", _STUCK, str(_BERT), str(target)]
  child = Job("import", command, log=log)
  with running(child):
    wait_until(lambda: "writing\n" in child.last_output(), what="write")
    with pytest.raises(TargetError, match="another process"):
      models.import_weights("hf_bert", _BERT, target)
  log.unlink()
  assert not target.exists()
  models.import_weights("hf_bert", _BERT, target, parts=["retriever"])
  assert [p.name for p in tmp_path.iterdir()] == ["run"]
