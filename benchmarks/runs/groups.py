"""What the processes of a run need to find each other."""

import socket

# After this many seconds without a sign of life a process is taken for dead.
HEARTBEAT_TIMEOUT_SECONDS = 10


def free_port() -> int:
  """Returns a port of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return int(found.getsockname()[1])
