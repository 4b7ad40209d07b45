"""An agent that searches, answers from the results, and sends rewards.

It works with any retrieval server that has Search-R1's protocol; only
`Agent.send` is an addition. The wording of its queries is a policy, trained by
GRPO (Shao et al. 2024, arXiv 2402.03300): the rewards of several rollouts of a
question, minus their mean and divided by their standard deviation.
"""

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np

from realm_jax.answers.match import exact_match
from realm_jax.evaluation.ask import span_logits
from realm_jax.evaluation.run import TrainedRun

_ROLLOUTS = 4
_RATE = 0.2
_PATIENCE_SECONDS = 120
# Wordings of a question: unchanged, without its first words, or with its last
# word repeated.
WORDINGS = (
  lambda question: question,
  lambda question: " ".join(question.split()[2:]),
  lambda question: f"{question} {question.split()[-1]}",
)


class Agent:
  """An agent with a frozen reader.

  Args:
    url: Address of the retrieval server.
    run: Run whose reader answers from the passages. Only its reader is used.
    seed: Seed of the rollouts.

  Attributes:
    top_k: Number of passages to request.
    logits: Logits of the policy, one for each of `WORDINGS`.
  """

  def __init__(self, url: str, run: TrainedRun, *, seed: int, top_k: int = 3):
    self._url, self._run, self.top_k = url, run, top_k
    self._rng = np.random.default_rng(seed)
    self.logits = np.zeros(len(WORDINGS))

  def ask(
    self, questions: Sequence[str], answers: Sequence[str]
  ) -> list[float]:
    """Asks each question in several rollouts, and learns from all rewards.

    Returns:
      The mean reward of each question; a correct answer has reward 1.
    """
    policy = np.exp(self.logits) / np.exp(self.logits).sum()
    numbers = np.repeat(np.arange(len(questions)), _ROLLOUTS)
    chosen = self._rng.choice(len(WORDINGS), size=len(numbers), p=policy)
    texts = [questions[number] for number in numbers.tolist()]
    queries = [
      WORDINGS[way](text) for way, text in zip(chosen, texts, strict=True)
    ]
    reply = self._post(
      "retrieve", queries=queries, topk=self.top_k, return_scores=True
    )
    answered = self.read(texts, reply["result"])
    is_right = np.array(
      [
        exact_match(answer, answers[number], "en")
        for (answer, _), number in zip(answered, numbers.tolist(), strict=True)
      ]
    )
    # The reward is for the passage with the answer.
    shown = np.arange(self.top_k)[None] == [[place] for _, place in answered]
    self.send(reply["request_ids"], (shown & is_right[:, None]).tolist())
    rewards = is_right.astype(float)
    groups = rewards.reshape(-1, _ROLLOUTS)
    mean, spread = groups.mean(axis=1), groups.std(axis=1)
    gain = (groups - mean[:, None]) / (spread[:, None] + 1e-6)
    gradient = np.eye(len(WORDINGS))[chosen] - policy
    self.logits += _RATE * (gain.reshape(-1, 1) * gradient).mean(axis=0)
    return mean.tolist()

  def send(
    self, ids: Sequence[str], rewards: Sequence[Sequence[float]]
  ) -> None:
    """Sends the rewards of passages to the server."""
    feedback = [
      {"request_id": name, "rewards": [*map(float, values)]}
      for name, values in zip(ids, rewards, strict=True)
    ]
    self._post("feedback", feedback=feedback)

  def _post(self, path: str, **fields: Any) -> dict[str, Any]:
    request = urllib.request.Request(
      f"{self._url}/{path}",
      json.dumps(fields).encode(),
      {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as reply:
      return json.load(reply)

  def read(
    self, questions: Sequence[str], results: Sequence[Sequence[Any]]
  ) -> list[tuple[str, int]]:
    """Returns the text of each question's best span, and its passage."""
    run, words = self._run, self._run.vocabulary
    shape = len(questions), self.top_k, run.corpus.block_length
    blocks, scores = np.zeros(shape, np.int32), np.full(shape[:2], -np.inf)
    bodies: dict[tuple[int, int], tuple[bytes, np.ndarray]] = {}
    for row, hits in enumerate(results):
      for place, hit in enumerate(hits):
        document = hit["document"]
        title = words.encode(document["title"])
        body = words.tokenize_with_offsets([document["text"]])
        tokens = [words.cls_id, *title, words.sep_id, *body.token_ids]
        tokens = [*tokens, words.sep_id][: shape[2]]
        blocks[row, place, : len(tokens)] = tokens
        scores[row, place] = hit["score"]
        text = document["text"].encode()
        bodies[row, place] = text, body.byte_ranges
    logits = run.compute(
      *(span_logits, run.components.span_reader, run.params["reader"]),
      query=run.encode(questions),
      blocks=blocks,
    )
    totals = logits + scores[..., None, None]
    answered = list[tuple[str, int]]()
    for row, of_spans in enumerate(totals):
      best = int(of_spans.argmax())
      place, start, width = map(int, np.unravel_index(best, of_spans.shape))
      if not np.isfinite(of_spans.flat[best]):
        answered.append(("", -1))
        continue
      text, ranges = bodies[row, place]
      first, limit = ranges[start, 0], ranges[start + width, 1]
      answered.append((text[first:limit].decode(), place))
    return answered
