"""Exports: what was imported comes out again, and what goes out comes back."""

import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import linen as nn

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.checkpoints.vocabulary import VOCABULARY, vocabulary_digest
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import Exported
from realm_jax.conversion.exporting import export_weights
from realm_jax.conversion.hf_bert_export import plan_hf_bert_export
from realm_jax.conversion.hf_realm_export import plan_hf_realm_export
from realm_jax.conversion.importing import import_weights
from realm_jax.conversion.sentence_transformers import read_sentence_model
from realm_jax.conversion.vocabulary import vocabulary_of
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from tests.conversion import hf_bert_files as files
from tests.conversion.imported import load

_BERT = BertConfig(
  hidden_size=8,
  num_layers=2,
  num_heads=2,
  intermediate_size=12,
  max_positions=64,
)
_RETRIEVER = Retriever(bert=_BERT, projection_size=4)
_READER = Reader(bert=_BERT, joint_length=40, span_size=6, max_answer_width=4)


def _vocabulary():
  return vocabulary_of(tuple(files.pieces()))


@functools.cache
def _params(retriever, reader):
  """Random parameters, none of them zero or one."""
  words = _vocabulary()
  settings = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
  tokens = jnp.ones((1, 4), jnp.int32)

  def init(key):
    return {
      "retriever": retriever.for_vocabulary(**settings).init(
        key, tokens, tokens
      )["params"],
      "reader": reader.for_vocabulary(**settings).init(
        key, tokens, tokens[:, None], tokens[:, :1]
      )["params"],
    }

  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes
  )


def _save(model_dir, retriever=_RETRIEVER, reader=_READER):
  """A run of this project's own, with the vocabulary beside it."""
  params = _params(retriever, reader)
  store = CheckpointStore(model_dir, read_only=False)
  loop = {
    "generation": np.int64(-1),
    VOCABULARY: vocabulary_digest(_vocabulary().sha256),
  }
  store.save(7, {**params, "loop": loop})
  store.close()
  lines = "\n".join(files.pieces()) + "\n"
  (model_dir / "vocab.txt").write_text(lines, encoding="utf-8")
  return params


def _export(
  model_dir, output_dir, retriever=_RETRIEVER, reader=_READER, **choices
):
  return export_weights(
    model_dir=model_dir,
    output_dir=output_dir,
    retriever=retriever,
    reader=reader,
    **choices,
  )


def _assert_same_bits(one, two):
  assert jax.tree.structure(one) == jax.tree.structure(two)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def _tensors(directory):
  return safetensors.numpy.load_file(directory / "model.safetensors")


# ---- Out and back in ---------------------------------------------------------


