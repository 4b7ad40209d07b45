"""What of Google's releases is refused, and what a release need not have."""

import json

import numpy as np
import pytest

from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.realm import plan_tf_realm
from realm_jax.conversion.planning import ImportSource
from tests.conversion.google import checkpoint_files as files
from tests.conversion.google.realm_files import (
  ICT,
  REALM,
  fine_tuned,
  module,
  run_import,
)
from tests.conversion.imported import load

pytestmark = pytest.mark.slow


def test_a_cased_module_is_refused(tmp_path):
  module(tmp_path / "embedder", **REALM)
  pieces = [*files.pieces()[:-1], "Velt"]
  files.write_pieces(tmp_path / "embedder" / "assets" / "vocab.txt", pieces)
  with pytest.raises(ConversionError, match=r"capitals, such as 'Velt'"):
    run_import(tmp_path / "embedder", tmp_path / "run")


def test_a_vocabulary_must_be_there_and_be_the_models(tmp_path):
  fine_tuned(tmp_path / "nq", embedder_scope="module/")
  (tmp_path / "nq" / "vocab.txt").unlink()
  with pytest.raises(ConversionError, match=r"no vocabulary in .*pass --vocab"):
    run_import(tmp_path / "nq", tmp_path / "run")
  short = tmp_path / "short.txt"
  files.write_pieces(short, files.pieces()[:-1])
  with pytest.raises(ConversionError, match="word embeddings, and the vocab"):
    run_import(tmp_path / "nq", tmp_path / "run", vocab=str(short))
  files.write_pieces(tmp_path / "vocab.txt")
  run_import(
    tmp_path / "nq", tmp_path / "run", vocab=str(tmp_path / "vocab.txt")
  )


def test_two_vocabularies_are_one_too_many(tmp_path):
  module(tmp_path / "in" / "embedder", **REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert())
  pieces = files.pieces()
  pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
  files.write_pieces(tmp_path / "in" / "bert" / "assets" / "vocab.txt", pieces)
  with pytest.raises(ConversionError, match="different vocabularies"):
    run_import(tmp_path / "in", tmp_path / "run")


def test_encoders_of_different_sizes_are_refused(tmp_path):
  module(tmp_path / "in" / "embedder", **REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert(layers=1))
  with pytest.raises(ConversionError, match="different configuration"):
    run_import(tmp_path / "in", tmp_path / "run")


def test_towers_that_project_differently_are_refused(tmp_path):
  module(tmp_path / "one", **REALM)
  module(tmp_path / "other", **ICT)
  with pytest.raises(ConversionError, match="project differently"):
    run_import(
      tmp_path / "one", tmp_path / "run", block_input=str(tmp_path / "other")
    )


def test_a_configuration_beside_a_module_says_the_heads(tmp_path):
  module(tmp_path / "embedder", **REALM)
  (tmp_path / "embedder" / "bert_config.json").write_text(
    json.dumps(files.config(num_attention_heads=4))
  )
  run_import(tmp_path / "embedder", tmp_path / "run")
  assert load(tmp_path / "run").retriever.bert.num_heads == 4


def test_an_open_qa_reader_has_room_for_block_and_question(tmp_path):
  fine_tuned(tmp_path / "nq", embedder_scope="module/")
  checkpoint = tmp_path / "nq" / "export" / "best_default" / "checkpoint"
  (checkpoint / "bert_config.json").write_text(
    json.dumps(files.config(max_position_embeddings=512))
  )
  source = ImportSource("tf_realm", tmp_path / "nq")
  assert plan_tf_realm(source, TowerOptions()).reader.joint_length == 40
  (tmp_path / "nq" / "params.json").unlink()
  assert plan_tf_realm(source, TowerOptions()).reader.joint_length == 288 + 32


@pytest.mark.parametrize("value", [None, "288", 0])
def test_a_setting_that_is_no_number_is_refused(tmp_path, value):
  fine_tuned(tmp_path / "nq", embedder_scope="module/")
  (tmp_path / "nq" / "params.json").write_text(
    json.dumps({"reader_seq_len": value})
  )
  with pytest.raises(ConversionError, match=r"params\.json has reader_seq"):
    run_import(tmp_path / "nq", tmp_path / "run")


def test_a_block_tower_without_a_query_tower_is_refused(tmp_path):
  module(tmp_path / "embedder", **REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert())
  with pytest.raises(ConversionError, match="is for a retriever"):
    plan_tf_realm(
      ImportSource("tf_realm", tmp_path / "in", tmp_path / "embedder"),
      TowerOptions(),
    )


@pytest.mark.parametrize(
  ("options", "found"),
  [
    ({"pooling": "mean"}, "tf_realm takes no --pooling"),
    ({"tensor_prefix": "bert."}, "tf_realm takes no --tensor_prefix"),
    ({"parts": ["reader"]}, "this input gives retriever"),
  ],
)
def test_flags_of_no_use_are_refused(tmp_path, options, found):
  module(tmp_path / "embedder", **REALM)
  with pytest.raises(ConversionError, match=found):
    run_import(tmp_path / "embedder", tmp_path / "run", **options)


def test_what_is_not_realm_says_what_is_wanted(tmp_path):
  files.save(tmp_path / "x" / "model.ckpt", {"w": np.ones(3, np.float32)})
  with pytest.raises(ConversionError, match="want a TF-Hub module of REALM"):
    run_import(tmp_path / "x", tmp_path / "run")
  (tmp_path / "empty").mkdir()
  with pytest.raises(ConversionError, match=r"is .*empty the right --input"):
    run_import(tmp_path / "empty", tmp_path / "run")
