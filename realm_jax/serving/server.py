"""The socket and the server of the page."""

import ipaddress
import socket
from typing import TYPE_CHECKING

import uvicorn
from absl import logging

if TYPE_CHECKING:
  from realm_jax.serving.app import PageApp

_BACKLOG = 256
# Limit of open connections.
_MAX_CONNECTIONS = 512


def is_loopback(host: str) -> bool:
  """Returns whether a name or an address is only for this machine."""
  if host == "localhost":
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def listen(host: str, port: int) -> socket.socket:
  """Returns a listening socket; port 0 takes a free port.

  Raises:
    OSError: The address is in use, not of this machine, or not permitted.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  listening = socket.create_server(
    (host, port), family=family, backlog=_BACKLOG
  )
  if not is_loopback(listening.getsockname()[0]):
    logging.warning(
      "The page listens on %s: whoever reaches this machine can ask the model, "
      "unless --token is set; --host=127.0.0.1 allows only this machine",
      host,
    )
  return listening


def url_of(listening: socket.socket) -> str:
  """Returns the URL of a listening socket."""
  host, port = listening.getsockname()[:2]
  if host in ("0.0.0.0", "::"):
    host = socket.gethostname()
  return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_of(app: "PageApp", *, farewell_seconds: int = 1) -> uvicorn.Server:
  """Returns a server, whose `run` ends with SIGTERM, SIGINT or `should_exit`.

  Args:
    app: Application to serve.
    farewell_seconds: Time to wait for current requests when the server ends.
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
