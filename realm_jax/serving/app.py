"""The page and the HTTP interface, as a Starlette application.

docs/reference/http.md is generated from the docstrings of the handlers;
docs/service.md describes the objects that their replies share.
"""

import asyncio
import contextlib
import functools
import hmac
import json
import urllib.parse
from collections.abc import (
  AsyncIterator,
  Callable,
  Collection,
  Hashable,
)
from typing import Any

import anyio.to_thread
from absl import logging
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from realm_jax.errors import RealmError
from realm_jax.serving.requests import (
  MAX_BLOCKS,
  MAX_EDITS,
  MAX_RETRIEVED,
  MAX_TEXTS,
  RequestError,
  checked,
  fields_of,
  filter_of,
  flag_of,
  rewards_of,
  texts_of_blocks,
)
from realm_jax.serving.server import is_loopback
from realm_jax.serving.service import Logged, Service
from realm_jax.serving.turns import OfTexts, Turns

_HEADERS = {
  # The page loads nothing from other hosts, and runs no inline scripts.
  "content-security-policy": (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
  ),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-resource-policy": "same-origin",
  "cache-control": "no-store",
}
_DEFAULT_BLOCKS = 5
# Cost of a question in a turn, in blocks.
_BLOCKS_PER_QUESTION = 128
_JSON = "application/json"
# Paths that need no token: the files of the page, and the health check.
_OPEN = frozenset({"/", "/index.html", "/page.css", "/page.js", "/healthz"})


