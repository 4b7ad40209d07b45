"""What an explanation says, against sums written out by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.evaluation.explain import block_use, explain
from realm_jax.evaluation.explanation import ExplanationError
from realm_jax.models import sequences
from tests import tiny_world

pytestmark = pytest.mark.slow

_SENTENCE = "Later Ada built the [MASK] of Tarn."


# --- Sentences --------------------------------------------------------------


class ByHand:
  """What the modules themselves compute for a query and some blocks.

  Always for six blocks and two masks, so that both are compiled once.
  """

  def __init__(self, world, params):
    self._corpus, self._models = world.corpus, world.models()
    self._params = params
    self._vectors = jax.jit(self._models.retriever.apply)
    self._read = jax.jit(self._logits)

  def _logits(self, params, query, blocks, masks):
    reader = self._models.reader
    inputs = sequences.padded(reader.join(query, blocks).token_ids)
    return reader.apply({"params": params}, inputs, masks, method="masked_lm")

  def _query(self, pieces) -> np.ndarray:
    words = self._corpus.vocabulary
    query = np.zeros((1, tiny_world.QUERY_LENGTH), np.int32)
    inside = ["[CLS]", *pieces, "[SEP]"]
    query[0, : len(inside)] = [words.pieces.index(piece) for piece in inside]
    return query

  def _blocks(self, rows) -> np.ndarray:
    padded = [*rows, *[-1] * (6 - len(rows))]
    return self._corpus.gather(np.array([padded]), tiny_world.BLOCK_LENGTH)

  def scores(self, pieces, rows) -> np.ndarray:
    """Returns f(x,z) of blocks."""
    parts = []
    for start in range(0, len(rows), 6):
      own = rows[start : start + 6]
      x, z = self._vectors(
        {"params": self._params["retriever"]},
        self._query(pieces),
        self._blocks(own),
      )
      parts.append(np.asarray(z[0] @ x[0])[: len(own)])
    return np.concatenate(parts)

  def probabilities(self, pieces, rows) -> np.ndarray:
    """Returns p(·|z,x) at one or two masks, as an array [k m v]."""
    masks = [i for i, piece in enumerate(pieces, 1) if piece == "[MASK]"]
    logits = self._read(
      self._params["reader"],
      self._query(pieces),
      self._blocks(rows),
      np.array([(masks * 2)[:2]]),
    )
    odds = np.exp(np.float64(logits[0]))[: len(rows), : len(masks)]
    return odds / odds.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def by_hand(world, params) -> ByHand:
  return ByHand(world, params)


def test_the_likelihood_is_the_sum_over_the_candidates(run, by_hand, world):
  explained = explain(run, "Ada was born in [MASK].", "Velt Ada")
  rows = [one.block.row for one in explained.candidates]
  assert len(set(rows)) == 6 and rows[0] == -1
  pieces = "ada was born in [MASK] [MASK] .".split()
  # The five blocks are the best of all.
  every = by_hand.scores(pieces, range(world.corpus.num_blocks))
  assert set(rows[1:]) == set(np.argsort(-every)[:5].tolist())
  odds = np.exp(by_hand.scores(pieces, rows))
  prior = odds / odds.sum()
  probabilities = by_hand.probabilities(pieces, rows)
  velt, ada = map(world.corpus.vocabulary.pieces.index, ("velt", "ada"))
  by_token = np.stack(
    [probabilities[:, 0, velt], probabilities[:, 1, ada]], axis=1
  )
  likelihood = by_token.prod(axis=1)
  total, null = float(prior @ likelihood), float(likelihood[0])
  assert explained.probability == pytest.approx(total, rel=1e-4)
  assert np.exp(explained.log_likelihood_null) == pytest.approx(null, rel=1e-4)
  assert explained.utility == pytest.approx(np.log(total / null), abs=1e-4)
  for k, one in enumerate(explained.candidates):
    share = prior[k] * likelihood[k] / total
    np.testing.assert_allclose(
      [one.probability, np.exp(one.log_likelihood), one.share],
      [prior[k], likelihood[k], share],
      rtol=1e-4,
    )
    np.testing.assert_allclose(
      np.exp(one.token_log_likelihoods), by_token[k], rtol=1e-4
    )
    np.testing.assert_allclose(
      [one.reward, one.utility],
      [share - prior[k], np.log(likelihood[k] / null)],
      atol=1e-4,
    )
    assert one.best.probability == pytest.approx(
      probabilities[k].max(axis=-1).prod(), rel=1e-4
    )
  # All pairs of wordpieces, of which the best are shown.
  pairs = np.einsum("k,ku,kv->uv", prior, *np.moveaxis(probabilities, 1, 0))
  best = np.sort(pairs, axis=None)[::-1][:5]
  np.testing.assert_allclose(
    [filling.probability for filling in explained.fillings], best, rtol=1e-4
  )


def test_without_an_answer_the_best_filling_is_explained(run):
  explained = explain(run, _SENTENCE)
  best = explained.fillings[0]
  assert explained.answer == best.text and not explained.answer_is_given
  assert explained.probability == pytest.approx(best.probability)
  again = explain(run, _SENTENCE, best.text)
  assert again.log_likelihood == pytest.approx(explained.log_likelihood)
  assert best.without_retrieval == pytest.approx(
    np.exp(again.log_likelihood_null)
  )


def test_a_block_that_contains_the_sentence_is_named(run):
  seen = set()
  for document in tiny_world.documents():
    sentence = document["text"].split(" Later ")[1].replace("built", "[MASK]")
    explained = explain(run, f"Later {sentence}", "built")
    retrieved = [one.block.title for one in explained.candidates]
    named = [c.block.title for c in explained.candidates if c.contains_text]
    assert named == [title for title in retrieved if title == document["title"]]
    assert bool(named) == ("trivial retrieval" in " ".join(explained.notes))
    seen.add(bool(named))
    if len(seen) == 2:
      break
  assert seen == {True, False}


def test_training_sentences_and_the_blocks_that_help_them(
  run, run_config, by_hand, questions
):
  sentences = dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=5
  )
  config = dataclasses.replace(run_config, num_candidates=6)
  found = block_use(config=config, data=sentences, num_sampled=2)
  corpus, words = run.corpus, run.vocabulary
  names = [corpus.block(row).name for row in range(corpus.num_blocks)]
  for one in found:
    pieces = one["sentence"].split()
    if any(piece not in words.pieces for piece in pieces):
      continue
    answer = [words.pieces.index(piece) for piece in one["answer"].split()]
    # No block that has the sentence itself is a candidate.
    text = (
      one["sentence"].replace("[MASK]", "{}").format(*one["answer"].split())
    )
    scores = by_hand.scores(pieces, range(corpus.num_blocks))
    order = [
      row
      for row in np.argsort(-scores).tolist()
      if text not in words.decode(corpus.block(row).token_ids.tolist())
    ]
    rows = [-1, *order[:5]]
    odds = np.exp(by_hand.scores(pieces, rows))
    prior = odds / odds.sum()
    by_token = by_hand.probabilities(pieces, rows)
    masks = np.arange(len(answer))
    likelihood = by_token[:, masks, answer].prod(axis=1)
    best = 1 + int(likelihood[1:].argmax())
    assert one["block"] == names[rows[best]]
    share = prior[best] * likelihood[best] / (prior @ likelihood)
    np.testing.assert_allclose(
      (one["probability"], one["utility"], one["reward"]),
      (
        prior[best],
        np.log(likelihood[best] / likelihood[0]),
        share - prior[best],
      ),
      atol=1e-4,
    )


# --- Questions --------------------------------------------------------------


def test_a_question_that_no_block_answers(run):
  explained = explain(run, "where was Ada born?", "nowhere")
  assert (explained.answer, explained.log_likelihood) == ("nowhere", None)
  assert {one.share for one in explained.candidates} == {None}
  assert "no block that was read has the answer" in explained.notes[-1]
  # The answers of the run are shown nevertheless.
  assert len(explained.fillings) == run.config.num_fillings


@pytest.mark.parametrize(
  ("text", "answer", "said"),
  [
    (" ", None, "empty; write one with"),
    ("\u200b", None, "has no words"),
    ("where?", " ", "answer ' ' has no words"),
    ("in [mask]", None, "in capitals"),
  ],
)
def test_what_cannot_be_explained(run, text, answer, said):
  with pytest.raises(ExplanationError, match=said):
    explain(run, text, answer)


def test_a_run_that_cannot_fill_in(run):
  config = dataclasses.replace(run.config, num_candidates=1)
  with pytest.raises(ExplanationError, match="num_candidates=1"):
    explain(dataclasses.replace(run, config=config), _SENTENCE)


@pytest.mark.parametrize(
  ("stage", "index_scores", "refused", "said"),
  [
    ("OpenQa", False, "in [MASK]", "not learnt to fill in.*of pre-training"),
    ("Pretraining", False, "where?", r"not learnt to answer.*write \[MASK\]"),
    (None, True, "in [MASK]", "not learnt to fill in"),
  ],
)
def test_what_the_run_was_not_trained_for(
  run, stage, index_scores, refused, said
):
  config = dataclasses.replace(run.config, index_scores=index_scores)
  with pytest.raises(CheckpointError, match=said):
    explain(dataclasses.replace(run, config=config, stage=stage), refused)
