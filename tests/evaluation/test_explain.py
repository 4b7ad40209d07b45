"""What an explanation says, against sums written out by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from etils import epath

from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.evaluation.block_use import block_use, block_use_text
from realm_jax.evaluation.explain import explain, load_baseline
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
    assert one["block"] in block_use_text(found)


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


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"num_candidates": 1}, "num_candidates=1"),
    ({"index_scores": True}, "has no query tower"),
  ],
)
def test_a_run_that_cannot_fill_in(run, changes, said):
  config = dataclasses.replace(run.config, **changes)
  with pytest.raises(ExplanationError, match=said):
    explain(dataclasses.replace(run, config=config), _SENTENCE)


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
  run, tmp_path, trained, refused, said
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
  other = dataclasses.replace(run, model_dir=epath.Path(tmp_path), step=7)
  with pytest.raises(ExplanationError, match=said):
    explain(other, refused)


# --- A masked language model alone ------------------------------------------


def test_a_baseline_reads_the_sentence_and_nothing_else(
  run, world, model_dir, params
):
  baseline = load_baseline(run, model_dir=model_dir, reader=tiny_world.READER)
  text = "Ada was born in [MASK]."
  found = explain(run, text, "Velt", baseline=baseline).unaided
  words, reader = world.corpus.vocabulary, world.models().reader
  pieces = "[CLS] ada was born in [MASK] . [SEP]".split()
  query = np.array([[words.pieces.index(piece) for piece in pieces]])
  logits = jax.jit(
    lambda params: reader.apply(
      {"params": params},
      sequences.padded(query),
      np.array([[5]]),
      method="masked_lm",
    )
  )(params["reader"])
  odds = np.exp(np.float64(logits[0, 0, 0]))
  probabilities = odds / odds.sum()
  velt = probabilities[words.pieces.index("velt")]
  assert found.log_likelihood == pytest.approx(np.log(velt), abs=1e-4)
  np.testing.assert_allclose(
    [filling.probability for filling in found.fillings],
    np.sort(probabilities)[::-1][:5],
    rtol=1e-4,
  )
  assert found.fillings[0].text == words.pieces[int(probabilities.argmax())]
  with pytest.raises(ExplanationError, match=r"has no \[MASK\], which a base"):
    explain(run, "where?", baseline=baseline)


def test_a_baseline_has_a_vocabulary_of_its_own(run, model_dir, tmp_path):
  (tmp_path / "checkpoints").symlink_to(model_dir / "checkpoints")
  own = tmp_path / "vocab.txt"
  # "velt" is not among its words, and is read letter by letter.
  pieces = [p if p != "velt" else "nowhere" for p in tiny_world.pieces()]
  own.write_text("\n".join(pieces))
  baseline = load_baseline(run, model_dir=tmp_path, reader=tiny_world.READER)
  found = explain(run, "in [MASK]", "Velt", baseline=baseline).unaided
  assert found.wordpieces == ["v", "##e", "##l", "##t"]
  own.write_text("\n".join([*pieces, "more"]))
  with pytest.raises(CheckpointError, match="does not fit this model"):
    load_baseline(run, model_dir=tmp_path, reader=tiny_world.READER)
