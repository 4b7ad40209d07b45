"""Runs a job in a container: `python -m realm_jax.launch.pod ARGUMENTS`.

It starts `python ARGUMENTS`, restarts it after a failure, and ends with its
last exit code. Only then does JobSet restart the job, without a pause.

On SIGTERM, a trainer saves a checkpoint and ends with 0. Kubernetes, which
sends SIGTERM when it needs the host or preempts the job, would take this to
mean that the run is complete. Therefore this command ends with 143, like a
process that SIGTERM killed, and the run is restarted.
"""

import signal
import sys
from collections.abc import Sequence

from realm_jax.supervisor import Supervisor, progress_folder

# Exit code of a process that SIGTERM killed.
STOPPED = 128 + signal.SIGTERM


def main(arguments: Sequence[str]) -> int:
  """Runs `python ARGUMENTS`.

  Returns:
    Its last exit code, or 128 plus the first signal that stopped it.
  """
  builds = "realm_jax.build_index" in arguments
  folder = progress_folder(arguments, "snapshots" if builds else "checkpoints")
  supervisor = Supervisor([sys.executable, *arguments], folder=folder)
  code = supervisor.run()
  return code or (supervisor.stopped_by and 128 + supervisor.stopped_by)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
