"""A stage whose reader writes: its loss by parts, and what it teaches."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from realm_jax.errors import RealmError
from realm_jax.inputs.reader_texts import joined
from realm_jax.models.components import Components
from realm_jax.models.generative_reader import GenerativeReader, TextInputs
from realm_jax.models.packing import TokenSequences, padded_inputs
from realm_jax.models.t5 import T5Config
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_inputs import Candidates, PackingLayout
from realm_jax.training.stages.stage import Encoders
from realm_jax.training.stages.text_to_text import TextBatch, TextToText
from tests.training import tiny

_T5 = T5Config(
  vocab_size=50,
  hidden_size=8,
  num_layers=1,
  num_heads=2,
  head_size=4,
  intermediate_size=12,
  dropout_rate=0.0,
)
_LENGTH, _TARGET = 9, 5


def components(fusion: str) -> Components:
  reader = GenerativeReader(
    _T5, fusion=fusion, input_length=_LENGTH, target_length=_TARGET
  )
  return Components({**tiny.components(), "reader": reader})


def batch() -> TextBatch:
  rng = np.random.default_rng(0)
  made = tiny.batch("pretraining")
  shape = made.candidates.tokens.shape[:2]

  def texts(*shape, longest, end=False):
    ids = rng.integers(2, 50, shape).astype(np.int32)
    sizes = rng.integers(1, longest, shape[:-1])[..., None]
    ids = np.where(np.arange(shape[-1]) < sizes, ids, 0)
    ends = end & (np.arange(shape[-1]) == sizes)
    return np.where(ends, 1, ids).astype(np.int32)

  passages = texts(*shape, _LENGTH, longest=7)
  return TextBatch(
    made.query,
    Candidates.of(made.candidates.tokens, passages),
    texts(tiny.BATCH, _LENGTH, longest=4),
    texts(tiny.BATCH, _TARGET, longest=_TARGET, end=True),
  )


def inputs_of(given: TextBatch) -> TextInputs:
  read = joined(given.prompts, given.candidates.passages, end_id=1)
  tokens = TokenSequences(read.reshape(-1, _LENGTH))
  return padded_inputs(TextInputs(tokens, given.targets))


@functools.cache
def parameters():
  """Those of either fusion, which has none of its own."""
  made = components("decoder")
  return tiny.drawn(
    functools.partial(stage_of().init, made, tiny.QUERY, tiny.BLOCK)
  )


@functools.partial(jax.jit, static_argnames=("stage", "fusion", "packed"))
def loss(stage, fusion, params, *, packed=False):
  made, given = components(fusion), batch()
  encoders = Encoders(made, params, {})
  bins = ((6, 14, 16),) if packed else ()
  layout = PackingLayout(make_mesh(devices=jax.devices()[:1]), bins)
  return layout.with_inputs(
    functools.partial(stage.inputs, made),
    given,
    lambda inputs: stage.loss(encoders, given, inputs),
  )


@functools.cache
def loss_and_gradient(stage):
  """The mean loss of a fused reader, and its gradient."""

  def mean(params):
    return loss(stage, "decoder", params).loss.mean

  return jax.device_get(jax.jit(jax.value_and_grad(mean))(parameters()))


def stage_of(**settings) -> TextToText:
  return TextToText(num_read=tiny.CANDIDATES, **settings)


@functools.cache
def likelihoods(fusion):
  """Log p of the targets given all candidates, and given each, in float64."""
  reader, given = components(fusion)["reader"], batch()
  apply = functools.partial(reader.apply, single=True, method="likelihoods")
  params = {"params": parameters()["reader"]}
  found = jax.jit(apply)(params, inputs_of(given))
  is_token = given.targets != 0
  fused = None if found.fused is None else np.float64(found.fused * is_token)
  return fused, np.float64(found.single * is_token[:, None])


@functools.cache
def log_prior():
  made = components("decoder")
  inputs = padded_inputs(stage_of().inputs(made, batch()))
  score = jax.jit(lambda p: Encoders(made, p, {}).candidate_scores(inputs))
  return log_softmax(np.float64(score(parameters())), axis=1)


@functools.cache
def gradient_of_reading():
  """The gradient of a fused reader's own likelihood."""
  reader, given = components("decoder")["reader"], batch()
  inputs = inputs_of(given)

  def reading(own):
    found = reader.apply(
      {"params": own}, inputs, single=False, method="likelihoods"
    )
    return -(found.fused * (given.targets != 0)).sum(1).mean()

  return jax.jit(jax.grad(reading))(parameters()["reader"])


@pytest.mark.parametrize("form", ["joint", "per_token"])
def test_emdr2_is_the_papers(form):
  (fused, single), targets = likelihoods("decoder"), batch().targets
  stage = stage_of(objective="emdr2", loss_form=form)
  if form == "joint":
    retriever = logsumexp(log_prior() + single.sum(2), axis=1)
    wanted = -(fused.sum(1) + retriever).mean()
    found, _ = loss_and_gradient(stage)
  else:
    is_token = targets != 0
    retriever = logsumexp(log_prior()[:, :, None] + single, axis=1) * is_token
    wanted = -(fused.sum() + retriever.sum()) / is_token.sum()
    found = loss(stage, "decoder", parameters()).loss.mean
  assert float(found) == pytest.approx(wanted, rel=1e-5)


