"""What an explanation says, against sums written out by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.errors import RealmError
from realm_jax.evaluation.explain import block_use, explain
from realm_jax.evaluation.run import QUESTION, SENTENCE, TrainedRun
from realm_jax.models.packing import padded_inputs
from realm_jax.training.stages.pretraining import Pretraining
from tests import tiny_world

pytestmark = pytest.mark.slow

_SENTENCE = "Later Ada built the [MASK] of Tarn."


@pytest.fixture(scope="module")
def every_block(run, run_with) -> TrainedRun:
  """The run with all blocks as candidates."""
  return run_with(num_candidates=run.corpus.num_blocks + 1)


# --- Sentences --------------------------------------------------------------


def test_the_likelihood_is_the_sum_over_the_candidates(run, world, params):
  explained = explain(run, "Ada was born in [MASK].", "Velt Ada")
  rows = [one.block.row for one in explained.hits]
  assert len(set(rows)) == 6 and rows[0] == -1
  corpus, components = world.corpus, world.components()
  number_of = corpus.vocabulary.pieces.index
  query = np.zeros((1, tiny_world.QUERY_LENGTH), np.int32)
  pieces = "[CLS] ada was born in [MASK] [MASK] . [SEP]".split()
  query[0, : len(pieces)] = [*map(number_of, pieces)]

  def gathered(rows):
    return corpus.gather(np.array([rows]), tiny_world.BLOCK_LENGTH)

  def scores(rows):
    x, z = jax.jit(components.retriever.apply)(
      {"params": params["retriever"]}, query, gathered(rows)
    )
    return np.asarray(z[0] @ x[0])

  # The five blocks are the best of all.
  every = scores(range(corpus.num_blocks))
  assert set(rows[1:]) == set(np.argsort(-every)[:5].tolist())
  joined = padded_inputs(components.reader.join(query, gathered(rows)))
  logits = jax.jit(
    lambda params: components.reader.apply(
      {"params": params}, joined, np.array([[5, 6]]), method="masked_lm"
    )
  )(params["reader"])
  odds = np.exp(np.float64(logits[0]))
  probabilities = odds / odds.sum(axis=-1, keepdims=True)
  odds = np.exp(scores(rows))
  prior = odds / odds.sum()
  velt, ada = map(number_of, ("velt", "ada"))
  by_token = np.stack(
    [probabilities[:, 0, velt], probabilities[:, 1, ada]], axis=1
  )
  likelihood = by_token.prod(axis=1)
  total, null = float(prior @ likelihood), float(likelihood[0])
  assert explained.probability == pytest.approx(total, rel=1e-4)
  assert explained.hits[0].likelihood == pytest.approx(null, rel=1e-4)
  assert explained.utility == pytest.approx(np.log(total / null), abs=1e-4)
  for k, one in enumerate(explained.hits):
    share = prior[k] * likelihood[k] / total
    np.testing.assert_allclose(
      [one.weight, one.likelihood, one.share],
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
    [filling.probability for filling in explained.answers], best, rtol=1e-4
  )


def test_without_an_answer_the_best_filling_is_explained(run):
  explained = explain(run, _SENTENCE)
  best = explained.answers[0]
  assert explained.answer == best.text and not explained.answer_is_given
  assert explained.probability == pytest.approx(best.probability)
  again = explain(run, _SENTENCE, best.text)
  assert again.probability == pytest.approx(explained.probability)
  assert best.without_retrieval == pytest.approx(again.hits[0].likelihood)


def test_a_block_that_contains_the_sentence_is_named(every_block):
  for sentence, titles in (
    ("Later Ada built the [MASK] of Velt.", []),
    # Too short to say where it is from.
    ("born [MASK]", []),
    ("Ada was born in [MASK] in [MASK].", ["Ada Stone"]),
    ("Later Ada [MASK] the bridge of Tarn.", ["Ada Stone"]),
  ):
    explained = explain(every_block, sentence)
    named = [c.block.title for c in explained.hits if c.contains_text]
    assert named == titles
    said = " ".join(explained.notes)
    assert ("trivial retrieval" in said) == bool(titles)


def test_training_sentences_and_the_blocks_that_help_them(
  every_block, run_config, questions
):
  sentences = dataclasses.replace(
    questions, task="masked_salient_spans", split="train", seed=5
  )
  found = block_use(
    config=run_config,
    data=sentences,
    stage=Pretraining(num_candidates=6),
    num_sampled=2,
  )
  assert len(found) == 2
  for one in found:
    explained = explain(every_block, one["sentence"], one["answer"])
    null, *blocks = explained.hits
    # No block that has the sentence itself is a candidate.
    others = [c for c in blocks if not c.contains_text][:5]
    assert len(others) == 5 < len(blocks) - 1
    best = max(others, key=lambda hit: hit.likelihood)
    assert (one["block"], one["title"]) == (best.block.id, best.block.title)
    odds = {c.block.id: np.exp(c.score) for c in (null, *others)}
    prior = odds[best.block.id] / sum(odds.values())
    total = sum(odds[c.block.id] * c.likelihood for c in (null, *others))
    share = odds[best.block.id] * best.likelihood / total
    np.testing.assert_allclose(
      (one["probability"], one["utility"], one["reward"]),
      (prior, best.utility, share - prior),
      atol=1e-4,
    )


# --- Questions --------------------------------------------------------------


def test_a_question_that_no_block_answers(run):
  explained = explain(run, "where was Ada born?", "nowhere")
  assert (explained.answer, explained.probability) == ("nowhere", 0.0)
  assert {one.share for one in explained.hits} == {None}
  assert "no block that was read has the answer" in explained.notes[-1]
  # The answers of the run are shown nevertheless.
  assert len(explained.answers) == run.config.num_fillings


@pytest.mark.parametrize(
  ("text", "num_candidates", "said"),
  [
    ("\u200b", 6, "has no words"),
    ("in [mask]", 6, "in capitals"),
    (_SENTENCE, 1, "raise NUM_CANDIDATES"),
  ],
)
def test_what_cannot_be_explained(run_with, text, num_candidates, said):
  with pytest.raises(RealmError, match=said):
    explain(run_with(num_candidates=num_candidates), text)


def test_what_the_run_was_not_trained_for(run):
  for asked, refused, said in (
    (QUESTION, "in [MASK]", "not learnt to fill in.*of pre-training"),
    (SENTENCE, "where?", r"not learnt to answer.*write \[MASK\]"),
  ):
    with pytest.raises(CheckpointError, match=said):
      explain(dataclasses.replace(run, asked=asked), refused)


def test_copies_of_a_training_sentence_leave_the_null_block(
  world, run_config, questions, tmp_path
):
  ada, *_, zoe = tiny_world.documents()
  copies = [{**ada, "id": f"copy{number}"} for number in range(8)]
  corpus_dir = tiny_world.write_corpus(
    tmp_path, [*copies, zoe], vocab=world.directory / "vocab.txt"
  )
  copied, model_dir = tiny_world.World(tmp_path), tmp_path / "run"
  copied.save_checkpoint(model_dir)
  copied.build_snapshot(model_dir)
  config = dataclasses.replace(
    run_config, model_dir=model_dir, corpus_dir=corpus_dir
  )
  sentences = dataclasses.replace(
    questions,
    task="masked_salient_spans",
    split="train",
    corpus_dir=corpus_dir,
    seed=5,
  )
  stage = Pretraining(num_candidates=3)
  found = block_use(config=config, data=sentences, stage=stage, num_sampled=8)
  of_copies = [one for one in found if "ada" in one["sentence"]]
  assert of_copies
  for one in of_copies:
    # Five blocks are searched for, and all but Zoe's are copies.
    assert one["title"] in ("", zoe["title"])
    if not one["title"]:
      assert one["block"] == "" and one["utility"] == 0
  assert "" in {one["title"] for one in of_copies}
