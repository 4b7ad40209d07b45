"""Runs a job in a container: `python -m realm_jax.launch.pod ARGUMENTS`.

It starts `python ARGUMENTS`, passes SIGTERM and SIGINT on to it, and ends with
its exit code. On SIGTERM, a trainer saves a checkpoint and ends with 0. To
Kubernetes, which sends SIGTERM when it needs the host or preempts the job, this
would mean that the run is complete. Therefore this command then ends with 143,
as a process does that SIGTERM ended, and the run is restarted.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

# The exit code of a process that SIGTERM has ended.
STOPPED = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> int:
  """Runs `python ARGUMENTS`.

  Returns:
    Its exit code, or 128 plus the first signal that stopped it.
  """
  caught: list[int] = []
  child: subprocess.Popen[bytes] | None = None

  def pass_on(number: int, frame: FrameType | None) -> None:
    del frame
    caught.append(number)
    if child is not None:
      child.send_signal(number)

  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
  child = subprocess.Popen([sys.executable, *arguments])
  if caught:  # Before there was a child to pass it on to.
    child.send_signal(caught[0])
  code = child.wait()
  if caught and code in (0, -caught[0]):
    return 128 + caught[0]
  return 128 - code if code < 0 else code


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
