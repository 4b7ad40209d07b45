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


def _swapped():
  pieces = files.pieces()
  pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
  return pieces


def _cased(folder):
  module(folder / "in", **REALM)
  pieces = [*files.pieces()[:-1], "Velt"]
  files.write_pieces(folder / "in" / "assets" / "vocab.txt", pieces)


def _without_vocabulary(folder):
  fine_tuned(folder / "in", embedder_scope="module/")
  (folder / "in" / "vocab.txt").unlink()


def _short_vocabulary(folder):
  _without_vocabulary(folder)
  files.write_pieces(folder / "short.txt", files.pieces()[:-1])
  return {"vocab": str(folder / "short.txt")}


def _two_vocabularies(folder):
  module(folder / "in" / "embedder", **REALM)
  files.write_module(folder / "in" / "bert", files.bert())
  files.write_pieces(
    folder / "in" / "bert" / "assets" / "vocab.txt", _swapped()
  )


def _two_sizes(folder):
  module(folder / "in" / "embedder", **REALM)
  files.write_module(folder / "in" / "bert", files.bert(layers=1))


def _two_projections(folder):
  module(folder / "in", **REALM)
  module(folder / "other", **ICT)
  return {"block_input": str(folder / "other")}


def _block_tower_alone(folder):
  module(folder / "other", **REALM)
  files.write_module(folder / "in" / "bert", files.bert())
  return {"block_input": str(folder / "other")}


def _bad_length(folder):
  fine_tuned(folder / "in", embedder_scope="module/")
  (folder / "in" / "params.json").write_text('{"reader_seq_len": "288"}')


def _useless_flag(folder):
  module(folder / "in", **REALM)
  return {"pooling": "mean"}


def _no_reader(folder):
  module(folder / "in", **REALM)
  return {"parts": ["reader"]}


def _no_realm(folder):
  files.save(folder / "in" / "model.ckpt", {"w": np.ones(3, np.float32)})


@pytest.mark.parametrize(
  ("write", "named"),
  [
    (_cased, "capitals, such as 'Velt'"),
    (_without_vocabulary, "pass --vocab"),
    (_short_vocabulary, "word embeddings"),
    (_two_vocabularies, "different vocabularies"),
    (_two_sizes, "different configuration"),
    (_two_projections, "project differently"),
    (_block_tower_alone, "is for a retriever"),
    (_bad_length, r"params\.json has reader_seq"),
    (_useless_flag, "--pooling"),
    (_no_reader, "this input gives retriever"),
    (_no_realm, "TF-Hub module of REALM"),
  ],
  ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_does_not_go_together_is_refused(tmp_path, write, named):
  options = write(tmp_path) or {}
  with pytest.raises(ConversionError, match=named):
    run_import(tmp_path / "in", tmp_path / "run", **options)
  assert not (tmp_path / "run").exists()


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
