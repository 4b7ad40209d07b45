"""The page and the HTTP interface, as a Starlette application.

docs/reference/http.md is made of the docstrings of the functions that answer;
docs/service.md describes what their replies share.
"""

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import json
import socket
import urllib.parse
from collections.abc import (
  AsyncIterator,
  Callable,
  Collection,
  Hashable,
)
from typing import Any

import anyio.to_thread
import uvicorn
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
from realm_jax.feedback.log import Rewards, checked_rewards
from realm_jax.serving.service import Logged, RequestError, Service, checked
from realm_jax.serving.turns import OfTexts, Turns

_HEADERS = {
  # The page takes nothing from anywhere else, and runs no script of its text.
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
_BACKLOG = 256
# Bounds of a request: its bytes, the characters of an edited block, the number
# of edited blocks, and for programs the number of texts, of blocks for each,
# and of all blocks.
MAX_BYTES = 2 << 20
MAX_EDIT_CHARACTERS = 10_000
MAX_EDITS = 16
MAX_TEXTS = 4096
MAX_BLOCKS = 1000
MAX_RETRIEVED = 256_000

_DEFAULT_BLOCKS = 5
# Number of a turn's blocks that a question counts as.
_BLOCKS_PER_QUESTION = 128
# Connections that may be open, and the time in which a request must be here.
_MAX_CONNECTIONS = 512
_BODY_SECONDS = 30.0
_JSON = "application/json"
# What no token guards: the files of the page, and its health.
_OPEN = frozenset({"/", "/index.html", "/page.css", "/page.js", "/healthz"})


class PageApp:
  """The application.

  Args:
    service: What answers, to one request after the other.
    hosts: Host names under which it may be asked besides those of loopback, so
      that no page whose name was made to lead here can ask (DNS rebinding).
      None allows every name.
    token: Secret that a request must carry as `Authorization: Bearer TOKEN`,
      unless it is for the page's own files or for `/healthz`.
    max_waiting: Requests that may wait, besides those that are computed.
    allow_updates: Whether clients may change blocks for all.
    started: Function that is called once signals end the server.
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
    """Refuses requests of strangers, and adds headers to all answers."""

    async def send_guarded(message: Message) -> None:
      if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
      await send(message)

    app: Any = self._app
    if scope["type"] == "http":
      app = self._refusal(Headers(scope=scope), scope["path"]) or app
    await app(scope, receive, send_guarded)

  def _refusal(self, headers: Headers, path: str) -> Response | None:
    """Returns the answer to a request that may not ask."""
    host = headers.get("host", "")
    if self._hosts is not None and not _is_named(host, self._hosts):
      text = (
        f"this page was asked for as {host!r}, and answers to "
        f"{', '.join(['localhost', *self._hosts])}; open http://127.0.0.1 with "
        "its port, or start it with --allowed_hosts"
      )
      return JSONResponse({"error": text}, 403)
    given = headers.get("authorization", "").encode("latin-1")
    wanted = f"Bearer {self._token}".encode()
    if not self._token or path in _OPEN:
      return None
    if hmac.compare_digest(given, wanted):
      return None
    text = "send the service's token, as Authorization: Bearer TOKEN"
    return JSONResponse({"error": text}, 401, {"www-authenticate": "Bearer"})

  @contextlib.asynccontextmanager
  async def _serving(self, app: Starlette) -> AsyncIterator[None]:
    """Compiles the programs, before it computes any answer."""
    del app
    self._started()
    warm_up = asyncio.create_task(self._warm_up())
    yield
    warm_up.cancel()
    self._turns.cancel()

  @property
  def is_computing(self) -> bool:
    """Whether a thread computes an answer."""
    return self._turns.is_computing

  async def _warm_up(self) -> None:
    try:
      await self._turns.alone(self._service.warm_up, _never)
    except Exception:
      logging.exception("the first answer could not be computed")

  async def _health(self, request: Request) -> Response:
    """Says which checkpoint answers. It needs no token.

    Reply:
      status: `ok`, or `stale` if a newer checkpoint cannot be loaded.
      problem: Why not, or null. A service with a token leaves it out.
      checkpoint, snapshot: Their steps.
      age_seconds: Time since they were loaded.
      waiting: Number of requests that wait.
      feedback: With --accept_feedback, the number of `lists` and of `rewards`
        in the log, and whether it `is_full`.
    """
    del request
    health = self._service.health() | {"waiting": len(self._turns)}
    if self._token:
      # It may name files, and everybody can ask this.
      del health["problem"]
    return JSONResponse(health)

  async def _about(self, request: Request) -> Response:
    """Says what the page can do.

    Reply:
      runs: The runs that answer, by `question` and `masked sentence`. Each has
        `model_dir`, `checkpoint`, `snapshot`, `index` (its kind), `num_blocks`
        and `can_edit`.
      retriever: The same for the run that retrieves.
      examples: Questions to offer.
      missing: Sentences about what the page cannot do.
    """
    del request
    return JSONResponse(self._service.about())

  async def _explain(self, request: Request) -> Response:
    """Explains the answer to a question or the filling of a sentence.

    The reply is a RESULT with the fields of explanations. Its blocks have more
    fields, by which the page shows their texts.

    Body:
      text: Question, or sentence with [MASK].
      edits: List of at most 16 objects, each with the `id` of a block and the
        `text` to read instead. Optional.

    Reply:
      without: The `answer` without the best block, or for a sentence without
        any, its `probability`, whether it is the `same`, and what is
        `left_out`; null if nothing else was read.
      run: The run, as in `/api/about`.
    """
    fields = await _fields(request, "text")
    text, edits = checked(fields["text"]).strip(), fields.get("edits", [])
    if not text:
      raise RequestError(
        "there is nothing to ask; write a question or a sentence"
      )
    texts = _texts_of_blocks(edits)
    if len(edits) > MAX_EDITS:
      raise RequestError(
        f"{len(edits)} blocks are edited, and at most {MAX_EDITS} may be at "
        "once; restore some"
      )
    told = await self._turns.alone(
      lambda: self._service.explain(text, texts), request.is_disconnected
    )
    return Response(told, media_type=_JSON)

  async def _retrieve(self, request: Request) -> Response:
    """Retrieves the best blocks for queries.

    Body:
      queries: List of texts.
      k: Number of blocks for each, from 1 to 1,000; by default 5.
      where: Filter of the blocks. Optional.
      rerank: Whether the run's cross-encoder orders them; by default true.
      explore: Whether --explore_temperature draws them; by default true.
      topk: The same as `k`, in Search-R1's protocol.
      return_scores: Whether a reply in Search-R1's protocol has scores.

    Reply:
      results: For each query its `blocks`, best first, `query`, `checkpoint`,
        `snapshot`, and with --accept_feedback `request_id`.
      request_ids: All of these ids, for `/feedback`.
      result: In place of `results`, after `topk` or `return_scores`: for each
        query a list of objects with `document` and `score`, or of documents.
    """
    fields = await _fields(request, "queries")
    # With one of these, it speaks the protocol of Search-R1.
    is_of_search_r1 = bool({"topk", "return_scores"} & fields.keys())
    if is_of_search_r1 and "k" in fields:
      raise RequestError(
        "k and topk or return_scores are of two forms of this request; leave "
        "one out"
      )
    name = "topk" if is_of_search_r1 else "k"
    k, where = fields.get(name), _filter(fields)
    k = _DEFAULT_BLOCKS if k is None else k
    if not isinstance(k, int) or not 1 <= k <= MAX_BLOCKS:
      raise RequestError(f"{name}={k!r}; want 1 to {MAX_BLOCKS}")
    scores = _flag(fields, "return_scores", default=False)
    rerank = _flag(fields, "rerank", default=True)
    explore = _flag(fields, "explore", default=True)
    given: dict[str, Any] = {
      "k": k,
      "where": where,
      "rerank": rerank,
      "explore": explore,
    }
    find: OfTexts = functools.partial(self._service.retrieve, **given)
    if is_of_search_r1:
      find = functools.partial(
        self._service.documents, **given, return_scores=scores
      )
    return await self._results(
      request,
      find,
      fields["queries"],
      (name, k, scores, rerank, explore, json.dumps(where)),
      name="result" if is_of_search_r1 else "results",
      per_text=k,
      is_logged=self._service.feedback is not None,
    )

  async def _answer(self, request: Request) -> Response:
    """Answers questions; the run must be of open QA.

    Body:
      questions: List of texts.
      where, rerank: As in `/retrieve`.

    Reply:
      results: For each question a RESULT, with its `question`.
    """
    fields = await _fields(request, "questions")
    texts, where = fields["questions"], _filter(fields)
    rerank = _flag(fields, "rerank", default=True)
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
    """Answers a program: in the field `name`, a result for each text.

    `per_text` blocks are retrieved for each. If they are logged, the reply has
    the `request_ids` of the lists, in the order of the texts.
    """
    most = min(MAX_TEXTS, MAX_RETRIEVED // per_text)
    if not isinstance(texts, list) or not 1 <= len(texts) <= most:
      raise RequestError(
        f"want a list of 1 to {most} texts, where {per_text} blocks are "
        "retrieved for each; send them in several requests"
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
    given = name.encode(), b", ".join(computed), ids.encode()
    return Response(b'{"%s": [%s]%s}' % given, media_type=_JSON)

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
    texts = _texts_of_blocks((await _fields(request, "blocks"))["blocks"])
    # It is done for all clients, also where the one that asked has gone.
    told = await self._turns.alone(lambda: self._service.update(texts), _never)
    return Response(told, media_type=_JSON)

  async def _feedback(self, request: Request) -> Response:
    """Logs rewards for lists that `/retrieve` returned.

    Without --accept_feedback, the status is 403.

    Body:
      feedback: List of objects, each with `request_id` and `rewards`: a number
        from −1 to 1 for the list, or a list with a number for each block.

    Reply:
      accepted: Number of rewards that were new.
      repeated: Number of those for lists that had some already.
    """
    if self._service.feedback is None:
      raise HTTPException(
        403, "this service takes no feedback; start it with --accept_feedback"
      )
    fields = await _fields(request, "feedback")
    rewards = _rewards(fields["feedback"])
    # Not after requests that wait for the devices.
    told = await anyio.to_thread.run_sync(self._service.take_feedback, rewards)
    return JSONResponse(told)


async def _fields(request: Request, wanted: str) -> dict[str, Any]:
  """Returns the fields of a request in JSON; the wanted one is there."""
  kind = request.headers.get("content-type", "").partition(";")[0].strip()
  if kind.lower() != "application/json":
    # Another site's page can send a form here, and no JSON.
    raise HTTPException(415, "send JSON, with Content-Type: application/json")
  body = bytearray()
  try:
    async with asyncio.timeout(_BODY_SECONDS):
      async for chunk in request.stream():
        body += chunk
        # Whatever the header says.
        if len(body) > MAX_BYTES:
          raise HTTPException(
            413,
            f"the request has more than {MAX_BYTES:,} bytes; shorten the text, "
            "or restore some blocks",
          )
  except TimeoutError:
    raise HTTPException(
      408, f"the request did not arrive within {_BODY_SECONDS:.0f} s"
    ) from None
  try:
    fields = json.loads(body.decode("utf-8"))
  except (ValueError, RecursionError) as error:
    raise RequestError(f"the request is no JSON: {error}") from None
  if not isinstance(fields, dict) or wanted not in fields:
    raise RequestError(f'the request has no field {wanted!r}, as in {{"…": …}}')
  return fields


def _filter(fields: dict[str, Any]) -> dict[str, Any] | None:
  """Returns the filter of a request, if it has one."""
  where = fields.get("where")
  if where is not None and not isinstance(where, dict):
    raise RequestError(
      f'where={where!r}; want an object such as {{"language": "de"}}'
    )
  return where


def _flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
  """Returns a field of a request that is true or false."""
  found = fields.get(name)
  found = default if found is None else found
  if not isinstance(found, bool):
    raise RequestError(f"{name}={found!r}; want true or false")
  return found


def _texts_of_blocks(blocks: Any) -> dict[str, str]:
  """Returns the texts of blocks by the names of the blocks."""
  try:
    return {
      checked(block["id"]): checked(block["text"], MAX_EDIT_CHARACTERS)
      for block in blocks
    }
  except (KeyError, TypeError) as error:
    raise RequestError(
      'the blocks are not [{"id": "…", "text": "…"}], with ids of an answer: '
      f"{error!r}"
    ) from None


def _rewards(sent: Any) -> list[tuple[str, Rewards]]:
  """Returns request IDs, each with its rewards.

  Raises:
    RequestError, FeedbackError: They are malformed, or too many.
  """
  if not isinstance(sent, list) or not 1 <= len(sent) <= MAX_TEXTS:
    raise RequestError(
      f"want a list of 1 to {MAX_TEXTS} objects "
      '{"request_id": "…", "rewards": …} as feedback'
    )
  found = list[tuple[str, Rewards]]()
  for one in sent:
    if not isinstance(one, dict) or not {"request_id", "rewards"} <= {*one}:
      raise RequestError(
        f'{one!r:.60} is no feedback; want {{"request_id": "…", "rewards": …}}'
      )
    name, rewards = checked(one["request_id"]), one["rewards"]
    if isinstance(rewards, list) and len(rewards) > MAX_BLOCKS:
      raise RequestError(f"{len(rewards)} rewards are more than any list has")
    found.append((name, checked_rewards(rewards)))
  return found


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
  # Starlette raises the error afterwards, and the server logs its traceback.
  del request, error
  return JSONResponse({"error": "a bug; the server's log has more"}, 500)


def is_loopback(host: str) -> bool:
  """Returns whether a name or an address leads to this machine alone."""
  if host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def _is_named(host: str, hosts: Collection[str]) -> bool:
  """Returns whether a Host header, with a port or without, is allowed."""
  try:
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
  except ValueError:
    return False
  return is_loopback(name) or name in hosts


def listen(host: str, port: int) -> socket.socket:
  """Returns a socket that listens; port 0 takes a free one.

  Raises:
    OSError: The address is in use, is not this machine's, or may not be used.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  listening = socket.create_server(
    (host, port), family=family, backlog=_BACKLOG
  )
  if not is_loopback(listening.getsockname()[0]):
    logging.warning(
      "The page listens on %s: whoever reaches this machine can ask the model, "
      "unless --token is given; --host=127.0.0.1 is for this machine alone",
      host,
    )
  return listening


def url_of(listening: socket.socket) -> str:
  """Returns the URL of what a socket serves."""
  host, port = listening.getsockname()[:2]
  if host in ("0.0.0.0", "::"):
    host = socket.gethostname()
  return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_of(app: PageApp, *, farewell_seconds: int = 1) -> uvicorn.Server:
  """Returns a server, whose `run` ends with SIGTERM, SIGINT or `should_exit`.

  Args:
    app: What it serves.
    farewell_seconds: Time for which the end waits for what is computed.
  """
  return uvicorn.Server(
    uvicorn.Config(
      app,
      http="h11",
      ws="none",
      log_config=None,
      access_log=False,
      server_header=False,
      limit_concurrency=_MAX_CONNECTIONS,
      timeout_graceful_shutdown=farewell_seconds,
    )
  )
