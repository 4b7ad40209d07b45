"""Listens, and serves the page until SIGTERM or Ctrl-C."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from absl import logging

from realm_jax.serving.app import Limits, PageApp, is_loopback
from realm_jax.serving.service import Service

_BACKLOG = 256


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
      "without a password; --host=127.0.0.1 is for this machine alone",
      host,
    )
  return listening


def url_of(listening: socket.socket) -> str:
  """Returns the URL of what a socket serves."""
  host, port = listening.getsockname()[:2]
  if host in ("0.0.0.0", "::"):
    host = socket.gethostname()
  return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class PageServer(uvicorn.Server):
  """A server of the page on a socket that listens.

  Args:
    service: What answers.
    listening: Socket, which is closed in the end.
    limits: Bounds of requests.
    allow_updates: Whether clients may change blocks for all.
    farewell_seconds: Time for which the end waits for what is computed.
  """

  def __init__(
    self,
    service: Service,
    listening: socket.socket,
    limits: Limits,
    *,
    allow_updates: bool = False,
    farewell_seconds: int = 1,
  ):
    host = listening.getsockname()[0]
    self._app = PageApp(
      service,
      limits,
      only_loopback=is_loopback(host),
      allow_updates=allow_updates,
    )
    self._socket = listening
    self._started: Callable[[], None] = lambda: None
    super().__init__(
      uvicorn.Config(
        self._app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=farewell_seconds,
      )
    )

  def serve_until_stopped(self, started: Callable[[], None]) -> bool:
    """Serves until `should_exit` is set, or a signal in the main thread.

    Args:
      started: Function to call once signals end the server.

    Returns:
      Whether nothing is computed any more; a thread may be in the midst of a
      long compilation.
    """
    self._started = started
    self.run(sockets=[self._socket])
    return not self._app.is_computing

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    await super().startup(sockets)
    self._started()

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """Ends at a signal as if it were done; uvicorn's raises it again."""
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    signals = signal.SIGINT, signal.SIGTERM
    before = {s: signal.signal(s, self.handle_exit) for s in signals}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
