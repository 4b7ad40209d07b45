"""Log-likelihoods of candidates from a served language model."""

import asyncio
import dataclasses
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float32

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import WaitPreemptedError
from realm_jax.served_reader.kept_scores import ScoreCache, StepScores
from realm_jax.settings import (
  NonNegativeFloat,
  PositiveFloat,
  PositiveInt,
  require_valid,
)
from realm_jax.storage.staging import cache_directory
from realm_jax.training.stages.stage import StepOnHost

if TYPE_CHECKING:
  from realm_jax.served_reader.endpoint import Endpoint, Score

_CACHE = "log_likelihoods.sqlite"
_POLL_SECONDS = 0.2
_FIELD = re.compile(r"\{(title|text|query|answer)\}")


class Text(NamedTuple):
  """A prompt, and the target whose log-likelihood is requested."""

  prompt: str
  target: str


class Scored(NamedTuple):
  """Log-likelihoods of the candidates of a step.

  Attributes:
    log_likelihoods: ℓ of each text; −inf if the endpoint returned none.
    metrics: Metrics of the step's costs.
  """

  log_likelihoods: Float32[np.ndarray, " n"]
  metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class ServedLanguageModel:
  """A language model behind a URL, and the templates of its texts.

  It reads a candidate's passage, the prompt and the target, one after the
  other. The prompt must end at the end of a token.

  Attributes:
    reader_url: URL of the endpoint, such as http://localhost:8000/v1.
    reader_model: Name of the model, for the server and in the cache.
    passage: Template of a candidate, with {title} and {text}. The null block
      has no passage.
    prompt: Template of the text after the passage, with {query}.
    target: Template of the text that is scored, with {answer}.
    mean_likelihood: Whether ℓ is the mean of log p over the target's tokens
      instead of the sum.
    api_key_variable: Environment variable with the key; None sends no key.
    requests_at_once: Largest number of concurrent requests.
    request_timeout_seconds: Timeout of a request.
    tries: Number of tries for a text that makes requests fail, before its
      candidate is left out.
    away_seconds: Time to wait for an unavailable endpoint before the run ends.
    score_cache: File of the cache, on a local disk. None takes one in this
      host's cache directory.
    price_per_million_tokens: Price of a million tokens, for the metric
      `reader_price`.
  """

  reader_url: str
  reader_model: str
  passage: str = "{title}\n{text}\n\n"
  prompt: str = "Question: {query}\nAnswer:"
  target: str = " {answer}"
  mean_likelihood: bool = False
  api_key_variable: str | None = None
  requests_at_once: PositiveInt = 32
  request_timeout_seconds: PositiveFloat = 120.0
  tries: PositiveInt = 3
  away_seconds: PositiveFloat = 3600.0
  score_cache: epath.PathLike | None = None
  price_per_million_tokens: NonNegativeFloat | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    for template, fields in (
      (self.passage, ("{title}", "{text}")),
      (self.prompt, ("{query}",)),
      (self.target, ("{answer}",)),
    ):
      if missing := [field for field in fields if field not in template]:
        raise RealmError(
          f"the template {template!r} lacks {', '.join(missing)}; add it"
        )
    if not self.reader_url.startswith(("http://", "https://")) or (
      "@" in self.reader_url
    ):
      raise RealmError(
        f"READER_URL={self.reader_url!r}; want http://HOST:PORT/v1 without a "
        "password: API_KEY_VARIABLE names the variable with the key"
      )

  def text(
    self, passage: Mapping[str, str] | None, query: str, answer: str
  ) -> Text:
    """Returns the text for a candidate, a query and an answer."""
    before = "" if passage is None else _filled(self.passage, passage)
    return Text(
      before + _filled(self.prompt, {"query": query}),
      _filled(self.target, {"answer": answer}),
    )

  def check(self) -> None:
    """Checks once whether the endpoint can be a reader, if it is available.

    Raises:
      EndpointError: The endpoint cannot be a reader, or the key is missing or
        wrong.
    """
    try:
      from realm_jax.served_reader import endpoint
    except ImportError as error:
      raise RealmError(
        f"a served reader needs httpx and tenacity ({error}): pip install "
        "'realm_jax[served]'"
      ) from error

    async def ask() -> None:
      async with endpoint.opened(self) as served:
        await served.check()

    asyncio.run(ask())

  def score(self, texts: Sequence[Text], step: StepOnHost) -> Scored:
    """Returns the log-likelihoods of a step's texts, and their costs.

    Raises:
      WaitPreemptedError: The run was preempted before all scores arrived.
      RetrievalUnavailableError: The endpoint was unavailable for too long.
      RealmError: The endpoint cannot be a reader, or scored none of the texts.
    """
    began, record = time.monotonic(), StepScores.of(step)
    keys = [self._key(text) for text in texts]
    digest = hashlib.sha256(b"".join(keys) + bytes([self.mean_likelihood]))
    log_likelihoods = record.read(digest.digest())
    asked = dict[bytes, Text]()
    costs = list[int]()
    if log_likelihoods is None:
      path = Path(self.score_cache or cache_directory() / _CACHE)
      with ScoreCache.opened(path) as cache:
        known = cache.known(keys)
        pairs = zip(keys, texts, strict=True)
        asked = {key: text for key, text in pairs if key not in known}
        if asked:
          scores = asyncio.run(self._ask(asked, cache, step))
          known |= {key: (s.total, s.num_tokens) for key, s in scores.items()}
          costs = [score.num_billed for score in scores.values()]
      log_likelihoods = np.array(
        [self._value(known.get(key)) for key in keys], np.float32
      )
      if len(log_likelihoods) and np.isneginf(log_likelihoods).all():
        raise RealmError(
          f"{self.reader_url} scores none of the {len(texts)} texts of step "
          f"{step.step}; the log says why: is the model's context too short?"
        )
      record.write(digest.digest(), log_likelihoods)
    missing = int(np.isneginf(log_likelihoods).sum())
    # Metrics are averaged over processes, so sums are multiplied by these.
    of_all, tokens = jax.process_count(), sum(costs)
    metrics = {
      "reader_seconds": time.monotonic() - began,
      "reader_tokens": float(tokens * of_all),
      "reader_requests": float(len(asked) * of_all),
      "missing_scores": float(missing * of_all),
    }
    if self.price_per_million_tokens is not None:
      price = self.price_per_million_tokens * tokens * of_all / 1e6
      metrics["reader_price"] = price
    return Scored(log_likelihoods, metrics)

  def _value(self, known: tuple[float, int] | None) -> float:
    if known is None:
      return -np.inf
    total, num_tokens = known
    return total / num_tokens if self.mean_likelihood else total

  def _key(self, text: Text) -> bytes:
    parts = [self.reader_model, *text]
    sizes = " ".join(str(len(part)) for part in parts)
    return hashlib.sha256("\n".join([sizes, *parts]).encode()).digest()

  async def _ask(
    self, texts: Mapping[bytes, Text], cache: ScoreCache, step: StepOnHost
  ) -> dict[bytes, "Score"]:
    """Requests the scores of texts, and adds them to the cache."""
    from realm_jax.served_reader import endpoint

    scores, refusals = dict[bytes, "Score"](), list[str]()

    async def ask_one(served: "Endpoint", key: bytes, text: Text) -> None:
      try:
        score = await served.score(*text)
      except endpoint.RefusedError as error:
        refusals.append(str(error))
        return
      cache.add(key, score.total, score.num_tokens)
      scores[key] = score

    async def ask_all() -> None:
      async with endpoint.opened(self) as served:
        await served.wait_until_there()
        async with asyncio.TaskGroup() as group:
          for key, text in texts.items():
            group.create_task(ask_one(served, key, text))

    asking = asyncio.create_task(ask_all())
    while not asking.done():
      await asyncio.wait([asking], timeout=_POLL_SECONDS)
      if step.stop_requested() and not asking.done():
        asking.cancel()
        await asyncio.wait([asking])
        raise WaitPreemptedError("the run was preempted while it was scored")
    try:
      asking.result()
    except BaseExceptionGroup as group:
      raise group.exceptions[0] from None
    if refusals:
      logging.warning(
        "%s does not score %d of %d texts at step %d, such as: %s",
        *(self.reader_url, len(refusals), len(texts), step.step, refusals[0]),
      )
    return scores


def _filled(template: str, values: Mapping[str, str]) -> str:
  """Fills in a template; the values may have braces."""
  return _FIELD.sub(lambda one: values.get(one[1], one[0]), template)
