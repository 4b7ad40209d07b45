"""Which blocks a sample of sentences uses, counted again by hand."""

import dataclasses

import numpy as np
import pytest

from realm_jax.evaluation.explaining import block_use
from realm_jax.evaluation.explaining.block_use import count_block_use
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.sentences import draw_sentences
from realm_jax.evaluation.explaining.tables import block_use_text
from tests.evaluation.explaining.conftest import NUM_CANDIDATES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_NUM_SENTENCES = 2


@pytest.fixture(scope="module")
def sentences(questions):
  return dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=5
  )


@pytest.fixture(scope="module")
def known(world, sentences):
  (batch,) = draw_sentences(sentences, _NUM_SENTENCES, world.corpus.vocabulary)
  return batch


@pytest.fixture(scope="module")
def use(source, sentences, known, one_device):
  with pytest.MonkeyPatch.context() as patch:
    # They are drawn once for this and for the count by hand.
    patch.setattr(block_use, "draw_sentences", lambda *_: [known])
    return count_block_use(
      source=source,
      data=sentences,
      num_sampled=_NUM_SENTENCES,
      num_candidates=NUM_CANDIDATES,
      num_shown=100,
      min_times=1,
    )


def test_each_block_is_counted_with_its_means(
  world, use, known, by_hand, params
):
  corpus, words = world.corpus, world.corpus.vocabulary
  found: dict[int, list[tuple[float, ...]]] = {}
  null = []
  for i in range(_NUM_SENTENCES):
    query = known.query[i][known.query[i] != 0][1:-1]
    pieces = [words.pieces[j] for j in query]
    answer = [words.pieces[j] for j in known.targets[i][known.weights[i] > 0]]
    others = np.flatnonzero(corpus.content_hashes != known.source_hashes[i])
    scores = by_hand.scores(params, pieces, others.tolist())
    best = others[np.argsort(-scores)[: NUM_CANDIDATES - 1]].tolist()
    rows = [-1, *best]
    odds = np.exp(by_hand.scores(params, pieces, rows))
    prior = odds / odds.sum()
    given = by_hand.likelihoods(params, pieces, rows, answer)
    rewards = (given / (prior @ given) - 1) * prior
    null.append(prior[0])
    for row, *values in zip(
      best, prior[1:], np.log(given[1:] / given[0]), rewards[1:], strict=True
    ):
      found.setdefault(row, []).append(tuple(values))
  assert use.null_probability == pytest.approx(np.mean(null), rel=1e-4)
  assert use.num_retrieved == len(found) == len(use.most_useful)
  by_block = {block.block_id: block for block in use.most_retrieved}
  for row, values in found.items():
    block = by_block[int(corpus.block_ids[row])]
    assert (block.title, block.times) == (corpus.block(row).title, len(values))
    np.testing.assert_allclose(
      (block.mean_probability, block.mean_utility, block.mean_reward),
      np.mean(values, axis=0),
      atol=1e-4,
    )
  times = [block.times for block in use.most_retrieved]
  assert times == sorted(times, reverse=True)
  assert sum(times[: use.half_of_retrievals]) >= sum(times) / 2
  utilities = [block.mean_utility for block in use.most_useful]
  assert utilities == sorted(utilities, reverse=True)
  never = {corpus.block(r).name for r in range(corpus.num_blocks)}
  assert set(use.never_retrieved) == never - {
    b.block for b in by_block.values()
  }


def test_the_table_has_each_block(use):
  text = block_use_text(use)
  assert f"{use.num_blocks - use.num_retrieved}, such as " in text
  for block in use.most_retrieved:
    assert f"[{block.block}]" in text
    assert f"{block.mean_utility:+.4f}" in text


def test_numbers_that_are_too_small(source, sentences):
  with pytest.raises(ExplanationError, match="num_candidates=1"):
    count_block_use(source=source, data=sentences, num_candidates=1)
