"""What Google released of REALM and ORQA computes here what it says."""

import functools
import json

import jax
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.importing import import_weights
from realm_jax.conversion.tf_realm import plan_tf_realm
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.loaded import load_newest
from tests.conversion import tf_files as files
from tests.conversion.imported import load

_QUERY, _OTHER = [2, 9, 11, 3], [2, 14, 3]
_QUERIES = np.array([_QUERY, [*_OTHER, 0]], np.int32)
_BLOCK = [2, 10, 3, 7, 8, 21, 12, 3]
# The names that the released modules have, by how often each was wrapped.
_REALM = {"scope": "module/module/", "norm": "LayerNorm"}
_ICT = {"scope": "", "norm": "layer_normalization"}


def _import(source, target, **options):
  return import_weights("tf_realm", str(source), target, **options)


def _embed(model, token_ids, method="embed_queries"):
  embed = functools.partial(model.retriever.apply, method=method)
  return np.asarray(
    jax.jit(embed)({"params": model.params["retriever"]}, token_ids)
  )


def _module(path, *, scope, norm, seed=0, **settings):
  variables = files.embedder(scope, norm=norm, seed=seed)
  # So close together that the epsilon of the LayerNorm shows.
  variables[f"{scope}dense/kernel"] *= 0.01
  variables[f"{scope}dense/bias"] *= 0.01
  files.write_module(path, variables, **settings)
  return variables


@pytest.mark.parametrize(
  ("names", "eps"), [(_REALM, 1e-12), (_ICT, 1e-3)], ids=["realm", "ict"]
)
def test_a_retriever_module_embeds_as_it_was_trained(tmp_path, names, eps):
  variables = _module(tmp_path / "embedder", **names)
  report = _import(tmp_path / "embedder", tmp_path / "run")
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
  _module(release / "embedder", **_REALM)
  reader = files.bert(seed=5)
  files.write_module(release / "bert", reader)
  report = _import(release, tmp_path / "run")
  assert "bert/pooler/dense/kernel [128, 128]: readers have no pooler" in report
  assert "reader/span_head/projection/kernel" in report.partition("afresh")[2]
  model = load(tmp_path / "run")
  assert set(model.params) == {"retriever", "reader"}
  assert (model.reader.joint_length, model.reader.span_size) == (64, 256)
  read = functools.partial(model.reader.apply, method="masked_lm")
  logits = jax.jit(read)(
    {"params": model.params["reader"]},
    np.array([[2, 9, 4, 3]], np.int32),
    np.array([[_BLOCK]], np.int32),
    np.array([[2]], np.int32),
  )
  wanted = files.masked_logits(reader, [2, 9, 4, 3, *_BLOCK[3:]], 2)
  np.testing.assert_allclose(logits[0, 0, 0], wanted, atol=1e-4)


def test_towers_of_their_own_have_a_module_of_their_own(tmp_path):
  block = _module(tmp_path / "two" / "embedder", **_REALM)
  query = _module(tmp_path / "two" / "query_embedder", **_REALM, seed=9)
  _import(tmp_path / "two", tmp_path / "run")
  params = load(tmp_path / "run").params["retriever"]
  for tower, variables in (("query_tower", query), ("block_tower", block)):
    np.testing.assert_array_equal(
      params[tower]["projection"]["kernel"],
      variables["module/module/dense/kernel"],
    )


def _fine_tuned(path, **settings):
  """As open QA leaves a model; its vocabulary is with its modules."""
  variables = files.fine_tuned(**settings)
  folder = path / "export" / "best_default" / "checkpoint"
  files.save(folder / "model.ckpt-1000", files.with_adam(variables))
  (path / "params.json").write_text(
    json.dumps({"reader_seq_len": 40, "max_span_width": 4})
  )
  files.write_pieces(path / "vocab.txt")
  return variables


