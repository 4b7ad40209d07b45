"""The page and its JSON interface, as a Starlette application.

    GET  /           the page; /page.css and /page.js belong to it
    GET  /api/about  what it can do: {"runs": {KIND: {"model_dir", "checkpoint",
                     "generation", "index", "num_blocks", "can_edit"}},
                     "examples": {KIND: [TEXT]}, "missing": {KIND: TEXT},
                     "limits": {…}}, KIND being "question" or "masked sentence"
    POST /api/ask    {"text": TEXT, "edits": [{"id": ID, "text": TEXT}]}
    GET  /api/around?id=ID  the texts of the same document `before` and `after`
                     a block, each null where the document ends

The answer to `ask` is an object:

    kind, text       the request as it was understood
    answer           the best answer y; its `probability` is p(y|x)
    answers          the best ones: text, probability, without_retrieval
                     (p(y|null,x), of sentences)
    blocks           the candidates z: id (a string; null of the null block),
                     name, title, body, segments (the body in pieces, each with
                     a mark: "", "said" or "answer"), is_edited, score f(x,z),
                     retriever (the softmax of the scores), probability p(z|x),
                     reader p(y|z,x), share of p(y|x), utility, says (what the
                     reader says of it alone), contains_sentence (word for word)
    without          what it says without retrieval, see `docs/evaluation.md`
    notes, run       what one should know, and the run as `about` describes it

Edits come with each request, and the server keeps none: what one page edits,
no other page sees.

Programs ask many texts at once; docs/evaluation.md has examples:

    POST /retrieve   {"queries": [TEXT], "k": K}: for each query its blocks:
                     id, name, title, text, url, score f(x,z), probability
    POST /ask        {"questions": [TEXT]}: for each question its answer, its
                     probability, the best answers with their places, and the
                     blocks that were read
    POST /update     {"blocks": [{"id": ID, "text": TEXT}]}: other texts in
                     blocks, for all clients; only with --allow_updates

They return {"results": […]}, whose entries name `checkpoint` and `generation`.
Requests that wait together are computed together.

An error is {"error": TEXT} with status 400 (the request, or a text that does
not fit), 403 (another host's page, or no updates), 413 (too long), 415 (not
JSON), 503 (too many wait; with Retry-After) or 500 (a bug, which is logged).
"""

import asyncio
import contextlib
import dataclasses
import functools
import importlib.resources
import ipaddress
import itertools
import json
from collections.abc import (
  AsyncIterator,
  Awaitable,
  Callable,
  Hashable,
  Sequence,
)
from typing import Any, NamedTuple

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from realm_jax.serving.service import RequestError, Service

_FILES = {
  "/": ("index.html", "text/html"),
  "/page.css": ("page.css", "text/css"),
  "/page.js": ("page.js", "text/javascript"),
}
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
_RETRY_SECONDS = 2
_MAX_BLOCK_ID = (1 << 63) - 1
_BLOCKS = '[{"id": "…", "text": "…"}]'
_ASK = f'{{"text": "…", "edits": {_BLOCKS}}}'
_RETRIEVE = '{"queries": ["…"], "k": 5}'
_QUESTIONS = '{"questions": ["…"]}'
_UPDATE = f'{{"blocks": {_BLOCKS}}}'

# From all texts to a result for each.
_OfTexts = Callable[[Sequence[str]], list[Any]]