@pytest.mark.parametrize(
  ("model", "retriever"),
  [
    ("embedder", _RETRIEVER),
    ("scorer", _RETRIEVER),
    ("scorer", _RETRIEVER.clone(shared_towers=False)),
    ("encoder", _RETRIEVER),
    ("reader", _RETRIEVER),
    ("open_qa", _RETRIEVER),
  ],
)
def test_a_realm_comes_back_bit_for_bit(tmp_path, model, retriever):
  params = _save(tmp_path / "run", retriever)
  _export(
    tmp_path / "run", tmp_path / "out", retriever, to="hf_realm", model=model
  )
  import_weights("hf_realm", str(tmp_path / "out"), tmp_path / "back")
  back = load(tmp_path / "back")
  if "retriever" in back.params:
    _assert_same_bits(back.params["retriever"], params["retriever"])
    assert back.retriever.shared_towers == retriever.shared_towers
    assert back.retriever.projection_size == 4
    assert back.retriever.projection_norm_eps == 1e-12
  if "reader" in back.params:
    wanted = dict(params["reader"])
    got = dict(back.params["reader"])
    if model == "encoder":
      del wanted["span_head"], got["span_head"]
    _assert_same_bits(got, wanted)
    assert back.reader.bert.activation == "gelu_tanh"
  if model in ("reader", "open_qa"):
    assert back.reader.joint_length == 40
    assert back.reader.span_size == 6
    assert back.reader.span_norm_eps == 1e-3
    assert back.reader.max_answer_width == 4


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_a_tower_comes_back_bit_for_bit(tmp_path, pooling):
  retriever = Retriever(bert=_BERT, projection_size=None, pooling=pooling)
  params = _save(tmp_path / "run", retriever)
  _export(
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
  _assert_same_bits(back.params["retriever"], params["retriever"])
  assert dataclasses.replace(
    back.retriever.bert, vocab_size=None, separator_id=None
  ) == dataclasses.replace(
    _BERT, attention_mask_value=float(np.finfo(np.float32).min)
  )


def test_two_towers_come_back_from_two_directories(tmp_path):
  retriever = Retriever(
    bert=_BERT, projection_size=None, pooling="cls", shared_towers=False
  )
  params = _save(tmp_path / "run", retriever)
  settings = {"to": "hf_bert", "part": "retriever"}
  with pytest.raises(ConversionError, match="--tower=query or --tower=block"):
    _export(tmp_path / "run", tmp_path / "none", retriever, **settings)
  for tower in ("query", "block"):
    _export(
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
  _assert_same_bits(back, params["retriever"])


def test_a_reader_comes_back_but_for_its_span_head(tmp_path):
  params = _save(tmp_path / "run")
  report = _export(
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
    _assert_same_bits(back[name], params["reader"][name])


# ---- In and back out ---------------------------------------------------------


def test_an_import_is_exported_as_it_was(tmp_path):
  weights = files.tensors(prefix="bert.", pooler=False, head=True)
  files.write(tmp_path / "home", weights)
  import_weights(
    "hf_bert", str(tmp_path / "home"), tmp_path / "run", parts=["reader"]
  )
  model = load(tmp_path / "run")
  _export(
    tmp_path / "run",
    tmp_path / "out",
    model.retriever,
    model.reader,
    to="hf_bert",
    part="reader",
  )
  _assert_same_bits(_tensors(tmp_path / "out"), weights)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  of_home = files.config(architectures=["BertForMaskedLM"])
  assert of_home.items() <= config.items()
  assert (tmp_path / "out" / "vocab.txt").read_bytes() == (
    tmp_path / "home" / "vocab.txt"
  ).read_bytes()
  tokenizer = (tmp_path / "out" / "tokenizer_config.json").read_text()
  assert json.loads(tokenizer)["do_lower_case"] is True


def test_a_realm_has_the_names_of_transformers(tmp_path):
  params = _save(tmp_path / "run")
  _export(tmp_path / "run", tmp_path / "out", to="hf_realm", model="open_qa")
  tensors = _tensors(tmp_path / "out")
  tower, reader = params["retriever"]["tower"], params["reader"]
  for name, array in {
    "embedder.cls.dense.weight": tower["projection"]["kernel"].T,
    "embedder.cls.LayerNorm.weight": tower["projection_norm"]["scale"],
    "embedder.realm.pooler.dense.bias": tower["pooler"]["bias"],
    "reader.realm.encoder.layer.1.output.dense.weight": reader["encoder"][
      "layer_1"
    ]["down"]["kernel"].T,
    "reader.cls.predictions.bias": reader["masked_lm_head"]["bias"],
    "reader.qa_outputs.dense_intermediate.weight": reader["span_head"][
      "projection"
    ]["kernel"].T,
    "reader.qa_outputs.layer_normalization.bias": reader["span_head"]["norm"][
      "bias"
    ],
    "reader.qa_outputs.dense_output.bias": reader["span_head"]["score"]["bias"],
  }.items():
    np.testing.assert_array_equal(tensors[name], array)


# ---- What cannot be said -----------------------------------------------------


def _exported(retriever):
  words = _vocabulary()
  settings = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
  return Exported(
    retriever.for_vocabulary(**settings),
    _READER.for_vocabulary(**settings),
    words,
  )


def test_sentence_transformers_is_told_where_it_can_be(tmp_path):
  words = _vocabulary()
  prefix = tuple(words.encode("where was"))
  retriever = Retriever(
    bert=_BERT,
    projection_size=None,
    pooling="mean",
    normalize=True,
    query_prefix=prefix,
    title_separator=False,
    token_types=False,
  )
  plan = plan_hf_bert_export(_exported(retriever), part="retriever", tower=None)
  for name, content in plan.files.items():
    if content is None:
      (tmp_path / name).mkdir()
    else:
      files.write_json(tmp_path / name, content)
  sentence = read_sentence_model(tmp_path)
  assert sentence is not None
  assert (sentence.pooling, sentence.normalize) == ("mean", True)
  assert tuple(words.encode(sentence.query_prompt)) == prefix
  assert sentence.block_prompt == ""
  assert (tmp_path / "2_Normalize").is_dir()

  # With a [SEP] after the title, it would read something else.
  other = _exported(retriever.clone(title_separator=True))
  plan = plan_hf_bert_export(other, part="retriever", tower=None)
  assert "modules.json" not in plan.files
  assert any("no modules.json" in note for note in plan.notes)


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"pooling": "mean"}, "pooling='mean'"),
    ({"projection_size": None}, "no projection"),
    ({"normalize": True}, "normalize=True"),
    ({"score_scale": 2.0}, "score_scale=2.0"),
    ({"projection_norm_eps": 1e-3}, "projection_norm_eps=0.001"),
    ({"token_types": False}, "token_types=False"),
  ],
)
def test_what_transformers_realm_cannot_be_is_refused(changes, said):
  model = _exported(_RETRIEVER.clone(**changes))
  with pytest.raises(ConversionError, match=said):
    plan_hf_realm_export(model, name="scorer", tower=None)


