"""Requests to a page on loopback, as any program would send them."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from realm_jax.serving.app import PageApp
from realm_jax.serving.server import listen, server_of

_PATIENCE_SECONDS = 300


def request(
  port: int, method: str, path: str, **options: Any
) -> httpx.Response:
  """Sends one request; the options are httpx's."""
  return httpx.request(
    method,
    f"http://127.0.0.1:{port}{path}",
    timeout=_PATIENCE_SECONDS,
    trust_env=False,
    **options,
  )


def post(port: int, path: str, **fields: Any) -> httpx.Response:
  """Sends fields as JSON."""
  return request(port, "POST", path, json=fields)


def ask(port: int, text: str) -> httpx.Response:
  """Asks as the page does."""
  return post(port, "/api/ask", text=text)


@contextlib.contextmanager
def served(
  page: PageApp, host: str = "127.0.0.1", *, farewell_seconds: int = 1
) -> Iterator[int]:
  """Serves a page by a thread, and yields its port."""
  server = server_of(page, farewell_seconds=farewell_seconds)
  with listen(host, 0) as listening:
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
      yield listening.getsockname()[1]
    finally:
      server.should_exit = True
      thread.join(30)
      assert not thread.is_alive()
