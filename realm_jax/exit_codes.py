"""Exit codes of the commands, by which whoever started one tells what to do.

An error class names its code in an attribute `exit_code`. The supervisor
(`realm_jax/supervisor.py`) and the manifest for a cluster (`launch/jobset.py`)
decide by them what is started again.
"""

import enum


class ExitCode(enum.IntEnum):
  """Why a command has failed. A bug, whose traceback is shown, exits with 1.

  The supervisor restarts a command after a bug, a signal, STORE_OUTAGE and
  LOST_PROCESS.

  Attributes:
    USER_ERROR: The command line, a file or the machine has to be corrected
      first. It is not restarted: the same command would fail again.
    STORE_OUTAGE: The object store does not answer, or a checkpoint cannot be
      written, as to a full disk; the same command continues once that is over.
    LOST_ROLE: Another process is the trainer, or the index builder, of this
      MODEL_DIR, or has become it while this one was cut off. It is not
      restarted, so that it does not fight its successor.
    LOST_PROCESS: Another process of the same command has failed, and its log
      says why; or it has never started.
  """

  USER_ERROR = 2
  STORE_OUTAGE = 3
  LOST_ROLE = 4
  LOST_PROCESS = 5
