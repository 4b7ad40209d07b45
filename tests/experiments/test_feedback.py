"""The agent of the comparison of feedback, against a service."""

import contextlib

import numpy as np
import pytest

from experiments.feedback.agent import WORDINGS, Agent
from realm_jax.evaluation.ask import answer_from_blocks
from realm_jax.feedback.examples import FeedbackExamples
from realm_jax.feedback.log import FeedbackLog
from realm_jax.serving.app import PageApp
from realm_jax.serving.service import FeedbackConfig, Service
from tests import tiny_world
from tests.serving import client

pytestmark = pytest.mark.slow


def test_an_agent_reads_what_it_got_and_sends_rewards(run, tmp_path):
  questions = [one["question"] for one in tiny_world.questions()[:4]]
  with contextlib.closing(FeedbackLog(tmp_path)) as log:
    service = Service(run, feedback=FeedbackConfig(log, 5, 1.0))
    with client.served(PageApp(service)) as port:
      agent = Agent(f"http://127.0.0.1:{port}", run, seed=0)
      # The answers that its reader gives from the passages, as a run's would.
      found = run.search(run.encode(questions), agent.top_k)
      hits, tokens = run.hits(found), run.encode(questions)
      results = answer_from_blocks(
        run.components.reader, run, questions, tokens, hits
      )
      expected = [
        max(own.answers, key=lambda a: a.score).text for own in results
      ]
      documents = [
        [
          {
            "document": {"title": hit.block.title, "text": hit.block.text},
            "score": hit.score,
          }
          for hit in own
        ]
        for own in hits
      ]
      told = agent.read(questions, documents)
      assert [answer for answer, _ in told] == expected
      assert all(
        answer in own[place]["document"]["text"]
        for (answer, place), own in zip(told, documents, strict=True)
      )
      rewards = agent.ask(questions, expected)
  assert len(rewards) == 4 and {*np.multiply(rewards, 4)} <= {0, 1, 2, 3, 4}
  assert agent.logits.sum() == pytest.approx(0, abs=1e-6)
  lists = [FeedbackExamples(tmp_path, s) for s in ("train", "validation")]
  sent = [own[n].rewards for own in lists for n in range(len(own))]
  assert np.mean([*map(sum, sent)]) == pytest.approx(np.mean(rewards))
  assert len(agent.logits) == len(WORDINGS)
