"""What an explanation says, against sums written out by hand."""

import dataclasses

import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.explainer import (
  Explainer,
)
from realm_jax.text.answers import normalize_answer
from tests import tiny_world

pytestmark = pytest.mark.slow

_SENTENCE = "Later Ada built the [MASK] of Tarn."


@pytest.fixture(scope="module")
def explained(explainer):
  return explainer.explain("Ada was born in [MASK].", "Velt Ada")


def test_the_likelihood_is_the_sum_over_the_candidates(
  explained, by_hand, params, world
):
  rows = [one.source.row for one in explained.candidates]
  assert len(set(rows)) == 6 and rows[0] == -1
  pieces = "ada was born in [MASK] [MASK] .".split()
  odds = np.exp(by_hand.scores(params, pieces, rows))
  prior = odds / odds.sum()
  probabilities = by_hand.probabilities(params, pieces, rows)
  velt, ada = map(world.corpus.vocabulary.pieces.index, ("velt", "ada"))
  given = probabilities[:, 0, velt] * probabilities[:, 1, ada]
  total = float(prior @ given)
  close = {"rtol": 1e-4}
  np.testing.assert_allclose(np.exp(explained.log_likelihood), total, **close)
  null = np.log(given[0])
  np.testing.assert_allclose(explained.log_likelihood_null, null, **close)
  assert explained.utility == pytest.approx(np.log(total) - null, abs=1e-4)
  for k, one in enumerate(explained.candidates):
    assert one.probability == pytest.approx(prior[k], rel=1e-4)
    assert one.log_likelihood == pytest.approx(np.log(given[k]), abs=1e-4)
    np.testing.assert_allclose(
      np.exp(one.token_log_likelihoods),
      [probabilities[k, 0, velt], probabilities[k, 1, ada]],
      **close,
    )
    assert one.share == pytest.approx(prior[k] * given[k] / total, rel=1e-4)
    assert one.reward == pytest.approx(
      (given[k] / total - 1) * prior[k], abs=1e-5
    )
    assert one.utility == pytest.approx(np.log(given[k]) - null, abs=1e-4)
    assert one.best is not None
    assert one.best.probability == pytest.approx(
      probabilities[k].max(axis=-1).prod(), rel=1e-4
    )
  # All pairs of wordpieces, of which the best are shown.
  pairs = np.einsum("k,ku,kv->uv", prior, *np.moveaxis(probabilities, 1, 0))
  best = np.sort(pairs, axis=None)[::-1][:5]
  np.testing.assert_allclose(
    [filling.probability for filling in explained.fillings], best, **close
  )
  assert sum(one.share for one in explained.candidates) == pytest.approx(1)
  assert sum(one.reward for one in explained.candidates) == pytest.approx(0)
  assert [one.probability for one in explained.candidates[1:]] == sorted(
    (one.probability for one in explained.candidates[1:]), reverse=True
  )


def test_without_an_answer_the_best_filling_is_explained(explainer):
  explained = explainer.explain(_SENTENCE)
  best = explained.fillings[0]
  assert explained.answer == best.text and not explained.answer_is_given
  assert np.exp(explained.log_likelihood) == pytest.approx(best.probability)
  given = explainer.explain(_SENTENCE, best.text)
  assert given.log_likelihood == pytest.approx(explained.log_likelihood)
  assert best.without_retrieval == pytest.approx(
    np.exp(given.log_likelihood_null)
  )


def test_a_block_that_contains_the_sentence_is_named(explainer):
  seen = set()
  for document in tiny_world.documents():
    sentence = document["text"].split(" Later ")[1].replace("built", "[MASK]")
    explained = explainer.explain(f"Later {sentence}", "built")
    retrieved = [one.source.title for one in explained.candidates]
    named = [
      c.source.title for c in explained.candidates if c.contains_sentence
    ]
    assert named == [title for title in retrieved if title == document["title"]]
    assert bool(named) == ("trivial retrieval" in " ".join(explained.notes))
    seen.add(bool(named))
    if len(seen) == 2:
      break
  assert seen == {True, False}


def test_a_question_is_decomposed_over_the_blocks_read(explainer, answerer):
  question = "where was Ada born?"
  explained = explainer.explain(question)
  answered = answerer.ask(question)
  rows = answered.ranking.rows[: answerer.config.num_read]
  assert [c.source.row for c in explained.candidates] == rows.tolist()
  probabilities = np.array([c.probability for c in explained.candidates])
  assert probabilities.sum() == pytest.approx(1)
  np.testing.assert_allclose(
    probabilities[1:] / probabilities[0],
    np.exp(answered.ranking.scores[1:5] - answered.ranking.scores[0]),
    rtol=1e-4,
  )
  # The released reader's probability is what `ask` says, of all spans.
  asked = {normalize_answer(a.text): a.probability for a in answered.answers}
  for filling in explained.fillings:
    assert filling.by_released_reader == pytest.approx(
      asked[normalize_answer(filling.text)], rel=1e-3
    )
  # Each block's best span, as `explain` finds it, is where it says.
  for one in explained.candidates:
    assert one.best is not None
    body = one.source.body.encode()
    said = body[one.best.start_byte : one.best.limit_byte].decode()
    assert said == one.best.text
    assert one.utility is None
  assert explained.answer == explained.fillings[0].text
  total = sum(
    c.probability * np.exp(c.log_likelihood)
    for c in explained.candidates
    if c.log_likelihood is not None
  )
  assert total == pytest.approx(explained.fillings[0].probability)
  assert np.exp(explained.log_likelihood) == pytest.approx(total)
  assert sum(c.share for c in explained.candidates) == pytest.approx(1)
  assert sum(c.reward for c in explained.candidates) == pytest.approx(0)


@pytest.mark.parametrize(
  ("trained", "refused", "said"),
  [
    ("span_head", "in [MASK]", r"is of open QA.*give the run of pre-training"),
    (
      "masked_lm_head",
      "where?",
      r"has only a masked-LM reader.*write \[MASK\]",
    ),
  ],
)
def test_a_head_that_the_run_has_not_trained(
  explainer, tmp_path, trained, refused, said
):
  heads = ("masked_lm_head", "span_head")
  moments = {
    head: {"norm": {"scale": np.full(3, float(head == trained))}}
    for head in heads
  }
  optimizer = [{"count": np.zeros(1)}, {"nu": {"reader": moments}}]
  store = CheckpointStore(tmp_path)
  store.save(7, {"optimizer": optimizer})
  store.close()
  model = dataclasses.replace(explainer.model, model_dir=tmp_path, step=7)
  other = Explainer(model, explainer.generation, explainer.config)
  with pytest.raises(ExplanationError, match=said):
    other.explain(refused)