class PageApp:
  """The application.

  Args:
    service: Service that answers requests, one after the other.
    hosts: Host names that requests may use, besides localhost and loopback
      addresses. The check prevents DNS rebinding, with which another page could
      send requests. None allows every name.
    token: Secret that a request must send as `Authorization: Bearer TOKEN`,
      except for the page's own files and `/healthz`.
    max_waiting: Number of requests that may wait, besides those in progress.
    allow_updates: Whether clients may change blocks for all clients.
    started: Function that is called once the server handles signals.
  """

  def __init__(
    self,
    service: Service,
    *,
    hosts: Collection[str] | None = (),
    token: str | None = None,
    max_waiting: int = 64,
    allow_updates: bool = False,
    started: Callable[[], object] = lambda: None,
  ):
    self._service = service
    self._hosts = hosts
    self._token = token
    self._turns = Turns(max_waiting)
    self._allow_updates = allow_updates
    self._started = started
    self._app = Starlette(
      routes=[
        Route("/healthz", self._health),
        Route("/api/about", self._about),
        Route("/api/ask", self._explain, methods=["POST"]),
        Route("/retrieve", self._retrieve, methods=["POST"]),
        Route("/ask", self._answer, methods=["POST"]),
        Route("/update", self._update, methods=["POST"]),
        Route("/feedback", self._feedback, methods=["POST"]),
        Mount(
          "/", StaticFiles(packages=[("realm_jax.serving", "page")], html=True)
        ),
      ],
      exception_handlers={
        RealmError: _refused,
        HTTPException: _refused,
        Exception: _failed,
      },
      lifespan=self._serving,
    )

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Rejects unauthorized requests, and adds headers to all responses."""

    async def send_guarded(message: Message) -> None:
      if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
      await send(message)

    app: Any = self._app
    if scope["type"] == "http":
      app = self._refusal(Headers(scope=scope), scope["path"]) or app
    await app(scope, receive, send_guarded)

  def _refusal(self, headers: Headers, path: str) -> Response | None:
    """Returns the response to an unauthorized request, or None."""
    host = headers.get("host", "")
    if self._hosts is not None and not _is_named(host, self._hosts):
      text = (
        f"this page was requested as {host!r}, but only answers to "
        f"{', '.join(['localhost', *self._hosts])}; open http://127.0.0.1 with "
        "its port, or start it with --allowed_hosts"
      )
      return JSONResponse({"error": text}, 403)
    sent = headers.get("authorization", "").encode("latin-1")
    expected = f"Bearer {self._token}".encode()
    if not self._token or path in _OPEN:
      return None
    if hmac.compare_digest(sent, expected):
      return None
    text = "send the service's token, as Authorization: Bearer TOKEN"
    return JSONResponse({"error": text}, 401, {"www-authenticate": "Bearer"})

  @contextlib.asynccontextmanager
  async def _serving(self, app: Starlette) -> AsyncIterator[None]:
    """Compiles the programs before the first answer."""
    del app
    self._started()
    warm_up = asyncio.create_task(self._warm_up())
    yield
    warm_up.cancel()
    self._turns.cancel()

  @property
  def is_computing(self) -> bool:
    """Whether a thread is computing an answer."""
    return self._turns.is_computing

  async def _warm_up(self) -> None:
    try:
      await self._turns.alone(self._service.warm_up, _never)
    except RealmError as error:
      logging.warning("the first answer could not be computed: %s", error)
    except Exception:
      logging.exception("the first answer could not be computed")

  async def _health(self, request: Request) -> Response:
    """Returns the current checkpoint and its state. Needs no token.

    Reply:
      status: `ok`, or `stale` if a newer checkpoint cannot be loaded.
      problem: Reason for `stale`, or null. Omitted if the service has a token.
      checkpoint, snapshot: Steps of the checkpoint and the snapshot.
      age_seconds: Time since they were loaded.
      waiting: Number of waiting requests.
      feedback: With --accept_feedback, the number of `lists` and of `rewards`
        in the log, and whether it `is_full`.
    """
    del request
    health = self._service.health() | {"waiting": len(self._turns)}
    if self._token:
      # It may contain paths, and this request needs no token.
      del health["problem"]
    return JSONResponse(health)

  async def _about(self, request: Request) -> Response:
    """Describes the runs behind the page.

    Reply:
      runs: Runs that answer, by `question` and `masked sentence`. Each has
        `model_dir`, `checkpoint`, `snapshot`, `index` (its kind), `num_blocks`
        and `can_edit`.
      retriever: The same fields for the run that retrieves.
      examples: Example questions.
      missing: Sentences about what the page cannot do.
    """
    del request
    return JSONResponse(self._service.about())

  async def _explain(self, request: Request) -> Response:
    """Explains the answer to a question or the filling of a sentence.

    The reply is a RESULT with the fields of explanations. Its blocks have
    additional fields, from which the page displays their texts.

    Body:
      text: Question, or sentence with [MASK].
      edits: List of at most 16 objects, each with the `id` of a block and the
        `text` to read instead. Optional.

    Reply:
      without: Answer without the best block (for a sentence, without any
        blocks), with fields `answer`, `probability`, `same` (whether the answer
        is unchanged) and `left_out`; null if nothing else was read.
      run: The run, as in `/api/about`.
    """
    fields = await fields_of(request, "text")
    text, edits = checked(fields["text"]).strip(), fields.get("edits", [])
    if not text:
      raise RequestError(
        "there is nothing to ask; write a question or a sentence"
      )
    texts = texts_of_blocks(edits)
    if len(edits) > MAX_EDITS:
      raise RequestError(
        f"{len(edits)} blocks are edited, and at most {MAX_EDITS} may be at "
        "once; restore some"
      )
    reply = await self._turns.alone(
      lambda: self._service.explain(text, texts), request.is_disconnected
    )
    return Response(reply, media_type=_JSON)

  async def _retrieve(self, request: Request) -> Response:
    """Retrieves the best blocks for queries.

    Body:
      queries: List of texts.
      k: Number of blocks for each query, from 1 to 1,000; by default 5.
      where: Filter of the blocks. Optional.
      rerank: Whether the run's cross-encoder orders the blocks; by default
        true.
      explore: Whether the blocks are sampled with --explore_temperature; by
        default true.
      topk: Same as `k`, in Search-R1's protocol.
      return_scores: Whether a reply in Search-R1's protocol has scores.

    Reply:
      results: For each query, its `blocks`, best first, with `query`,
        `checkpoint`, `snapshot`, and `request_id` with --accept_feedback.
      request_ids: All request ids, for `/feedback`.
      result: In place of `results` if the request has `topk` or
        `return_scores`: for each query, a list of objects with `document` and
        `score`, or a list of documents.
    """
    fields = await fields_of(request, "queries")
    # These fields select the protocol of Search-R1.
    is_of_search_r1 = bool({"topk", "return_scores"} & fields.keys())
    if is_of_search_r1 and "k" in fields:
      raise RequestError(
        "k and topk or return_scores belong to different forms of this "
        "request; leave out k, or the others"
      )
    name = "topk" if is_of_search_r1 else "k"
    k = fields.get(name)
    k = _DEFAULT_BLOCKS if k is None else k
    if type(k) is not int or not 1 <= k <= MAX_BLOCKS:
      raise RequestError(f"{name}={k!r}; want 1 to {MAX_BLOCKS}")
    settings: dict[str, Any] = {
      "k": k,
      "where": filter_of(fields),
      "rerank": flag_of(fields, "rerank", default=True),
      "explore": flag_of(fields, "explore", default=True),
    }
    search: Callable[..., Any] = self._service.retrieve
    if is_of_search_r1:
      settings["return_scores"] = flag_of(
        fields, "return_scores", default=False
      )
      search = self._service.documents
    return await self._results(
      request,
      functools.partial(search, **settings),
      fields["queries"],
      (name, json.dumps(settings)),
      name="result" if is_of_search_r1 else "results",
      per_text=k,
      is_logged=self._service.feedback is not None,
    )

  async def _answer(self, request: Request) -> Response:
    """Answers questions, with a run of open QA.

    Body:
      questions: List of texts.
      where, rerank: As in `/retrieve`.

    Reply:
      results: For each question, a RESULT with its `question`.
    """
    fields = await fields_of(request, "questions")
    texts, where = fields["questions"], filter_of(fields)
    rerank = flag_of(fields, "rerank", default=True)
    answer = functools.partial(self._service.answer, where=where, rerank=rerank)
    key = "ask", rerank, json.dumps(where)
    return await self._results(request, answer, texts, key)

  async def _results(
    self,
    request: Request,
    function: OfTexts,
    texts: Any,
    key: Hashable,
    *,
    name: str = "results",
    per_text: int = _BLOCKS_PER_QUESTION,
    is_logged: bool = False,
  ) -> Response:
    """Returns a result for each text of a program's request, in field `name`.

    `per_text` blocks are retrieved for each. If they are logged, the reply has
    the `request_ids` of the lists, in the order of the texts.
    """
    most = min(MAX_TEXTS, MAX_RETRIEVED // per_text)
    if not isinstance(texts, list) or not 1 <= len(texts) <= most:
      is_list = isinstance(texts, list)
      came = f"{len(texts)} texts" if is_list else f"{texts!r:.50}"
      raise RequestError(
        f"the request has {came}; want a list of 1 to {most} texts, because "
        f"{per_text} blocks are retrieved for each; send more texts in several "
        "requests"
      )
    cost, ids = len(texts) * per_text, ""
    feedback = self._service.feedback
    if is_logged and feedback is not None:
      texts = [Logged(text, feedback.log.new_id()) for text in texts]
      ids = json.dumps([one.request_id for one in texts])
      ids = f', "request_ids": {ids}'
    computed = await self._turns.compute(
      function, texts, key, cost, is_gone=request.is_disconnected
    )
    parts = name.encode(), b", ".join(computed), ids.encode()
    return Response(b'{"%s": [%s]%s}' % parts, media_type=_JSON)

  async def _update(self, request: Request) -> Response:
    """Changes blocks for all clients, until the service ends.

    Without --allow_updates, the status is 403.

    Body:
      blocks: List of objects, each with the `id` of a block and its new `text`.

    Reply:
      updated: Number of blocks.
    """
    if not self._allow_updates:
      raise HTTPException(
        403, "this service changes no blocks; start it with --allow_updates"
      )
    texts = texts_of_blocks((await fields_of(request, "blocks"))["blocks"])
    # This is for all clients, even if the one that sent it has disconnected.
    reply = await self._turns.alone(lambda: self._service.update(texts), _never)
    return Response(reply, media_type=_JSON)

  async def _feedback(self, request: Request) -> Response:
    """Logs rewards for lists that `/retrieve` returned.

    Without --accept_feedback, the status is 403.

    Body:
      feedback: List of objects, each with `request_id` and `rewards`: a number
        from −1 to 1 for the list, or a list with a number for each block.

    Reply:
      accepted: Number of rewards that were new.
      repeated: Number of rewards for lists that already had some.
    """
    feedback = self._service.feedback
    if feedback is None:
      raise HTTPException(
        403, "this service takes no feedback; start it with --accept_feedback"
      )
    fields = await fields_of(request, "feedback")
    rewards = rewards_of(fields["feedback"])
    try:
      # Does not queue with the requests that wait for the devices.
      new = await anyio.to_thread.run_sync(feedback.log.add_rewards, rewards)
    except OSError as error:
      raise HTTPException(
        503,
        f"the rewards cannot be written ({error.strerror}); send them again "
        "when the disk has space",
      ) from error
    return JSONResponse({"accepted": new, "repeated": len(rewards) - new})


async def _refused(request: Request, error: Exception) -> Response:
  del request
  if isinstance(error, HTTPException):
    return JSONResponse(
      {"error": error.detail}, error.status_code, error.headers
    )
  return JSONResponse({"error": str(error)}, 400)


async def _never() -> bool:
  return False


async def _failed(request: Request, error: Exception) -> Response:
  # Afterwards, Starlette raises the error, and the server logs its traceback.
  del request, error
  return JSONResponse({"error": "a bug; the server's log has more"}, 500)


def _is_named(host: str, hosts: Collection[str]) -> bool:
  """Returns whether a Host header is allowed; it may have a port."""
  try:
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
  except ValueError:
    return False
  return is_loopback(name) or name in hosts
