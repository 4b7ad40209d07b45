"""Towers and readers as BERT directories, out and back in, bit for bit."""

import dataclasses
import json

import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.models.retriever import Retriever
from tests.conversion import exported
from tests.conversion.hugging_face import bert_files as files
from tests.conversion.imported import import_weights, load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_a_tower_comes_back_bit_for_bit(tmp_path, pooling):
  retriever = Retriever(
    bert=exported.BERT, projection_size=None, pooling=pooling
  )
  params = exported.save(tmp_path / "run", retriever)
  exported.export(
    tmp_path / "run",
    tmp_path / "out",
    retriever,
    to="hf_bert",
    part="retriever",
  )
  import_weights(
    "hf_bert",
    str(tmp_path / "out"),
    tmp_path / "back",
    pooling=pooling,
    parts=["retriever"],
  )
  back = load(tmp_path / "back")
  exported.assert_same_bits(back.params["retriever"], params["retriever"])
  assert dataclasses.replace(
    back.retriever.bert, vocab_size=None, separator_id=None
  ) == dataclasses.replace(
    exported.BERT, attention_mask_value=float(np.finfo(np.float32).min)
  )


def test_two_towers_come_back_from_two_directories(tmp_path):
  retriever = Retriever(
    bert=exported.BERT, projection_size=None, pooling="cls", shared_towers=False
  )
  params = exported.save(tmp_path / "run", retriever)
  settings = {"to": "hf_bert", "part": "retriever"}
  with pytest.raises(ConversionError, match="--tower=query or --tower=block"):
    exported.export(tmp_path / "run", tmp_path / "none", retriever, **settings)
  for tower in ("query", "block"):
    exported.export(
      tmp_path / "run", tmp_path / tower, retriever, tower=tower, **settings
    )
  import_weights(
    "hf_bert",
    str(tmp_path / "query"),
    tmp_path / "back",
    block_input=str(tmp_path / "block"),
    parts=["retriever"],
  )
  back = load(tmp_path / "back").params["retriever"]
  exported.assert_same_bits(back, params["retriever"])


def test_a_reader_comes_back_but_for_its_span_head(tmp_path):
  params = exported.save(tmp_path / "run")
  report = exported.export(
    tmp_path / "run", tmp_path / "out", to="hf_bert", part="reader"
  )
  left = report.partition("not written")[2]
  assert "reader/span_head/projection/kernel [8, 12]" in left
  assert "reader/encoder" not in left
  import_weights(
    "hf_bert", str(tmp_path / "out"), tmp_path / "back", parts=["reader"]
  )
  back = load(tmp_path / "back").params["reader"]
  for name in ("encoder", "masked_lm_head"):
    exported.assert_same_bits(back[name], params["reader"][name])


def test_an_import_is_exported_as_it_was(tmp_path):
  weights = files.tensors(prefix="bert.", pooler=False, head=True)
  files.write(tmp_path / "home", weights)
  import_weights(
    "hf_bert", str(tmp_path / "home"), tmp_path / "run", parts=["reader"]
  )
  model = load(tmp_path / "run")
  exported.export(
    tmp_path / "run",
    tmp_path / "out",
    model.retriever,
    model.reader,
    to="hf_bert",
    part="reader",
  )
  exported.assert_same_bits(exported.tensors(tmp_path / "out"), weights)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  of_home = files.config(architectures=["BertForMaskedLM"])
  assert of_home.items() <= config.items()
  assert (tmp_path / "out" / "vocab.txt").read_bytes() == (
    tmp_path / "home" / "vocab.txt"
  ).read_bytes()
  tokenizer = (tmp_path / "out" / "tokenizer_config.json").read_text()
  assert json.loads(tokenizer)["do_lower_case"] is True


def test_a_projection_is_no_bert(tmp_path):
  exported.save(tmp_path / "run")
  with pytest.raises(ConversionError, match="projects to 4"):
    exported.export(
      tmp_path / "run", tmp_path / "out", to="hf_bert", part="retriever"
    )
  assert not (tmp_path / "out").exists()
