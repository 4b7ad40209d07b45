"""Paths of two blocks: their probabilities, their tokens, and the loss."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.paths import joined_block
from realm_jax.corpus.store import NULL_BLOCK
from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models.components import Components
from realm_jax.models.packing import padded_inputs
from realm_jax.models.sequences import joined_blocks
from realm_jax.training.stages.stage import StageContext
from realm_jax.training.stages.two_hop_qa import TwoHopQa
from realm_jax.training.two_hops import TwoHops, distinct_log_p
from tests.training import tiny

_TEXTS = [
  "The young poet met Alice.",
  "Ali met the poet.",
  "The young met Bob.",
  "The poet met the young poet Ali.",
  "Who met Bob?",
]


def _rows(draw, number, count):
  return draw(st.permutations(range(number)))[:count]


@st.composite
def _found(draw):
  """Two first blocks, and three seconds of each, that may meet."""
  first = _rows(draw, 4, 2)
  second = [_rows(draw, 4, 3) for _ in first]
  number = st.floats(-3, 3, width=32)
  scores = draw(st.lists(number, min_size=10, max_size=10))
  return np.array([first]), np.array([second]), np.array(scores)


@given(_found())
@settings(max_examples=50)
def test_probabilities_of_paths_are_those_of_a_loop(found):
  first, second, scores = found
  hops = TwoHops(2, 3)
  cells = hops.cells(first, second)
  ends = scores[2:].reshape(1, 2, 4)
  log_p = hops.log_p(scores[None, :2], ends, cells)
  expected: dict[tuple, list[float]] = {}
  of_first = log_softmax(scores[:2])
  for i, one in enumerate(first[0].tolist()):
    others = [-1, *second[0, i].tolist()]
    known = [j for j, other in enumerate(others) if other != one]
    following = log_softmax(ends[0, i, known])
    for j, p in zip(known, following, strict=True):
      key = tuple(sorted((one, others[j])))
      expected.setdefault(key, []).append(of_first[i] + p)
  totals = {key: logsumexp(own) for key, own in expected.items()}
  assert np.exp([*totals.values()]).sum() == pytest.approx(1.0)
  places = hops.best(log_p, cells, len(totals))
  best = distinct_log_p(log_p, places, cells)[0]
  np.testing.assert_allclose(best, sorted(totals.values())[::-1], atol=1e-9)
  for place, value in zip(places[0].tolist(), best.tolist(), strict=True):
    i, j = divmod(place, 4)
    pair = first[0, i], [-1, *second[0, i].tolist()][j]
    assert totals[tuple(sorted(map(int, pair)))] == pytest.approx(value)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  return tiny.corpus_of(tmp_path_factory.mktemp("paths"), _TEXTS)


def test_a_path_is_read_as_one_block(corpus):
  for rows in ([0, 1], [2, -1], [3, 2, 4]):
    blocks = [NULL_BLOCK if row < 0 else corpus.block(row) for row in rows]
    joined = joined_block(blocks, corpus.vocabulary)
    tokens = joined_blocks(
      corpus.gather(np.array(rows), tiny.BODY), separator_id=tiny.SEP
    )
    end = np.flatnonzero(tokens)[-1]
    # [CLS] and the [SEP] of an empty title come first.
    assert tokens[2:end].tolist() == joined.body_token_ids.tolist()
    assert tokens[end] == tiny.SEP
    body = joined.text.encode()
    for (start, limit), piece in zip(
      joined.byte_ranges.tolist(), joined.body_token_ids, strict=True
    ):
      word = corpus.vocabulary.encode(body[start:limit].decode())
      assert word[0] == piece or body[start:limit] == b"ce"


def test_a_title_in_a_path_keeps_its_place_in_the_text(world):
  corpus = world.corpus
  first, second = corpus.block(0), corpus.block(7)
  assert second.title
  joined = joined_block([first, second], corpus.vocabulary)
  body, start = joined.text.encode(), len(first.body_token_ids)
  ids = joined.body_token_ids[start : start + second.title_length]
  ranges = joined.byte_ranges[start : start + second.title_length]
  title = body[ranges[0, 0] : ranges[-1, 1]].decode()
  assert corpus.vocabulary.encode(title) == ids.tolist()
  assert title in second.title
  rest = joined.byte_ranges[start + second.title_length :]
  own = second.byte_ranges[:, 1] - second.byte_ranges[:, 0]
  np.testing.assert_array_equal(rest[:, 1] - rest[:, 0], own)
  assert body[rest[0, 0] :].decode().startswith(second.text[:5])


def test_more_paths_than_the_beams_may_find_are_refused():
  with pytest.raises(RealmError, match="may find 2; lower NUM_READ"):
    TwoHopQa(TwoHops(2, 2), num_read=5)


def _components() -> Components:
  made = tiny.components()
  bert = made.retriever.bert
  retriever = made.retriever.clone(hop_length=16)
  reader = made.reader.clone(joint_length=30)
  large = dataclasses.replace(bert, max_positions=32)
  return Components(
    {
      "retriever": retriever.clone(bert=large),
      "reader": reader.clone(bert=large),
    }
  )


def test_the_loss_is_the_marginal_over_distinct_paths(corpus):
  hops, components = TwoHops(2, 2), _components()
  stage = TwoHopQa(hops, num_read=4)
  answer = corpus.vocabulary.encode("Ali")
  batch = tiny.asked(corpus, "Ali", count=2)
  context = StageContext(
    components, corpus, None, tiny.BODY, answers=AnswersInBlocks(corpus)
  )
  first = np.array([[2, 3, 0], [0, 1, 2]], np.int32)
  # 2 finds itself and 3, and 3 finds 2: one path in two orders.
  second = np.array([[2, 3, 4], [2, 1, 0], [4, 2, 3], [3, 0, 1]], np.int32)
  scores = np.linspace(1, 0, 12, dtype=np.float32).reshape(4, 3)
  found = stage.joined_results(
    SearchResult(first, scores[:2]), SearchResult(second, scores)
  )
  made, _ = stage.features(batch, found, context)
  for example, path in itertools.product(range(2), range(4)):
    spans = np.argwhere(made.is_answer[example, path]).tolist()
    body = made.read[example, path, 2:].tolist()
    for start, width in spans:
      assert body[start : start + width + 1] == answer
  params = tiny.drawn(functools.partial(stage.init, components, 5, tiny.BODY))
  inputs = padded_inputs(
    jax.tree.map(jnp.asarray, stage.inputs(components, made))
  )
  encoders = stage.encoders(components, params, None)
  weighted = jax.jit(lambda inputs: stage.loss(encoders, made, inputs))(inputs)

  tower = {"params": params["retriever"]}
  embedding = {
    name: jax.jit(functools.partial(components.retriever.apply, method=name))
    for name in ("embed_queries", "embed_hop_queries", "embed_blocks")
  }

  def embed(name, tokens):
    return np.float64(embedding[name](tower, tokens[None])[0])

  @jax.jit
  def spans_of(query, block):
    return components.reader.apply(
      {"params": params["reader"]},
      padded_inputs(components.reader.join(query[None], block[None, None])),
      num_starts=len(block),
      method="spans",
    )

  expected = []
  for example in range(2):
    x, log_p = batch.arrays["query"][example], {}
    rows = [*first[example, :2].tolist()]
    blocks = corpus.gather(np.array(rows), tiny.BODY)
    q = embed("embed_queries", x)
    of_first = log_softmax([q @ embed("embed_blocks", z) for z in blocks])
    for i, row in enumerate(rows):
      own = second.reshape(2, 2, 3)[example, i].tolist()
      ends = [-1, *[other for other in own if other != row][:2]]
      hop = components.retriever.hop_queries(x[None], blocks[None, i : i + 1])
      q = embed("embed_hop_queries", np.asarray(hop)[0, 0])
      vectors = corpus.gather(np.array(ends), tiny.BODY)
      p = log_softmax([q @ embed("embed_blocks", z) for z in vectors])
      for end, value in zip(ends, p, strict=True):
        log_p.setdefault(frozenset((row, end)), []).append(of_first[i] + value)
    total = {key: logsumexp(own) for key, own in log_p.items()}
    has = {row for row in range(5) if "Ali" in corpus.block(row).text}
    right = [value for key, value in total.items() if key & has]
    loss = -logsumexp(right) if right else 0.0
    every, correct = [], []
    for path in range(4):
      tokens = made.read[example, path]
      cell = int(made.places[example, path])
      i, j = divmod(cell, 3)
      own = second.reshape(2, 2, 3)[example, i].tolist()
      ends = [-1, *[other for other in own if other != rows[i]][:2]]
      spans = spans_of(x, tokens)
      value = (
        np.float64(spans.logits[0, 0]) + total[frozenset((rows[i], ends[j]))]
      )
      every.append(value[np.asarray(spans.is_span[0, 0])])
      is_right = made.is_answer[example, path] & np.asarray(spans.is_span[0, 0])
      correct.append(value[is_right])
    correct = np.concatenate(correct)
    if len(correct):
      loss -= logsumexp(correct) - logsumexp(np.concatenate(every))
    expected.append(loss)
  assert float(weighted.loss.mean) == pytest.approx(np.mean(expected), abs=1e-5)
