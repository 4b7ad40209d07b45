"""The page and its JSON interface, as a Starlette application.

    GET  /           the page; /page.css and /page.js belong to it
    GET  /api/about  what it can do: {"runs": {KIND: {"model_dir", "checkpoint",
                     "generation", "index", "num_blocks", "can_edit"}},
                     "examples": {KIND: [TEXT]}, "missing": {KIND: TEXT},
                     "limits": {…}}, KIND being "question" or "masked sentence"
    POST /api/ask    {"text": TEXT, "edits": [{"id": ID, "text": TEXT}]}

The answer to `ask` is an object:

    kind, text       the request as it was understood
    answer           the most likely answer y; its `probability` is p(y|x)
    answers          the best ones: text, probability, without_retrieval
                     (p(y|null,x), sentences), by_released_reader (questions)
    blocks           the candidates z: id (a string; null of the null block),
                     name, title, body, segments (the body in pieces, each with
                     a mark: "", "match", "said" or "answer"), is_edited, score
                     f(x,z), retriever p(z|x), reader p(y|z,x), share of p(y|x),
                     utility, says (what the reader says of it alone),
                     contains_sentence (word for word)
    without          what it says without retrieval, see `docs/serving.md`
    notes, run       what one should know, and the run as `about` describes it

Edits come with each request, and the server keeps none: what one page edits,
no other page sees. An error is {"error": TEXT} with status 400 (the request, or
a text that does not fit), 403 (another host's page), 413 (too long), 415 (not
JSON), 503 (too many wait; with Retry-After) or 500 (a bug, which is logged).
"""

import asyncio
import importlib.resources
import ipaddress
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realm_jax.serving import requests
from realm_jax.serving.errors import (
  BusyError,
  RequestTooLongError,
)
from realm_jax.serving.requests import Limits
from realm_jax.serving.service import Service
from realm_jax.serving.worker import ModelWorker

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


def page_app(
  service: Service,
  worker: ModelWorker,
  *,
  limits: Limits,
  only_loopback: bool,
) -> ASGIApp:
  """Returns the application.

  Args:
    service: What answers; the worker's thread alone calls it.
    worker: Thread of the model.
    limits: Bounds of requests.
    only_loopback: Whether to refuse requests that name another host, as those
      do of a page whose name was made to lead here (DNS rebinding).
  """

  async def about(request: Request) -> Response:
    del request
    described = service.about()
    described["limits"] = {
      "text_characters": limits.text_characters,
      "edits": limits.edits,
      "edit_characters": limits.edit_characters,
    }
    return JSONResponse(described)

  async def ask(request: Request) -> Response:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "application/json":
      # Another site's page can send a form here, and no JSON.
      raise HTTPException(415, "send JSON, with Content-Type: application/json")
    body = await _read_body(request, limits.request_bytes)
    question = requests.parse(body, limits)
    future = worker.submit(lambda: service.ask(question))
    return JSONResponse(await asyncio.wrap_future(future))

  return _Guard(
    Starlette(
      routes=[
        *(Route(path, _file(*file)) for path, file in _FILES.items()),
        Route("/api/about", about),
        Route("/api/ask", ask, methods=["POST"]),
      ],
      exception_handlers={
        # Its subclass comes with another status.
        RequestTooLongError: _refuses(413),
        ValueError: _refuses(400),
        BusyError: _refuses(503, {"retry-after": str(_RETRY_SECONDS)}),
        HTTPException: _http_error,
        Exception: _failed,
      },
    ),
    only_loopback=only_loopback,
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


async def _read_body(request: Request, max_bytes: int) -> bytes:
  """Reads a body, and no more than it may have, whatever its header says."""
  too_long = RequestTooLongError(
    f"the request has more than {max_bytes:,} bytes; shorten the text, or "
    "restore some blocks"
  )
  announced = request.headers.get("content-length", "")
  if announced.isdecimal() and int(announced) > max_bytes:
    raise too_long
  body = bytearray()
  async for chunk in request.stream():
    body += chunk
    if len(body) > max_bytes:
      raise too_long
  return bytes(body)


def _refuses(
  status: int, headers: dict[str, str] | None = None
) -> Callable[[Request, Exception], Awaitable[Response]]:
  async def answer(request: Request, error: Exception) -> Response:
    del request
    return JSONResponse({"error": str(error)}, status, headers)

  return answer


async def _http_error(request: Request, error: Exception) -> Response:
  assert isinstance(error, HTTPException)
  words = {404: f"there is nothing at {request.url.path}"}
  words[405] = f"{request.url.path} does not take {request.method}"
  text = words.get(error.status_code, error.detail)
  return JSONResponse({"error": text}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
  # Starlette raises the error again, and uvicorn logs it.
  del request, error
  text = "the server failed; what it has printed says why"
  return JSONResponse({"error": text}, 500)


class _Guard:
  """Refuses requests of other hosts, and adds headers to all answers."""

  def __init__(self, app: ASGIApp, *, only_loopback: bool):
    self._app, self._only_loopback = app, only_loopback

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
      return await self._app(scope, receive, send)

    async def send_guarded(message: Message) -> None:
      if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
      await send(message)

    host = Headers(scope=scope).get("host", "")
    if self._only_loopback and not is_loopback(_without_port(host)):
      text = (
        f"this page is for this machine alone, and was asked for as {host!r}; "
        "open http://127.0.0.1 with its port, or start it with --host"
      )
      refusal = JSONResponse({"error": text}, 403)
      return await refusal(scope, receive, send_guarded)
    return await self._app(scope, receive, send_guarded)


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