def test_a_projection_is_no_bert(tmp_path):
  _save(tmp_path / "run")
  with pytest.raises(ConversionError, match="projects to 4"):
    _export(tmp_path / "run", tmp_path / "out", to="hf_bert", part="retriever")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("choices", "said"),
  [
    ({"to": "hf_bert"}, "--part"),
    ({"to": "hf_realm"}, "--model"),
    ({"to": "hf_bert", "model": "reader"}, "--model=reader"),
    ({"to": "onnx"}, "--to=onnx"),
    ({"to": "hf_bert", "part": "reader", "tower": "query"}, "--tower=query"),
  ],
)
def test_a_choice_that_is_missing_or_wrong_is_said(tmp_path, choices, said):
  _save(tmp_path / "run")
  with pytest.raises(ConversionError, match=said):
    _export(tmp_path / "run", tmp_path / "out", **choices)


def test_another_model_or_vocabulary_is_refused(tmp_path):
  _save(tmp_path / "run")
  other = _RETRIEVER.clone(projection_size=5)
  settings = {"to": "hf_realm", "model": "embedder"}
  with pytest.raises(CheckpointError, match="does not fit this model"):
    _export(tmp_path / "run", tmp_path / "out", other, **settings)
  pieces = files.pieces()
  pieces[9], pieces[10] = pieces[10], pieces[9]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
  with pytest.raises(CheckpointError, match="another vocabulary"):
    _export(
      tmp_path / "run",
      tmp_path / "out",
      vocab=tmp_path / "vocab.txt",
      **settings,
    )
  (tmp_path / "run" / "vocab.txt").unlink()
  with pytest.raises(ConversionError, match="VOCAB"):
    _export(tmp_path / "run", tmp_path / "out", **settings)


@pytest.mark.slow
def test_the_command_goes_with_an_imports_own_files(
  tmp_path, project_dir, command_environment
):
  files.write(tmp_path / "home", files.tensors())
  import_weights(
    "hf_bert", str(tmp_path / "home"), tmp_path / "run", parts=["retriever"]
  )
  done = subprocess.run(
    [
      *(sys.executable, "-m", "realm_jax.export_weights", "--to=hf_bert"),
      *("--part=retriever", f"--output_dir={tmp_path / 'out'}"),
      f"--gin_file={tmp_path / 'run' / 'model.gin'}",
      "--gin_file=gin/runs/export.gin",
      f"--gin.MODEL_DIR={str(tmp_path / 'run')!r}",
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
  _assert_same_bits(_tensors(tmp_path / "out"), files.tensors())
