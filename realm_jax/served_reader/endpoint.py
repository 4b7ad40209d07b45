"""Requests to a served language model, with retries.

`/v1/completions` gives the log-probabilities of a prompt in two ways: OpenAI's
`echo` with `logprobs`, and vLLM's `prompt_logprobs`. A server that has neither,
such as one for chats alone, cannot be a reader.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import httpx
import tenacity
from absl import logging

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import RetrievalUnavailableError
from realm_jax.served_reader.alignment import (
  Alignment,
  Tokens,
  alignment_of,
  test_prompt,
  visible,
)

if TYPE_CHECKING:
  from realm_jax.served_reader.scoring import ServedLanguageModel

T = TypeVar("T")
# One token is always generated, because some servers treat 0 as no limit.
_BODIES: dict[str, dict[str, Any]] = {
  "prompt_logprobs": {"prompt_logprobs": 1},
  "echo": {"echo": True, "logprobs": 1},
}
_NO_KEY, _NOT_THERE = (401, 403), (404, 405)
# Status codes of a server that is busy or unavailable.
_AWAY = (408, 425, 429, 502, 503, 504)
_LONGEST_PAUSE_SECONDS = 30.0
# Timeout of the first check of an endpoint.
_CHECK_SECONDS = 10.0
_MALFORMED = AttributeError, IndexError, KeyError, TypeError, ValueError
# Number of characters of a response that a message quotes.
_QUOTED = 200


class EndpointError(RealmError):
  """An endpoint cannot be a reader, or refuses the key."""


class RefusedError(Exception):
  """The endpoint returns no log-likelihood of this text."""


class _AwayError(Exception):
  """The endpoint is unavailable or busy."""


class _FailedError(Exception):
  """A request failed, possibly because of its text, or took too long."""


class Score(NamedTuple):
  """Log-likelihood of a target.

  Attributes:
    total: Sum of log p of the target's tokens.
    num_tokens: Number of the target's tokens.
    num_billed: Number of tokens for which the request is billed.
  """

  total: float
  num_tokens: int
  num_billed: int


@contextlib.asynccontextmanager
async def opened(model: "ServedLanguageModel") -> AsyncIterator["Endpoint"]:
  """Opens a client for a model's endpoint, without sending a request.

  Raises:
    EndpointError: The environment has no key.
  """
  headers = {}
  if (name := model.api_key_variable) is not None:
    if not (key := os.environ.get(name)):
      raise EndpointError(
        f"API_KEY_VARIABLE={name!r}, and the environment lacks it; export "
        f"{name} before the command"
      )
    headers = {"Authorization": f"Bearer {key}"}
  number = model.requests_at_once
  async with httpx.AsyncClient(
    base_url=model.reader_url,
    headers=headers,
    timeout=model.request_timeout_seconds,
    limits=httpx.Limits(
      max_connections=number, max_keepalive_connections=number
    ),
  ) as client:
    yield Endpoint(client, model)


class Endpoint:
  """A served language model.

  Args:
    client: Client with the URL, the key and the timeout of a request.
    model: Its settings.
  """

  def __init__(self, client: httpx.AsyncClient, model: "ServedLanguageModel"):
    self._client, self._model = client, model
    self._prompt = test_prompt(model.prompt.rpartition("{query}")[2])
    self._target = model.target.replace("{answer}", "Paris")
    self._limit = asyncio.Semaphore(model.requests_at_once)
    self._looking = asyncio.Lock()
    self._kind, self._alignment = "", Alignment("tokens")

  async def check(self) -> None:
    """Raises an `EndpointError` if an available endpoint cannot be a reader.

    It may return no log-probabilities, refuse the key, or tokenize across the
    end of the prompt.
    """
    try:
      await asyncio.wait_for(self._look(), _CHECK_SECONDS)
    except (TimeoutError, _AwayError, _FailedError) as error:
      logging.warning("%s is away: %s", self._client.base_url, error)

  async def wait_until_there(self) -> None:
    """Waits for the endpoint, and finds out which requests it supports.

    Raises:
      RetrievalUnavailableError: The endpoint was unavailable for too long.
      EndpointError: As for `check`.
    """
    await self._until_there(self._look, or_fails=True)

  async def score(self, prompt: str, target: str) -> Score:
    """Returns the log-likelihood of a target after a prompt.

    Call `wait_until_there` before.

    Raises:
      RefusedError: The endpoint returns no log-likelihood for the text.
      RetrievalUnavailableError: The endpoint was unavailable for too long.
      EndpointError: The endpoint refuses the key, or is not one any more.
    """
    failure = ""
    for _ in range(self._model.tries):
      try:
        text = prompt + target
        tokens = await self._until_there(self._tokens_of, text, self._kind)
      except _FailedError as error:
        failure = str(error)
        # If the endpoint is available, the text caused the failure.
        await self.wait_until_there()
        continue
      place = self._alignment.target_of(tokens, prompt, target)
      if place is None:
        raise RefusedError("no token ends where the prompt does")
      log_probs = tokens.log_probs[place]
      total = sum(math.nan if one is None else one for one in log_probs)
      if not log_probs or not math.isfinite(total):
        raise RefusedError(
          f"the log-probabilities are {log_probs!r:.{_QUOTED}}"
        )
      return Score(total, len(log_probs), tokens.num_billed)
    raise RefusedError(
      f"{self._model.tries} tries failed, the last with: {failure}"
    )

  async def _until_there(
    self,
    ask: Callable[..., Awaitable[T]],
    *arguments: Any,
    or_fails: bool = False,
  ) -> T:
    """Retries until the endpoint is available, with growing pauses.

    With `or_fails`, other failures also count as unavailability.
    """
    kinds = (_AwayError, _FailedError) if or_fails else (_AwayError,)
    seconds = self._model.away_seconds
    retrying = tenacity.AsyncRetrying(
      retry=tenacity.retry_if_exception_type(kinds),
      wait=tenacity.wait_random_exponential(max=_LONGEST_PAUSE_SECONDS),
      stop=tenacity.stop_after_delay(seconds),
      reraise=True,
    )
    try:
      return await retrying(ask, *arguments)
    except (_AwayError, _FailedError) as error:
      if not isinstance(error, kinds):
        raise
      raise RetrievalUnavailableError(
        f"{self._client.base_url} was away for {seconds:.0f} s ({error}); "
        "start it, or raise AWAY_SECONDS, and run the same command"
      ) from error

  async def _look(self) -> None:
    """Finds out which requests the endpoint supports, with a test text."""
    async with self._looking:
      reasons = []
      for kind in _BODIES:
        try:
          tokens = await self._tokens_of(self._prompt + self._target, kind)
        except RefusedError as error:
          reasons.append(f"{kind}: {error}")
          continue
        alignment = alignment_of(tokens, self._prompt)
        if alignment is None:
          raise EndpointError(
            f"no token of {self._model.reader_model!r} ends with the prompt "
            f"{self._prompt!r}: it has {tokens.texts}; let PROMPT end in a "
            "sign such as ':', and TARGET begin with a space"
          )
        self._kind, self._alignment = kind, alignment
        return
    raise EndpointError(
      f"{self._client.base_url} gives no log-probabilities of a prompt "
      f"({'; '.join(reasons)}); a reader needs /v1/completions with echo and "
      "logprobs, or vLLM's prompt_logprobs (docs/readers.md)"
    )

  async def _tokens_of(self, text: str, kind: str) -> Tokens:
    """Requests the tokens of a text."""
    body = {"model": self._model.reader_model, "prompt": text}
    body |= {"max_tokens": 1, "temperature": 0.0, **_BODIES[kind]}
    async with self._limit:
      try:
        answer = await self._client.post("completions", json=body)
      except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise _AwayError(f"{type(error).__name__} {error}") from error
      except httpx.TransportError as error:
        raise _FailedError(f"{type(error).__name__} {error}") from error
    self._require_answer(answer)
    try:
      reply = answer.json()
    except ValueError as error:
      raise _FailedError(f"no JSON: {answer.text!r:.{_QUOTED}}") from error
    try:
      return _PARSERS[kind](reply, text)
    except _MALFORMED as error:
      raise RefusedError(
        f"the answer has none: {answer.text!r:.{_QUOTED}}"
      ) from error

  def _require_answer(self, answer: httpx.Response) -> None:
    code, text = answer.status_code, f"{answer.text!r:.{_QUOTED}}"
    said = f"{answer.request.url} answers with {code}, {text}"
    if code in _NO_KEY:
      raise EndpointError(
        f"{said}; put its key into the environment, in the variable that "
        "API_KEY_VARIABLE names"
      )
    if code in _NOT_THERE:
      raise EndpointError(
        f"{said}; want a READER_URL whose server has /v1/completions, and not "
        "chats alone, and a READER_MODEL that it serves"
      )
    if code in _AWAY:
      raise _AwayError(said)
    if code >= 500:
      raise _FailedError(said)
    if not answer.is_success:
      raise RefusedError(f"status {code}, {text}")


def _of_echo(reply: Any, text: str) -> Tokens:
  del text
  choice = reply["choices"][0]
  echoed, usage = choice["logprobs"], reply.get("usage") or {}
  tokens, log_probs = list(echoed["tokens"]), list(echoed["token_logprobs"])
  generated = int(usage.get("completion_tokens", 1))
  if len(tokens) <= generated or len(tokens) != len(log_probs):
    raise ValueError("no echo")
  offsets = echoed.get("text_offset")
  if offsets is not None and len(offsets) != len(tokens):
    offsets = None
  billed = int(usage.get("total_tokens", len(tokens)))
  return Tokens(tokens, log_probs, offsets, generated, billed)


def _of_prompt_logprobs(reply: Any, text: str) -> Tokens:
  entries = reply["choices"][0]["prompt_logprobs"]
  # The token itself comes first, before more likely ones.
  tokens = [next(iter(one.values())) for one in entries[1:]]
  texts = [str(one["decoded_token"]) for one in tokens]
  # The first token has no entry: its text is what the others lack.
  whole, others = visible(text), "".join(map(visible, texts))
  first = whole.removesuffix(others) if others else whole
  usage = reply.get("usage") or {}
  billed = int(usage.get("total_tokens", len(entries)))
  log_probs = [None, *(float(one["logprob"]) for one in tokens)]
  return Tokens([first, *texts], log_probs, None, 0, billed)


_PARSERS = {"echo": _of_echo, "prompt_logprobs": _of_prompt_logprobs}
