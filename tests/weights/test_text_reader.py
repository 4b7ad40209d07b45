"""A retriever and a T5 that are imported answer questions without training."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn

import realm_jax
from realm_jax.models.t5 import T5, T5Config
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
  params = jax.jit(T5(config).init_parameters)(jax.random.key(0))
  export_t5(config, nn.unbox(params), folder)
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
  for name, own in models.tensors(flan).items():
    np.testing.assert_array_equal(models.tensors(tmp_path / "out")[name], own)
  done = command_server.run(
    [
      *(sys.executable, "-m", "realm_jax.export_weights", "--to=hf_bert"),
      *("--model_dir=run", "--output_dir=other"),
    ],
    cwd=tmp_path,
  )
  assert done.returncode == 2 and "--to=hf_t5 for" in done.stderr
