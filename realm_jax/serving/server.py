"""Listens, and serves the page until SIGTERM or Ctrl-C."""

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from absl import logging

from realm_jax.serving.app import is_loopback, page_app
from realm_jax.serving.errors import ServerError
from realm_jax.serving.requests import Limits
from realm_jax.serving.service import Service
from realm_jax.serving.worker import ModelWorker

_BACKLOG = 256
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
  """Returns a socket that listens; port 0 takes a free one.

  Raises:
    ServerError: The address is in use, is not this machine's, or may not be
      used.
  """
  try:
    family, *_, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
  except OSError as error:
    raise ServerError(
      f"--host={host} is no address of this machine ({error}); give one, or "
      "leave it out for 127.0.0.1"
    ) from error
  try:
    # A server that has just ended does not block its port.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(_BACKLOG)
  except OSError as error:
    listening.close()
    advice = "give an address of this machine as --host"
    if error.errno == errno.EADDRINUSE:
      advice = "end what uses it, or give another: --port=0 takes a free one"
    elif error.errno == errno.EACCES:
      advice = "this user may not use that port: give one from 1024 on"
    raise ServerError(
      f"port {port} of {host} cannot be used ({error.strerror}); {advice}"
    ) from error
  if not is_loopback(str(address[0])):
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


class PageServer:
  """A server of the page on a socket that listens.

  Args:
    service: What answers.
    listening: Socket, which is closed in the end.
    limits: Bounds of requests.
    farewell_seconds: Time for which the end waits for what is computed.
  """

  def __init__(
    self,
    service: Service,
    listening: socket.socket,
    limits: Limits,
    *,
    farewell_seconds: int = 1,
  ):
    self._socket, self._farewell_seconds = listening, farewell_seconds
    self.worker = ModelWorker(limits.waiting)
    app = page_app(
      service,
      self.worker,
      limits=limits,
      only_loopback=is_loopback(listening.getsockname()[0]),
    )
    self._server = _Server(
      uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=farewell_seconds,
      )
    )

  def run(self, started: Callable[[], None] = lambda: None) -> bool:
    """Serves until `stop`, or a signal in the main thread.

    Args:
      started: Function to call once signals end the server.

    Returns:
      Whether the model's thread has ended, too; it may be in the midst of a
      long compilation.
    """
    self._server.started_serving = started
    self._server.run(sockets=[self._socket])
    return self.worker.close(self._farewell_seconds)

  def stop(self) -> None:
    """Ends `run`; any thread may call it."""
    self._server.should_exit = True


class _Server(uvicorn.Server):
  """Ends at a signal as if it were done; uvicorn's raises the signal again."""

  started_serving: Callable[[], None]

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    await super().startup(sockets)
    self.started_serving()

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = {s: signal.signal(s, self.handle_exit) for s in _SIGNALS}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)
