"""The agent of the comparison of feedback, against a service."""

import contextlib

import numpy as np
import pytest

from experiments.feedback import comparison
from experiments.feedback.agent import WORDINGS, Agent
from experiments.pipeline import running_beside
from realm_jax.errors import RealmError
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
      searched = run.search(run.encode(questions), agent.top_k)
      hits, tokens = run.hits(searched), run.encode(questions)
      results = answer_from_blocks(
        run.components.reader, run, questions, tokens, hits
      )
      expected = [
        max(of_question.answers, key=lambda a: a.score).text
        for of_question in results
      ]
      documents = [
        [
          {
            "document": {"title": hit.block.title, "text": hit.block.text},
            "score": hit.score,
          }
          for hit in of_question
        ]
        for of_question in hits
      ]
      answered = agent.read(questions, documents)
      assert [answer for answer, _ in answered] == expected
      assert all(
        answer in of_question[place]["document"]["text"]
        for (answer, place), of_question in zip(
          answered, documents, strict=True
        )
      )
      rewards = agent.ask(questions, expected)
  assert len(rewards) == 4 and {*np.multiply(rewards, 4)} <= {0, 1, 2, 3, 4}
  assert agent.logits.sum() == pytest.approx(0, abs=1e-6)
  lists = [FeedbackExamples(tmp_path, s) for s in ("train", "validation")]
  sent = [
    examples[n].rewards for examples in lists for n in range(len(examples))
  ]
  assert np.mean([*map(sum, sent)]) == pytest.approx(np.mean(rewards))
  assert len(agent.logits) == len(WORDINGS)


def test_a_system_begins_anew_and_ends_if_its_service_fails(
  tmp_path, monkeypatch
):
  left = tmp_path / "live" / "metrics.jsonl", tmp_path / "live-corpus" / "a"
  for path in (*left, tmp_path / "corpus" / "b"):
    path.parent.mkdir()
    path.write_text("")
  monkeypatch.setattr(comparison, "call", lambda *_, **__: None)
  fails = ["-c", "raise SystemExit('no run')"]
  monkeypatch.setattr(
    comparison, "running_beside", lambda _, log: running_beside(fails, log)
  )
  steps = comparison.FeedbackSteps(tmp_path, 0, [])
  live = comparison.Live(steps, "live", steps.start()[0])
  assert not any(path.exists() for path in left)
  assert (tmp_path / "live-corpus" / "b").exists()
  with pytest.raises(RealmError, match="failed:\nno run"), live.served():
    pytest.fail("it is not served")