_PERPLEXITY = {"objective": "perplexity", "target_temperature": 0.1}


@pytest.mark.parametrize("mean_likelihood", [True, False])
def test_perplexity_distils_the_single_candidates(mean_likelihood):
  (fused, single), targets = likelihoods("decoder"), batch().targets
  target = single.sum(2)
  if mean_likelihood:
    target /= (targets != 0).sum(1, keepdims=True)
  target = log_softmax(target / 0.1, axis=1)
  divergence = (np.exp(target) * (target - log_prior())).sum(1)
  wanted = (divergence - fused.sum(1)).mean()
  stage = stage_of(mean_likelihood=mean_likelihood, **_PERPLEXITY)
  if mean_likelihood:
    found = loss(stage, "decoder", parameters()).loss.mean
  else:
    found, _ = loss_and_gradient(stage)
  assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_without_fusion_it_is_the_marginal_likelihood():
  _, single = likelihoods("marginal")
  wanted = -logsumexp(log_prior() + single.sum(2), axis=1).mean()
  found = loss(stage_of(objective="marginal"), "marginal", parameters())
  assert float(found.loss.mean) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_packed_texts_have_the_loss_of_padded_ones():
  stage = stage_of(objective="emdr2")
  padded, _ = loss_and_gradient(stage)
  packed = loss(stage, "decoder", parameters(), packed=True).loss.mean
  assert float(packed) == pytest.approx(float(padded), rel=1e-5)


def _assert_near(gradient, wanted):
  for a, b in zip(
    jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
  "stage",
  [
    stage_of(objective="emdr2"),
    stage_of(**_PERPLEXITY),
    stage_of(objective="attention_norm"),
  ],
  ids=lambda stage: stage.objective,
)
def test_the_retriever_learns_from_the_reader_and_not_the_reader_from_it(stage):
  _, gradient = loss_and_gradient(stage)
  size = {
    name: sum(np.abs(g).sum() for g in jax.tree.leaves(own))
    for name, own in gradient.items()
  }
  assert min(size.values()) > 0
  # The reader's is that of its own likelihood.
  _assert_near(gradient["reader"], gradient_of_reading())


def test_without_blocks_the_reader_alone_learns():
  params, stage = parameters(), TextToText(num_read=1, null_block=True)
  made, given = components("decoder"), batch()
  first = jax.tree.map(lambda x: x[:, :1], given.candidates)
  given = given._replace(candidates=first)

  def mean(params):
    inputs = padded_inputs(stage.inputs(made, given))
    encoders = stage.encoders(made, params, None)
    return stage.loss(encoders, given, inputs).loss.mean

  value, gradient = jax.jit(jax.value_and_grad(mean))(params)
  _, single = likelihoods("decoder")
  wanted = -single[:, 0].sum(1).mean()
  assert float(value) == pytest.approx(wanted, rel=1e-5)
  size = {
    name: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(own))
    for name, own in gradient.items()
  }
  assert size["retriever"] == 0 < size["reader"]


def test_reranking_reads_what_the_current_towers_score_best():
  params, given = parameters(), batch()
  stage = TextToText(num_read=2, num_reranked=tiny.CANDIDATES)
  assert stage.retrieval.num_kept == tiny.CANDIDATES
  encoders = Encoders(components("decoder"), params, {})
  # Copies of the first source have left it only two blocks.
  scores = log_prior().copy()
  null = scores[0].argmax()
  given.candidates.passages[0, null], scores[0, null] = 0, -np.inf
  found = jax.jit(lambda given: stage.rerank(encoders, given))(given).candidates
  best = np.argsort(-scores, axis=1)[:, :2]
  for taken, every in zip(found, given.candidates, strict=True):
    for own, order, of_query in zip(taken, best, every, strict=True):
      np.testing.assert_array_equal(own, of_query[order])


@pytest.mark.parametrize(
  ("objective", "fusion"), [("marginal", "decoder"), ("fid_kd", "marginal")]
)
def test_an_objective_for_another_reader_is_refused(objective, fusion):
  stage = stage_of(objective=objective)
  with pytest.raises(RealmError, match="is not for a reader with FUSION"):
    stage.inputs(components(fusion), batch())


def test_choices_that_do_not_fit_are_refused():
  with pytest.raises(RealmError, match="NUM_READ=1 to 2 or more"):
    TextToText(num_read=1, objective="leave_one_out")
  with pytest.raises(RealmError, match="NUM_RERANKED=2 with NUM_READ=4"):
    TextToText(num_read=4, num_reranked=2)
  with pytest.raises(RealmError, match="RERANK_DEPTH=2 with NUM_READ=4"):
    TextToText(num_read=4, rerank_depth=2)
  with pytest.raises(RealmError, match=r"NUM_RERANKED=5 .* set one"):
    TextToText(num_read=4, num_reranked=5, rerank_depth=5)
  with pytest.raises(RealmError, match="has no target"):
    TextToText(objective="emdr2", target_temperature=0.1)
  with pytest.raises(RealmError, match="writes texts"):
    stage_of().inputs(tiny.components(), batch())
