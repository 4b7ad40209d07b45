"""An exported retriever computes in sentence-transformers what it does here.

The vectors are the library's: see `tests/golden/make_sentence_transformers.py`.
"""

import json

import numpy as np
import pytest

from benchmarks.agreement import imported_model
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.hugging_face.sentence_transformers.exporting import (
  plan_sentence_export,
)
from realm_jax.conversion.hugging_face.sentence_transformers.reading import (
  read_sentence_model,
)
from realm_jax.conversion.planning import ImportSource
from tests.conversion import exported
from tests.conversion.hugging_face import sentence_models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def golden(project_dir):
  return project_dir / "tests" / "golden" / "sentence_transformers"


def _import(directory, **options):
  source = ImportSource("hf_bert", directory, parts=["retriever"], **options)
  return imported_model.load(plan_hf_bert(source, TowerOptions()))


@pytest.mark.parametrize("name", sentence_models.RETRIEVERS)
def test_the_library_has_read_what_is_exported(golden, tmp_path, name):
  sentence_models.export(name, tmp_path / name)
  written = [p for p in (tmp_path / name).rglob("*") if p.is_file()]
  for path in written:
    there = golden / path.relative_to(tmp_path)
    assert path.read_bytes() == there.read_bytes(), path
  held = [p for p in (golden / name).rglob("*") if p.suffix != ".npz"]
  assert len(written) == len([p for p in held if p.is_file()])


@pytest.mark.parametrize(
  ("name", "block_name"),
  [
    ("query_tower", "block_tower"),
    ("cls_without_types", None),
    ("mean_of_one_text", None),
  ],
)
def test_tokens_vectors_and_parameters(golden, name, block_name):
  block_dir = golden / block_name if block_name else None
  model = _import(golden / name, block_input=block_dir)
  exported.assert_same_bits(
    model.params["retriever"], sentence_models.params(name)
  )
  ours = sentence_models.RETRIEVERS[name]
  for field in ("pooling", "normalize", "score_scale", "query_prefix"):
    assert getattr(model.retriever, field) == getattr(ours, field), field
  if ours.projection_size is not None:
    assert model.retriever.projection_norm_eps == 1e-12
  for side, embed, prepare in (
    ("query", model.query_vectors, model.retriever.query_input),
    ("block", model.block_vectors, model.retriever.block_input),
  ):
    folder = block_dir if block_dir and side == "block" else golden / name
    if not (folder / f"{side}.npz").exists():
      continue
    with np.load(folder / f"{side}.npz", allow_pickle=False) as arrays:
      theirs = dict(arrays)
    ids = sentence_models.token_ids(side)
    tokens = theirs["token_ids"]
    prepared = np.asarray(prepare(ids))
    np.testing.assert_array_equal(prepared[:, : tokens.shape[1]], tokens)
    assert not prepared[:, tokens.shape[1] :].any()
    np.testing.assert_allclose(embed(ids), theirs["vectors"], atol=1e-5)
    # Type 1 follows the first [SEP] of a pair, if the retriever has types.
    is_sep = tokens == sentence_models.WORDS.sep_id
    after_sep = np.cumsum(is_sep, axis=1) - is_sep > 0
    types = (after_sep & (tokens != 0)) * ours.token_types
    np.testing.assert_array_equal(theirs["token_types"], types)


def test_a_module_with_settings_that_towers_lack_is_refused(golden, tmp_path):
  for path in (golden / "query_tower").rglob("*.json"):
    target = tmp_path / path.relative_to(golden / "query_tower")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
  dense = tmp_path / "3_Dense" / "config.json"
  config = sentence_models.read_json(dense)
  dense.write_text(json.dumps({**config, "use_residual": True}))
  with pytest.raises(ConversionError, match="use_residual=True"):
    read_sentence_model(tmp_path)
  dense.write_text(json.dumps(config))
  settings = tmp_path / "realm_jax.json"
  settings.write_text(json.dumps({"token_types": "yes"}))
  with pytest.raises(ConversionError, match="token_types='yes'"):
    read_sentence_model(tmp_path)
  settings.write_text(json.dumps({"colour": 1}))
  with pytest.raises(ConversionError, match="colour"):
    read_sentence_model(tmp_path)


def test_what_cannot_be_expressed_or_is_not_chosen_is_said():
  retriever = sentence_models.RETRIEVERS["query_tower"]
  with pytest.raises(ConversionError, match="--tower=query or --tower=block"):
    plan_sentence_export(exported.model(retriever), None)
  # [PAD] is a token that no text has.
  other = sentence_models.RETRIEVERS["mean_of_one_text"]
  model = exported.model(other.clone(query_prefix=(0,)))
  with pytest.raises(ConversionError, match="the query prefix"):
    plan_sentence_export(model, None)
