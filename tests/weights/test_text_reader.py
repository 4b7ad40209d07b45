"""A retriever and a T5 that are imported answer questions without training."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn

import realm_jax
from realm_jax.models.t5 import T5, T5Config
from realm_jax.weights import WeightsError
from realm_jax.weights.exporting import export_weights
from realm_jax.weights.t5 import export_t5
from tests.json_lines import write_lines
from tests.text.test_sentencepieces import MODEL
from tests.weights import models

pytestmark = pytest.mark.slow

_TEXTS = [
  {"title": "the river", "text": "the river is in the north . it is a city ."},
  {"title": "a city", "text": "a city was in the river ."},
]


@pytest.fixture(scope="module")
def flan(tmp_path_factory) -> Path:
  """Hugging Face's files of a T5 1.1 with random weights."""
  config = T5Config(
    vocab_size=128,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    head_size=8,
    intermediate_size=24,
    activation="gelu_tanh",
    gated=True,
    tied_head=False,
  )
  folder = tmp_path_factory.mktemp("flan")
  shapes = jax.eval_shape(T5(config).init_parameters, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: rng.normal(0, 0.3, leaf.shape).astype("f4"), nn.unbox(shapes)
  )
  export_t5(config, params, folder)
  (folder / "spiece.model").write_bytes(MODEL.read_bytes())
  return folder


def test_the_commands_of_the_readme_answer(flan, tmp_path, command_server):
  def run(command: str, *flags: str) -> str:
    python = sys.executable, "-m", f"realm_jax.{command}"
    done = command_server.run([*python, *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout

  write_lines(tmp_path / "text.jsonl", _TEXTS)
  bert = models.GOLDEN / "hf_bert" / "with_pooler"
  run(
    *("import_weights", "--from=hf_bert", f"--input={bert}"),
    *("--output_dir=minilm", "--parts=retriever"),
  )
  run(
    *("import_weights", "--from=hf_t5", f"--input={flan}"),
    *("--retriever=minilm", "--output_dir=run"),
  )
  run(
    *("build_corpus", "--input=text.jsonl", "--output_dir=corpus"),
    *("--vocab=run/vocab.txt", "--view=t5:run/spiece.model"),
    "--block_length=32",
  )
  of_run = "--model_dir=run", "--corpus_dir=corpus"
  run("build_index", "--once", "--gin.INDEX=%EXACT", *of_run)
  settings = "--gin.NUM_READ=2", "--gin.BLOCK_LENGTH=32"
  printed = run("ask", *of_run, *settings, "where is the river ?")
  assert printed.startswith("1. ") and "[block " in printed
  run_of_import = realm_jax.load(
    tmp_path / "run",
    corpus_dir=tmp_path / "corpus",
    bindings=["NUM_READ = 2", "BLOCK_LENGTH = 32"],
  )
  assert run_of_import.kinds == {"question"}
  # The same weights go back.
  run("export_weights", "--to=hf_t5", "--model_dir=run", "--output_dir=out")
  for name, tensor in models.tensors(flan).items():
    np.testing.assert_array_equal(
      models.tensors(tmp_path / "out")[name], tensor
    )


def test_a_run_in_a_bucket_gets_a_reader_that_goes_back_there(
  flan, object_store, tmp_path
):
  bert = models.GOLDEN / "hf_bert" / "with_pooler"
  run, start = tmp_path / "run", object_store.path("minilm")
  models.import_weights("hf_bert", bert, start, parts=["retriever"])
  models.import_weights("hf_t5", flan, run, retriever=start)
  arguments = run, *models.load(run), object_store.path("out")
  export_weights(*arguments, to="hf_t5")
  written = object_store.read("out/model.safetensors")
  assert written == (flan / "model.safetensors").read_bytes()
  with pytest.raises(WeightsError, match="--to=hf_t5 for"):
    export_weights(*arguments, to="hf_bert")
  with pytest.raises(WeightsError, match="--tower=query: a reader has none"):
    export_weights(*arguments, to="hf_t5", tower="query")
