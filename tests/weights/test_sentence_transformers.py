"""What sentence-transformers says beside BERT's weights, read and written.

The vectors of exported retrievers are the library's: see
`tests/golden/make_sentence_transformers.py`.
"""

import numpy as np
import pytest

from benchmarks.agreement import imported_model
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import nested
from realm_jax.weights.plan import make_plan
from tests.weights import exported, sentence_models
from tests.weights import hf_files as files
from tests.weights.imported import read

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("normalize", [True, False])
def test_modules_are_followed_but_flags_go_before_them(tmp_path, normalize):
  files.write(tmp_path, files.tensors())
  files.write_sentence_modules(tmp_path, normalize=normalize)
  found = read("hf_bert", tmp_path, score_scale=20.0)
  retriever = found.plan.model.retriever
  assert (retriever.pooling, retriever.normalize) == ("mean", normalize)
  assert retriever.score_scale == 20.0
  # Title and body are one text, of one type.
  assert not retriever.title_separator
  assert not retriever.token_types
  choice = {"pooling": "cls", "normalize": False, "token_types": True}
  retriever = read("hf_bert", tmp_path, **choice).plan.model.retriever
  assert {name: getattr(retriever, name) for name in choice} == choice


def test_texts_before_queries_and_blocks_become_ids(tmp_path):
  files.write(tmp_path, files.tensors())
  files.write_sentence_modules(tmp_path)
  files.write_json(
    tmp_path / "config_sentence_transformers.json",
    {"prompts": {"query": "where was ", "passage": "the bridge "}},
  )
  pieces = files.pieces()
  where, was, bridge = (pieces.index(w) for w in ("where", "was", "bridge"))
  found = read("hf_bert", tmp_path, block_prefix="bridge")
  assert found.plan.model.retriever.query_prefix == (where, was)
  # The flag goes before the prompt.
  assert found.plan.model.retriever.block_prefix == (bridge,)


@pytest.fixture(scope="module")
def golden(project_dir):
  return project_dir / "tests" / "golden" / "sentence_transformers"


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
  plan = make_plan(
    ImportConfig(
      "hf_bert", golden / name, block_input=block_dir, parts=["retriever"]
    )
  )
  exported.assert_same_bits(
    nested(plan.load()[0])["retriever"], sentence_models.params(name)
  )
  model = imported_model.load(plan)
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