class _Job(NamedTuple):
  """Texts of a request, and the results that it waits for.

  Jobs of equal keys have the same function, and are computed together.
  """

  key: Hashable
  function: _OfTexts
  texts: Sequence[str]
  results: asyncio.Future[list[Any]]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Bounds of what is accepted.

  Attributes:
    request_bytes: Bytes of the body of a request.
    text_characters: Characters of a question or a sentence.
    texts: Texts of a request of a program.
    blocks: Blocks that such a request may retrieve for each.
    edits: Number of edited blocks.
    edit_characters: Characters of an edited block.
    waiting: Requests that wait, besides the one that is computed.
  """

  request_bytes: int = 256 * 1024
  text_characters: int = 2000
  texts: int = 256
  blocks: int = 1000
  edits: int = 16
  edit_characters: int = 10_000
  waiting: int = 64


class PageApp:
  """The application.

  Args:
    service: What answers, to one request after the other.
    limits: Bounds of requests.
    allow_updates: Whether clients may change blocks for all.
    only_loopback: Whether to refuse requests that name another host, as those
      do of a page whose name was made to lead here (DNS rebinding).

  Attributes:
    is_computing: Whether a thread computes an answer.
  """

  def __init__(
    self,
    service: Service,
    limits: Limits,
    *,
    only_loopback: bool,
    allow_updates: bool = False,
  ):
    self._service, self._limits = service, limits
    self._allow_updates = allow_updates
    self._only_loopback = only_loopback
    self.is_computing = False
    self._jobs: list[_Job] = []
    self._has_jobs = asyncio.Event()
    self._app = Starlette(
      routes=[
        *(Route(path, _file(*file)) for path, file in _FILES.items()),
        Route("/api/about", self._about),
        Route("/api/ask", self._ask, methods=["POST"]),
        Route("/api/around", self._around),
        Route("/retrieve", self._retrieve, methods=["POST"]),
        Route("/ask", self._answer, methods=["POST"]),
        Route("/update", self._update, methods=["POST"]),
      ],
      exception_handlers={
        ValueError: _value_error,
        HTTPException: _http_error,
        Exception: _bug,
      },
      lifespan=self._working,
    )

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses requests of other hosts, and adds headers to all answers."""

    async def send_guarded(message: Message) -> None:
      if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
      await send(message)

    if scope["type"] != "http":
      return await self._app(scope, receive, send)
    host = Headers(scope=scope).get("host", "")
    if self._only_loopback and not is_loopback(_without_port(host)):
      text = (
        f"this page is for this machine alone, and was asked for as {host!r}; "
        "open http://127.0.0.1 with its port, or start it with --host"
      )
      refusal = JSONResponse({"error": text}, 403)
      return await refusal(scope, receive, send_guarded)
    return await self._app(scope, receive, send_guarded)

  @contextlib.asynccontextmanager
  async def _working(self, app: Starlette) -> AsyncIterator[None]:
    """Computes jobs while it serves; first of all, programs are compiled."""
    del app
    warm_up = self._compute(lambda _: [self._service.warm_up()])
    tasks = [asyncio.create_task(one) for one in (warm_up, self._work())]
    yield
    for task in tasks:
      task.cancel()

  async def _work(self) -> None:
    """Computes one job after the other, those of equal keys at once."""
    while True:
      await self._has_jobs.wait()
      first = self._jobs[0]
      jobs = [job for job in self._jobs if job.key == first.key]
      self._jobs = [job for job in self._jobs if job.key != first.key]
      if not self._jobs:
        self._has_jobs.clear()
      texts = [text for job in jobs for text in job.texts]
      try:
        results = await self._in_thread(first.function, texts)
      except Exception as error:
        for job in jobs:
          # Whoever has gone does not wait any more.
          if not job.results.done():
            job.results.set_exception(error)
        continue
      rest = iter(results)
      for job in jobs:
        own = list(itertools.islice(rest, len(job.texts)))
        if not job.results.done():
          job.results.set_result(own)

  async def _in_thread(self, function: Callable[..., Any], *given: Any) -> Any:
    def computed() -> Any:
      self.is_computing = True
      try:
        return function(*given)
      finally:
        self.is_computing = False

    # The end of the server does not wait for what is computed.
    return await anyio.to_thread.run_sync(computed, abandon_on_cancel=True)

  async def _compute(
    self,
    function: _OfTexts,
    texts: Sequence[str] = ("",),
    key: Hashable | None = None,
  ) -> list[Any]:
    """Returns what a function returns of texts, when its turn has come.

    All requests of one key that wait then are computed at once; without a key,
    a request is computed by itself.
    """
    if len(self._jobs) >= self._limits.waiting:
      raise HTTPException(
        503,
        f"{self._limits.waiting} requests wait already; try again in a moment",
        {"retry-after": str(_RETRY_SECONDS)},
      )
    job = _Job(key or object(), function, texts, asyncio.Future())
    self._jobs.append(job)
    self._has_jobs.set()
    return await job.results

  async def _about(self, request: Request) -> Response:
    del request
    limits = dataclasses.asdict(self._limits)
    shown = ("text_characters", "edits", "edit_characters")
    limits = {name: limits[name] for name in shown}
    return JSONResponse({**self._service.about(), "limits": limits})

  async def _ask(self, request: Request) -> Response:
    text, edits = _parsed(await self._body(request), self._limits)
    (told,) = await self._compute(lambda _: [self._service.ask(text, edits)])
    return JSONResponse(told)

  async def _around(self, request: Request) -> Response:
    block_id = request.query_params.get("id", "")
    (given,) = _texts_by_id([{"id": block_id, "text": ""}], "?id=ID", 0)
    return JSONResponse(self._service.around(given))

  async def _retrieve(self, request: Request) -> Response:
    fields = _fields(await self._body(request), _RETRIEVE, "queries")
    texts, k = self._texts(fields["queries"]), fields.get("k", 5)
    if not isinstance(k, int) or not 1 <= k <= self._limits.blocks:
      raise RequestError(f"k={k!r}; want 1 to {self._limits.blocks}")
    retrieve = functools.partial(self._service.retrieve, k=k)
    found = await self._compute(retrieve, texts, ("retrieve", k))
    return JSONResponse({"results": found})

  async def _answer(self, request: Request) -> Response:
    fields = _fields(await self._body(request), _QUESTIONS, "questions")
    texts = self._texts(fields["questions"])
    found = await self._compute(self._service.answer, texts, "ask")
    return JSONResponse({"results": found})

  async def _update(self, request: Request) -> Response:
    body = await self._body(request)
    if not self._allow_updates:
      raise HTTPException(
        403, "this service changes no blocks; start it with --allow_updates"
      )
    blocks = _fields(body, _UPDATE, "blocks")["blocks"]
    texts = _texts_by_id(blocks, _UPDATE, self._limits.edit_characters)
    (told,) = await self._compute(lambda _: [self._service.update(texts)])
    return JSONResponse(told)

  def _texts(self, texts: Any) -> list[str]:
    """Returns the texts of a request, of which each must have words."""
    if not isinstance(texts, list) or not 1 <= len(texts) <= self._limits.texts:
      raise RequestError(f"want a list of 1 to {self._limits.texts} texts")
    for text in texts:
      _require_text(text, self._limits.text_characters)
    self._service.require_words(texts)
    return texts

  async def _body(self, request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "application/json":
      # Another site's page can send a form here, and no JSON.
      raise HTTPException(415, "send JSON, with Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
      body += chunk
      # Whatever the header says.
      if len(body) > self._limits.request_bytes:
        raise HTTPException(
          413,
          f"the request has more than {self._limits.request_bytes:,} bytes; "
          "shorten the text, or restore some blocks",
        )
    return bytes(body)


def _parsed(body: bytes, limits: Limits) -> tuple[str, dict[int, str]]:
  """Reads a text, and the texts of edited blocks by the blocks' stable ids.

  Raises:
    RequestError: The request is not `_ASK`, or beyond a limit.
  """
  fields = _fields(body, _ASK, "text")
  text, edits = fields["text"], fields.get("edits", [])
  _require_text(text, limits.text_characters)
  if not text.strip():
    raise RequestError(
      "there is nothing to ask; write a question or a sentence"
    )
  texts = _texts_by_id(edits, _ASK, limits.edit_characters)
  if len(edits) > limits.edits:
    raise RequestError(
      f"{len(edits)} blocks are edited, and at most {limits.edits} may be at "
      "once; restore some"
    )
  return text.strip(), texts


def _fields(body: bytes, wanted: str, name: str) -> dict[str, Any]:
  """Returns the fields of a request, of which one must be there."""
  try:
    fields = json.loads(body.decode("utf-8"))
    if not isinstance(fields, dict) or name not in fields:
      raise KeyError(name)
    return fields
  except (KeyError, ValueError, RecursionError) as error:
    raise RequestError(
      f"the request is not {wanted}: {type(error).__name__}: {error}"
    ) from None


def _texts_by_id(blocks: Any, wanted: str, most: int) -> dict[int, str]:
  """Returns the texts of blocks by their stable ids."""
  try:
    # Ids are strings, since JavaScript's numbers have 53 bits.
    texts = {int(block["id"]): block["text"] for block in blocks}
    if any(abs(block_id) > _MAX_BLOCK_ID for block_id in texts):
      raise ValueError("an id has more than 63 bits")
  except (KeyError, TypeError, ValueError) as error:
    raise RequestError(
      f"the request is not {wanted}, whose ids are those of an answer: "
      f"{type(error).__name__}: {error}"
    ) from None
  for text in texts.values():
    _require_text(text, most)
  return texts


def _require_text(text: Any, most: int) -> None:
  if not isinstance(text, str):
    raise RequestError(f"{text!r} is no string")
  if len(text) > most:
    raise RequestError(
      f"a text has {len(text):,} characters; at most {most:,} are read: "
      "shorten it"
    )
  # JSON can write what is no character, and what would end a C string.
  if any(0xD800 <= ord(c) <= 0xDFFF or c == "\0" for c in text):
    raise RequestError(
      "a text has a character that no text has (U+0000, or half of a "
      "surrogate pair); remove it"
    )


def _file(
  name: str, media_type: str
) -> Callable[[Request], Awaitable[Response]]:
  """Returns what answers with a file of the page, which is read now."""
  folder = importlib.resources.files("realm_jax.serving.page")
  content = folder.joinpath(name).read_bytes()

  async def answer(request: Request) -> Response:
    del request
    return Response(content, media_type=media_type)

  return answer


async def _value_error(request: Request, error: Exception) -> Response:
  del request
  return JSONResponse({"error": str(error)}, 400)


async def _http_error(request: Request, error: Exception) -> Response:
  assert isinstance(error, HTTPException)
  words = {404: f"there is nothing at {request.url.path}"}
  words[405] = f"{request.url.path} does not take {request.method}"
  text = words.get(error.status_code, error.detail)
  return JSONResponse({"error": text}, error.status_code, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
  # Starlette raises the error again, and uvicorn logs it.
  del request, error
  text = "the server failed; what it has printed says why"
  return JSONResponse({"error": text}, 500)


def _without_port(host: str) -> str:
  name, separator, port = host.rpartition(":")
  return name if separator and (port.isdecimal() or not port) else host


def is_loopback(host: str) -> bool:
  """Returns whether a name or an address leads to this machine alone."""
  if host.lower() == "localhost":
    return True
  try:
    return ipaddress.ip_address(host.strip("[]")).is_loopback
  except ValueError:
    return False
