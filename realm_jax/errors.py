"""Errors that a user can act on, and the exit codes of the commands.

A command explains a `RealmError` in one line, and an `OSError` that names a
file. Any other exception is a bug: its traceback is shown.
"""

import enum


class ExitCode(enum.IntEnum):
  """Why a command has failed. A bug exits with 1.

  The supervisor (`realm_jax/supervisor.py`) restarts a command after a bug, a
  signal, STORE_OUTAGE and LOST_PROCESS. The manifest for a cluster
  (`realm_jax/launch/jobset.py`) also decides by these codes.

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


class RealmError(ValueError):
  """What a user can act on: the message says what came and what to do.

  Attributes:
    exit_code: Code with which the command ends; None takes that of the cause,
      or else USER_ERROR.
  """

  exit_code: int | None = None
