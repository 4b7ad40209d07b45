"""Feedback by HTTP: request IDs, rewards, exploration, and what is refused."""

import contextlib

import numpy as np
import pytest

from realm_jax.feedback.log import FeedbackLog
from realm_jax.serving.app import PageApp
from realm_jax.serving.service import FeedbackConfig, Service
from tests.feedback.lists import all_lists
from tests.full_disk import full_disk
from tests.serving import client

pytestmark = pytest.mark.slow

_QUERIES = ["where was Ada born?", "who built the bridge?", 7]


@contextlib.contextmanager
def _served(run, directory, **settings):
  with contextlib.closing(FeedbackLog(directory)) as log:
    service = Service(run, feedback=FeedbackConfig(log, **settings))
    with client.served(PageApp(service)) as port:
      yield service, port


def _sent(port, ids, rewards):
  feedback = [
    {"request_id": name, "rewards": own}
    for name, own in zip(ids, rewards, strict=True)
  ]
  return client.post(port, "/feedback", feedback=feedback)


def test_the_rewards_of_a_list_are_logged_with_what_was_found(run, tmp_path):
  with _served(run, tmp_path, pool_size=5) as (_, port):
    reply = client.post(port, "/retrieve", queries=_QUERIES, k=2).json()
    plain = client.post(
      port, "/retrieve", queries=_QUERIES[:2], topk=2, return_scores=True
    ).json()
    ids = [one.get("request_id") for one in reply["results"]]
    # A query that cannot be searched for has no list.
    assert ids[2] is None and ids[:2] == reply["request_ids"][:2]
    told = _sent(port, [*ids[:2], ids[0]], [[1.0, 0.0], 0.5, 0.0])
    assert told.json() == {"accepted": 2, "repeated": 1}
    health = client.request(port, "GET", "/healthz").json()
  assert health["feedback"] == {"lists": 4, "rewards": 2, "is_full": False}
  # Search-R1's clients read the same field as without feedback.
  assert [len(own) for own in plain["result"]] == [2, 2]
  assert len(plain["request_ids"]) == 2
  found = {one.served.query: one for one in all_lists(tmp_path)}
  assert {*found} == {*_QUERIES[:2]}
  served = found[_QUERIES[0]]
  assert served.rewards == [1.0, 0.0]
  wanted = run.search(run.encode(_QUERIES[:1]), 5)
  corpus, own = run.corpus, served.served
  np.testing.assert_array_equal(own.blocks, corpus.block_ids[wanted.rows[0]])
  np.testing.assert_allclose(own.scores, wanted.scores[0], rtol=1e-5)
  assert own.shown.tolist() == [0, 1] and own.temperature is None
  shown = [block["row"] for block in reply["results"][0]["blocks"]]
  assert shown == wanted.rows[0, :2].tolist()


def test_exploration_shows_other_blocks_and_logs_their_order(run, tmp_path):
  asked = {"queries": [_QUERIES[0]] * 64, "k": 3}
  with _served(run, tmp_path, pool_size=6, temperature=5.0) as (_, port):
    drawn = client.post(port, "/retrieve", **asked).json()
    best = client.post(port, "/retrieve", **asked, explore=False).json()
    ids = drawn["request_ids"] + best["request_ids"]
    _sent(port, ids, [0.0] * len(ids))
  rows = [
    [[block["row"] for block in one["blocks"]] for one in reply["results"]]
    for reply in (drawn, best)
  ]
  found = run.search(run.encode(_QUERIES[:1]), 6).rows[0].tolist()
  assert {*map(tuple, rows[1])} == {tuple(found[:3])}
  assert len({*map(tuple, rows[0])}) > 10
  lists = [one.served for one in all_lists(tmp_path)]
  logged = [
    [found[place] for place in one.shown] for one in lists if one.temperature
  ]
  # Of one query, no more than some are learned from.
  assert len(lists) <= 50 + 50
  assert all(order in rows[0] for order in logged)


def test_an_edited_text_is_not_taken_for_the_corpus_s(run, tmp_path):
  with _served(run, tmp_path) as (service, port):
    (best,) = client.post(port, "/retrieve", queries=_QUERIES[:1], k=1).json()[
      "results"
    ]
    name = best["blocks"][0]["id"]
    service.update({name: "Ada was born in Tarn."})
    reply = client.post(port, "/retrieve", queries=_QUERIES[:1], k=30).json()
    _sent(port, reply["request_ids"], [1.0])
  (found,) = all_lists(tmp_path)
  row = best["blocks"][0]["row"]
  edited = found.served.blocks == run.corpus.block_ids[row]
  np.testing.assert_array_equal(found.served.hashes == 0, edited)


@pytest.mark.parametrize(
  "body, wanted",
  [
    ({"feedback": []}, "a list of 1 to"),
    ({"feedback": [{"request_id": "a"}]}, "is no feedback"),
    ({"feedback": [{"request_id": "a.b", "rewards": 0.5}]}, "no list of this"),
    ({"feedback": [{"request_id": 7, "rewards": 0.5}]}, "is no string"),
    ({"feedback": [{"request_id": "a.b", "rewards": 1e9}]}, "a reward is"),
    ({"feedback": [{"request_id": "a.b", "rewards": [0] * 2000}]}, "2000"),
    ({"rewards": 1.0}, "no field 'feedback'"),
  ],
)
def test_malformed_feedback_is_refused(run, tmp_path, body, wanted):
  with _served(run, tmp_path) as (_, port):
    reply = client.post(port, "/feedback", **body)
  assert reply.status_code == 400 and wanted in reply.json()["error"]


def test_rewards_that_a_full_disk_refuses_can_be_sent_again(run, tmp_path):
  with _served(run, tmp_path) as (_, port):
    ids = client.post(port, "/retrieve", queries=_QUERIES[:1]).json()
    with full_disk(1):
      refused = _sent(port, ids["request_ids"], [1.0])
    accepted = _sent(port, ids["request_ids"], [1.0])
  assert refused.status_code == 503 and "send them again" in refused.text
  assert accepted.json() == {"accepted": 1, "repeated": 0}


def test_a_service_takes_no_feedback_by_default(run):
  with client.served(PageApp(Service(run))) as port:
    reply = client.post(port, "/feedback", feedback=[])
    found = client.post(port, "/retrieve", queries=_QUERIES[:1], k=1).json()
  assert reply.status_code == 403 and "--accept_feedback" in reply.text
  assert {*found} == {"results"}
  assert "request_id" not in found["results"][0]
