"""What Google released of REALM and ORQA computes here what it says."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.realm import plan_tf_realm
from realm_jax.conversion.planning import ImportSource
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import load_newest
from tests.conversion.google import checkpoint_files as files
from tests.conversion.google.realm_files import (
  ICT,
  REALM,
  fine_tuned,
  module,
  release,
  run_import,
)
from tests.conversion.imported import load

pytestmark = pytest.mark.slow

_QUERY, _OTHER = [2, 9, 11, 3], [2, 14, 3]
_QUERIES = np.array([_QUERY, [*_OTHER, 0]], np.int32)
_BLOCK = [2, 10, 3, 7, 8, 21, 12, 3]


def _embed(model, token_ids, method="embed_queries"):
  embed = functools.partial(model.retriever.apply, method=method)
  return np.asarray(
    jax.jit(embed)({"params": model.params["retriever"]}, token_ids)
  )


@pytest.mark.parametrize(
  ("names", "eps"), [(REALM, 1e-12), (ICT, 1e-3)], ids=["realm", "ict"]
)
def test_a_retriever_module_embeds_as_it_was_trained(tmp_path, names, eps):
  variables = module(tmp_path / "embedder", **names)
  report = run_import(tmp_path / "embedder", tmp_path / "run")
  assert report.count(f"retriever: LayerNorm epsilon {eps:g}, the") == 1
  assert "cls/predictions/output_bias" in report.partition("left unused")[2]
  model = load(tmp_path / "run")
  assert set(model.params) == {"retriever"}
  assert model.retriever.projection_norm_eps == eps
  vector = functools.partial(
    files.vector,
    variables,
    scope=names["scope"],
    norm_name=names["norm"],
    eps=eps,
  )
  wanted = [vector(tokens) for tokens in (_QUERY, _OTHER)]
  found = _embed(model, _QUERIES)
  np.testing.assert_allclose(found, wanted, atol=2e-4)
  blocks = _embed(model, np.array([_BLOCK], np.int32), "embed_blocks")
  np.testing.assert_allclose(blocks, [vector(_BLOCK)], atol=2e-4)
  # With the other epsilon they would be others.
  other = functools.partial(vector, eps=1e-3 if eps == 1e-12 else 1e-12)
  assert abs(found[0] - other(_QUERY)).max() > 1e-2


def test_a_pre_trained_release_gives_retriever_and_reader(tmp_path):
  release = tmp_path / "cc_news_pretrained"
  module(release / "embedder", **REALM)
  reader = files.bert(seed=5)
  files.write_module(release / "bert", reader)
  report = run_import(release, tmp_path / "run")
  assert "bert/pooler/dense/kernel [128, 128]: readers have no pooler" in report
  assert "reader/span_head/projection/kernel" in report.partition("randomly")[2]
  model = load(tmp_path / "run")
  assert set(model.params) == {"retriever", "reader"}
  assert (model.reader.joint_length, model.reader.span_size) == (64, 256)
  logits, _ = jax.jit(model.reader.apply)(
    {"params": model.params["reader"]},
    np.array([[2, 9, 4, 3]], np.int32),
    np.array([[_BLOCK]], np.int32),
    np.array([[2]], np.int32),
  )
  wanted = files.masked_logits(reader, [2, 9, 4, 3, *_BLOCK[3:]], 2)
  np.testing.assert_allclose(logits[0, 0, 0], wanted, atol=1e-4)


@pytest.mark.parametrize(
  ("scope", "norm", "eps"),
  [
    ("module/module/module/", "LayerNorm", 1e-12),
    ("module/", "layer_normalization", 1e-3),
  ],
  ids=["realm", "orqa"],
)
def test_a_fine_tuned_model_reads_and_retrieves(tmp_path, scope, norm, eps):
  variables = fine_tuned(tmp_path / "nq", embedder_scope=scope, norm=norm)
  report = run_import(tmp_path / "nq", tmp_path / "run")
  assert "randomly initialized (parameters): none" in report
  model = load(tmp_path / "run")
  assert model.reader.span_size == files.SPAN
  assert model.reader.span_norm_eps == 1e-3
  assert (model.reader.joint_length, model.reader.max_answer_width) == (40, 4)
  wanted = [
    files.vector(variables, tokens, scope=scope, norm_name=norm, eps=eps)
    for tokens in (_QUERY, _OTHER)
  ]
  np.testing.assert_allclose(_embed(model, _QUERIES), wanted, atol=2e-4)

  _, spans = jax.jit(model.reader.apply)(
    {"params": model.params["reader"]},
    np.array([_QUERY], np.int32),
    np.array([[_BLOCK]], np.int32),
    np.array([[1]], np.int32),
  )
  # `[CLS] query [SEP] body [SEP]`: four words of the body, from position 4.
  joined = _QUERY + _BLOCK[3:]
  hidden = files.last_hidden(variables, joined, "reader/module/")
  for start in range(4):
    for width in range(4):
      is_span = start + width < 4
      assert spans.is_span[0, 0, start, width] == is_span
      if is_span:
        wanted = files.span_logit(
          variables, hidden, 4 + start, 4 + start + width
        )
        found = spans.logits[0, 0, start, width]
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_blocks_keep_the_tower_that_embedded_them(tmp_path):
  pre_trained = module(tmp_path / "embedder", **REALM, seed=3)
  tuned = fine_tuned(tmp_path / "nq", embedder_scope="module/module/module/")
  (tmp_path / "nq" / "vocab.txt").unlink()  # The module's will do.
  run_import(
    tmp_path / "nq", tmp_path / "run", block_input=str(tmp_path / "embedder")
  )
  params = load(tmp_path / "run").params["retriever"]
  for tower, scope, variables in (
    ("query_tower", "module/module/module/", tuned),
    ("block_tower", "module/module/", pre_trained),
  ):
    np.testing.assert_array_equal(
      params[tower]["projection_norm"]["scale"],
      variables[f"{scope}LayerNorm/gamma"],
    )


def test_one_part_leaves_the_other(tmp_path):
  fine_tuned(tmp_path / "nq", embedder_scope="module/")
  report = run_import(tmp_path / "nq", tmp_path / "run", parts=["retriever"])
  assert (
    "reader/dense_1/kernel [6, 1]: a part of a reader that is not" in report
  )
  assert set(load(tmp_path / "run").params) == {"retriever"}
  report = run_import(tmp_path / "nq", tmp_path / "reader", parts=["reader"])
  assert (
    "module/dense/kernel [128, 8]: a part of a retriever that is not" in report
  )
  assert set(load(tmp_path / "reader").params) == {"reader"}


# --- The index ------------------------------------------------------------


@pytest.mark.slow
def test_released_blocks_and_vectors_become_a_corpus_and_a_generation(tmp_path):
  vectors, texts = release(tmp_path / "in")
  report = run_import(
    tmp_path / "in",
    tmp_path / "run",
    corpus_dir=tmp_path / "corpus",
    block_records=str(tmp_path / "in" / "blocks.tfr"),
    block_titles=str(tmp_path / "in" / "titles.tfr"),
    index="exact",
  )
  assert "block vectors [30, 8]: published as generation 0" in report
  corpus = Corpus.open(tmp_path / "corpus")
  assert [corpus.block(row).body.encode() for row in range(30)] == texts
  assert corpus.block(29).title == "Velt"
  model = load(tmp_path / "run")
  generation = load_newest(tmp_path / "run" / "generations", corpus=corpus)
  assert generation.manifest.index_kind == "exact"
  np.testing.assert_array_equal(generation.vectors(np.arange(30)), vectors)
  # The generation's own query tower embeds queries as the model does.
  mine = _embed(model, _QUERIES)
  theirs = _embed(
    model._replace(params={"retriever": generation.query_params}), _QUERIES
  )
  np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_that_cannot_be_written_takes_all_back(
  tmp_path, monkeypatch
):
  release(tmp_path / "in")
  found = []

  def fail(store, *_):
    found.extend(store.directory.parent.glob("generations/*/manifest.json"))
    raise KeyboardInterrupt

  monkeypatch.setattr(CheckpointStore, "save", fail)
  with pytest.raises(KeyboardInterrupt):
    run_import(
      tmp_path / "in",
      tmp_path / "run",
      corpus_dir=tmp_path / "corpus",
      block_records=str(tmp_path / "in" / "blocks.tfr"),
      index="exact",
    )
  # The generation is there first: the checkpoint makes a MODEL_DIR.
  assert len(found) == 1
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_vectors_are_of_the_tower_that_embeds_blocks(tmp_path):
  of_blocks, _ = release(tmp_path / "pre_trained")
  module(tmp_path / "embedder", **REALM, seed=3)

  def vectors(*places):
    source = ImportSource("tf_realm", *places)
    return plan_tf_realm(source, TowerOptions()).block_vectors

  both = tmp_path / "embedder", tmp_path / "pre_trained"
  np.testing.assert_array_equal(vectors(*both)[:], of_blocks)
  # Those of the query tower's home were embedded by another one.
  assert vectors(*reversed(both)) is None


@pytest.mark.parametrize(
  ("options", "error", "found"),
  [
    ({}, ConversionError, "pass --block_records"),
    ({"block_records": "blocks.tfr"}, ConversionError, "30 vectors, and 29"),
    ({"block_records": "none.tfr"}, ConversionError, "no file of blocks at"),
    ({"parts": ["reader"]}, ConversionError, "has none"),
    (
      {"block_records": "blocks.tfr", "corpus_dir": "in"},
      CorpusError,
      "has files in it and is no corpus",
    ),
  ],
)
def test_an_index_that_does_not_agree_leaves_nothing(
  tmp_path, options, error, found
):
  source = tmp_path / "in"
  _, texts = release(source)
  files.write_records(source / "blocks.tfr", texts[:-1])
  files.write_module(source / "bert", files.bert())
  before = sorted(tmp_path.iterdir())
  options = {"corpus_dir": "corpus"} | options
  options["corpus_dir"] = tmp_path / options["corpus_dir"]
  if "block_records" in options:
    options["block_records"] = str(source / options["block_records"])
  with pytest.raises(error, match=found):
    run_import(source, tmp_path / "run", **options)
  assert sorted(tmp_path.iterdir()) == before
