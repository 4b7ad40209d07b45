"""Requests to a page on loopback, as any program would send them."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from realm_jax.serving.app import PageApp, listen, server_of

JSON = {"Content-Type": "application/json"}
_PATIENCE_SECONDS = 300


class Answer(NamedTuple):
  status: int
  headers: http.client.HTTPMessage
  body: bytes

  @property
  def fields(self) -> Any:
    return json.loads(self.body)


def request(
  port: int,
  method: str,
  path: str,
  body: bytes | None = None,
  *,
  headers: dict[str, str] | None = None,
) -> Answer:
  """Sends one request, and returns the answer."""
  connection = http.client.HTTPConnection(
    "127.0.0.1", port, timeout=_PATIENCE_SECONDS
  )
  try:
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())
  finally:
    connection.close()


def post(port: int, path: str, **fields: Any) -> Answer:
  """Sends fields as JSON."""
  body = json.dumps(fields).encode()
  return request(port, "POST", path, body, headers=JSON)


def ask(port: int, text: str) -> Answer:
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


def await_listener(port: int) -> None:
  """Waits until something listens on a port."""
  limit = time.monotonic() + _PATIENCE_SECONDS
  while True:
    try:
      return socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
      assert time.monotonic() < limit, f"nothing listens on port {port}"
      time.sleep(0.02)