@pytest.mark.parametrize(
  ("scope", "norm", "eps"),
  [
    ("module/module/module/", "LayerNorm", 1e-12),
    ("module/", "layer_normalization", 1e-3),
  ],
  ids=["realm", "orqa"],
)
def test_a_fine_tuned_model_reads_and_retrieves(tmp_path, scope, norm, eps):
  variables = _fine_tuned(tmp_path / "nq", embedder_scope=scope, norm=norm)
  report = _import(tmp_path / "nq", tmp_path / "run")
  assert "initialised afresh (parameters): none" in report
  model = load(tmp_path / "run")
  assert model.reader.span_size == files.SPAN
  assert model.reader.span_norm_eps == 1e-3
  assert (model.reader.joint_length, model.reader.max_answer_width) == (40, 4)
  wanted = [
    files.vector(variables, tokens, scope=scope, norm_name=norm, eps=eps)
    for tokens in (_QUERY, _OTHER)
  ]
  np.testing.assert_allclose(_embed(model, _QUERIES), wanted, atol=2e-4)

  read = functools.partial(model.reader.apply, method="spans")
  spans = jax.jit(read)(
    {"params": model.params["reader"]},
    np.array([_QUERY], np.int32),
    np.array([[_BLOCK]], np.int32),
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
  pre_trained = _module(tmp_path / "embedder", **_REALM, seed=3)
  tuned = _fine_tuned(tmp_path / "nq", embedder_scope="module/module/module/")
  (tmp_path / "nq" / "vocab.txt").unlink()  # The module's will do.
  _import(
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
  _fine_tuned(tmp_path / "nq", embedder_scope="module/")
  report = _import(tmp_path / "nq", tmp_path / "run", parts=["retriever"])
  assert "reader/dense_1/kernel [6, 1]: of a reader that is not" in report
  assert set(load(tmp_path / "run").params) == {"retriever"}
  report = _import(tmp_path / "nq", tmp_path / "reader", parts=["reader"])
  assert "module/dense/kernel [128, 8]: of a retriever that is not" in report
  assert set(load(tmp_path / "reader").params) == {"reader"}


# --- The index ------------------------------------------------------------


def _release(path, *, num_blocks=30):
  """A retriever with the vectors of its blocks, their texts and titles."""
  _module(path / "embedder", **_REALM)
  rng = np.random.default_rng(4)
  vectors = rng.standard_normal((num_blocks, files.PROJECTION), np.float32)
  files.save(
    path / "embedder" / "encoded" / "encoded.ckpt", {"block_emb": vectors}
  )
  texts = [f"the bridge of velt {i}.".encode() for i in range(num_blocks)]
  files.write_records(path / "blocks.tfr", texts)
  files.write_records(path / "titles.tfr", [b"Velt"] * num_blocks)
  return vectors, texts


@pytest.mark.slow
def test_released_blocks_and_vectors_become_a_corpus_and_a_generation(tmp_path):
  vectors, texts = _release(tmp_path / "in")
  report = _import(
    tmp_path / "in",
    tmp_path / "run",
    corpus_dir=tmp_path / "corpus",
    block_records=str(tmp_path / "in" / "blocks.tfr"),
    block_titles=str(tmp_path / "in" / "titles.tfr"),
    index="exact",
  )
  assert "block vectors [30, 8]: handed to the generation" in report
  corpus = Corpus.open(tmp_path / "corpus")
  assert [corpus.body(row).encode() for row in range(30)] == texts
  assert corpus.title(29) == "Velt"
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


def test_the_vectors_are_of_the_tower_that_embeds_blocks(tmp_path):
  of_blocks, _ = _release(tmp_path / "pre_trained")
  _module(tmp_path / "embedder", **_REALM, seed=3)

  def vectors(*places):
    plan = plan_tf_realm(places[0], block_input=(*places, None)[1])
    return plan.block_vectors

  both = tmp_path / "embedder", tmp_path / "pre_trained"
  np.testing.assert_array_equal(vectors(*both)[:], of_blocks)
  # Those of the query tower's home were embedded by another one.
  assert vectors(*reversed(both)) is None


def test_vectors_that_are_left_are_mentioned(tmp_path):
  _release(tmp_path / "in")
  report = _import(tmp_path / "in", tmp_path / "run")
  assert "block vectors [30, 8]: left; --corpus_dir imports" in report
  assert not (tmp_path / "run" / "generations").exists()


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
  _, texts = _release(source)
  files.write_records(source / "blocks.tfr", texts[:-1])
  files.write_module(source / "bert", files.bert())
  before = sorted(tmp_path.iterdir())
  options = {"corpus_dir": "corpus"} | options
  options["corpus_dir"] = tmp_path / options["corpus_dir"]
  if "block_records" in options:
    options["block_records"] = str(source / options["block_records"])
  with pytest.raises(error, match=found):
    _import(source, tmp_path / "run", **options)
  assert sorted(tmp_path.iterdir()) == before


# --- What is refused ------------------------------------------------------


def test_a_cased_module_is_refused(tmp_path):
  _module(tmp_path / "embedder", **_REALM, lower_case=False)
  with pytest.raises(ConversionError, match="is of a cased model"):
    _import(tmp_path / "embedder", tmp_path / "run")


def test_a_graph_that_says_nothing_or_is_damaged(tmp_path):
  _module(tmp_path / "embedder", **_ICT, lower_case=None)
  _import(tmp_path / "embedder", tmp_path / "run")
  (tmp_path / "embedder" / "saved_model.pb").write_bytes(b"\xff\xff\xff")
  with pytest.raises(ConversionError, match="is no saved model"):
    _import(tmp_path / "embedder", tmp_path / "again")


def test_a_vocabulary_must_be_there_and_be_the_models(tmp_path):
  _fine_tuned(tmp_path / "nq", embedder_scope="module/")
  (tmp_path / "nq" / "vocab.txt").unlink()
  with pytest.raises(ConversionError, match=r"no vocabulary in .*pass --vocab"):
    _import(tmp_path / "nq", tmp_path / "run")
  short = tmp_path / "short.txt"
  files.write_pieces(short, files.pieces()[:-1])
  with pytest.raises(ConversionError, match="word embeddings, and the vocab"):
    _import(tmp_path / "nq", tmp_path / "run", vocab=str(short))
  files.write_pieces(tmp_path / "vocab.txt")
  _import(tmp_path / "nq", tmp_path / "run", vocab=str(tmp_path / "vocab.txt"))


def test_two_vocabularies_are_one_too_many(tmp_path):
  _module(tmp_path / "in" / "embedder", **_REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert())
  pieces = files.pieces()
  pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
  files.write_pieces(tmp_path / "in" / "bert" / "assets" / "vocab.txt", pieces)
  with pytest.raises(ConversionError, match="different vocabularies"):
    _import(tmp_path / "in", tmp_path / "run")


def test_encoders_of_different_sizes_are_refused(tmp_path):
  _module(tmp_path / "in" / "embedder", **_REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert(layers=1))
  with pytest.raises(ConversionError, match="different configuration"):
    _import(tmp_path / "in", tmp_path / "run")


def test_towers_that_project_differently_are_refused(tmp_path):
  _module(tmp_path / "one", **_REALM)
  _module(tmp_path / "other", **_ICT)
  with pytest.raises(ConversionError, match="project differently"):
    _import(
      tmp_path / "one", tmp_path / "run", block_input=str(tmp_path / "other")
    )


def test_a_configuration_beside_a_module_says_the_heads(tmp_path):
  _module(tmp_path / "embedder", **_REALM)
  (tmp_path / "embedder" / "bert_config.json").write_text(
    json.dumps(files.config(num_attention_heads=4))
  )
  _import(tmp_path / "embedder", tmp_path / "run")
  assert load(tmp_path / "run").retriever.bert.num_heads == 4


def test_an_open_qa_reader_has_room_for_block_and_question(tmp_path):
  _fine_tuned(tmp_path / "nq", embedder_scope="module/")
  checkpoint = tmp_path / "nq" / "export" / "best_default" / "checkpoint"
  (checkpoint / "bert_config.json").write_text(
    json.dumps(files.config(max_position_embeddings=512))
  )
  assert plan_tf_realm(tmp_path / "nq").reader.joint_length == 40
  (tmp_path / "nq" / "params.json").unlink()
  assert plan_tf_realm(tmp_path / "nq").reader.joint_length == 288 + 32


@pytest.mark.parametrize("value", [None, "288", 0])
def test_a_setting_that_is_no_number_is_refused(tmp_path, value):
  _fine_tuned(tmp_path / "nq", embedder_scope="module/")
  (tmp_path / "nq" / "params.json").write_text(
    json.dumps({"reader_seq_len": value})
  )
  with pytest.raises(ConversionError, match=r"params\.json has reader_seq"):
    _import(tmp_path / "nq", tmp_path / "run")


def test_a_block_tower_without_a_query_tower_is_refused(tmp_path):
  _module(tmp_path / "embedder", **_REALM)
  files.write_module(tmp_path / "in" / "bert", files.bert())
  with pytest.raises(ConversionError, match="is for a retriever"):
    plan_tf_realm(tmp_path / "in", block_input=tmp_path / "embedder")


@pytest.mark.parametrize(
  ("options", "found"),
  [
    ({"pooling": "mean"}, "tf_realm takes no --pooling"),
    ({"tensor_prefix": "bert."}, "tf_realm takes no --tensor_prefix"),
    ({"parts": ["reader"]}, "this input gives retriever"),
  ],
)
def test_flags_of_no_use_are_refused(tmp_path, options, found):
  _module(tmp_path / "embedder", **_REALM)
  with pytest.raises(ConversionError, match=found):
    _import(tmp_path / "embedder", tmp_path / "run", **options)


def test_what_is_not_realm_says_what_is_wanted(tmp_path):
  files.save(tmp_path / "x" / "model.ckpt", {"w": np.ones(3, np.float32)})
  with pytest.raises(ConversionError, match="want a TF-Hub module of REALM"):
    _import(tmp_path / "x", tmp_path / "run")
  (tmp_path / "empty").mkdir()
  with pytest.raises(ConversionError, match=r"is .*empty the right --input"):
    _import(tmp_path / "empty", tmp_path / "run")
