"""Towers and readers go out and come back, bit for bit."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.models.retriever import Retriever
from realm_jax.weights import WeightsError
from tests.weights import exported
from tests.weights import hf_files as files
from tests.weights.imported import import_weights, load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_a_tower_comes_back_bit_for_bit(tmp_path, pooling):
  retriever = Retriever(
    bert=exported.BERT, projection_size=None, pooling=pooling
  )
  params = exported.save(tmp_path / "run", retriever)
  settings = {"to": "hf_bert", "part": "retriever"}
  exported.export(tmp_path / "run", tmp_path / "out", retriever, **settings)
  choices = {"pooling": pooling, "parts": ["retriever"]}
  import_weights("hf_bert", tmp_path / "out", tmp_path / "back", **choices)
  back = load(tmp_path / "back")
  exported.assert_same_bits(back.params["retriever"], params["retriever"])
  assert dataclasses.replace(
    back.retriever.bert, vocab_size=None, separator_id=None
  ) == dataclasses.replace(
    exported.BERT, attention_mask_value=float(np.finfo(np.float32).min)
  )


@pytest.mark.parametrize("to", ["hf_bert", "sentence_transformers"])
def test_two_towers_come_back_from_two_directories(tmp_path, to):
  retriever = Retriever(
    bert=exported.BERT,
    projection_size=None if to == "hf_bert" else 4,
    shared_towers=False,
  )
  params = exported.save(tmp_path / "run", retriever)
  settings = {"to": to, "part": "retriever" if to == "hf_bert" else None}
  for tower in ("query", "block"):
    exported.export(
      tmp_path / "run", tmp_path / tower, retriever, tower=tower, **settings
    )
  import_weights(
    "hf_bert",
    tmp_path / "query",
    tmp_path / "back",
    block_input=tmp_path / "block",
    parts=["retriever"],
  )
  back = load(tmp_path / "back").params["retriever"]
  exported.assert_same_bits(back, params["retriever"])


def test_a_reader_comes_back_but_for_its_span_head(tmp_path):
  params = exported.save(tmp_path / "run")
  settings = {"to": "hf_bert", "part": "reader"}
  report = exported.export(tmp_path / "run", tmp_path / "out", **settings)
  left = report.partition("not written")[2]
  assert "reader/span_head/projection/kernel [8, 12]" in left
  assert "reader/encoder" not in left
  import_weights(
    "hf_bert", tmp_path / "out", tmp_path / "back", parts=["reader"]
  )
  back = load(tmp_path / "back").params["reader"]
  for name in ("encoder", "masked_lm_head"):
    exported.assert_same_bits(back[name], params["reader"][name])


def test_an_import_is_exported_as_it_was(tmp_path):
  weights = files.tensors(prefix="bert.", pooler=False, head=True)
  files.write(tmp_path / "home", weights)
  import_weights(
    "hf_bert", tmp_path / "home", tmp_path / "run", parts=["reader"]
  )
  model = load(tmp_path / "run")
  settings = {"to": "hf_bert", "part": "reader"}
  exported.export(
    tmp_path / "run",
    tmp_path / "out",
    model.retriever,
    model.reader,
    **settings,
  )
  exported.assert_same_bits(exported.tensors(tmp_path / "out"), weights)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  of_home = files.config(architectures=["BertForMaskedLM"])
  assert of_home.items() <= config.items()
  assert (tmp_path / "out" / "vocab.txt").read_bytes() == (
    tmp_path / "home" / "vocab.txt"
  ).read_bytes()


_TWO_TOWERS = exported.RETRIEVER.clone(shared_towers=False)
# [PAD] is a token that no text has.
_PREFIXED = exported.RETRIEVER.clone(query_prefix=(0,))
_EPSILON = exported.RETRIEVER.clone(projection_norm_eps=1e-3)


@pytest.mark.parametrize(
  ("retriever", "choices", "error", "word"),
  [
    (exported.RETRIEVER, {"to": "hf_bert"}, WeightsError, "--part"),
    (
      exported.RETRIEVER,
      {"to": "hf_bert", "part": "retriever"},
      WeightsError,
      "projects to 4",
    ),
    (
      exported.RETRIEVER,
      {"to": "hf_bert", "part": "reader", "tower": "query"},
      WeightsError,
      "--tower=query",
    ),
    (
      exported.RETRIEVER,
      {"to": "sentence_transformers", "part": "reader"},
      WeightsError,
      "--part=reader",
    ),
    (
      exported.RETRIEVER,
      {"to": "sentence_transformers", "tower": "query"},
      WeightsError,
      "are one",
    ),
    (_TWO_TOWERS, {"to": "sentence_transformers"}, WeightsError, "two towers"),
    (_PREFIXED, {"to": "sentence_transformers"}, WeightsError, "query prefix"),
    (_EPSILON, {"to": "sentence_transformers"}, WeightsError, "0.001"),
    (
      exported.RETRIEVER.clone(projection_size=5),
      {"to": "sentence_transformers"},
      CheckpointError,
      "does not fit this model",
    ),
  ],
)
def test_what_cannot_be_expressed_or_is_not_chosen_is_refused(
  tmp_path, retriever, choices, error, word
):
  exported.save(tmp_path / "run")
  with pytest.raises(error, match=word):
    exported.export(tmp_path / "run", tmp_path / "out", retriever, **choices)
  assert not (tmp_path / "out").exists()


def test_another_vocabulary_or_none_is_refused(tmp_path):
  exported.save(tmp_path / "run")
  places = tmp_path / "run", tmp_path / "out"
  settings = {"to": "sentence_transformers"}
  pieces = files.pieces()
  pieces[9], pieces[10] = pieces[10], pieces[9]
  other = tmp_path / "vocab.txt"
  other.write_text("\n".join(pieces), encoding="utf-8")
  with pytest.raises(CheckpointError, match="another vocabulary"):
    exported.export(*places, vocab=other, **settings)
  (tmp_path / "run" / "vocab.txt").unlink()
  with pytest.raises(WeightsError, match="VOCAB"):
    exported.export(*places, **settings)


def test_the_command_goes_with_an_imports_own_files(
  tmp_path, project_dir, command_environment
):
  files.write(tmp_path / "home", files.tensors())
  import_weights(
    "hf_bert", tmp_path / "home", tmp_path / "run", parts=["retriever"]
  )
  done = subprocess.run(
    [
      *(sys.executable, "-m", "realm_jax.export_weights", "--to=hf_bert"),
      *("--part=retriever", f"--output_dir={tmp_path / 'out'}"),
      f"--model_dir={tmp_path / 'run'}",
    ],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    timeout=180,
  )
  assert done.returncode == 0, done.stderr
  assert (
    "encoder.layer.0.output.dense.weight [8, 12] <- "
    "retriever/tower/encoder/layer_0/down/kernel"
  ) in done.stdout
  exported.assert_same_bits(exported.tensors(tmp_path / "out"), files.tensors())
