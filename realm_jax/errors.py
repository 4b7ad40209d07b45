"""Errors that a user can act on, and the exit codes of the commands.

A command explains a `RealmError`, or an `OSError` about a file, in one line.
Any other exception is a bug: its traceback is shown.
"""

import enum


class ExitCode(enum.IntEnum):
  """Reasons why a command failed. A bug exits with 1.

  The supervisor (`realm_jax/supervisor.py`) restarts a command after a bug, a
  signal, STORE_OUTAGE and LOST_PROCESS. The manifest for a cluster
  (`realm_jax/launch/jobset.py`) also decides by these codes.

  Attributes:
    USER_ERROR: The command line, a file or the machine must be corrected first.
      The command is not restarted, because it would fail again.
    STORE_OUTAGE: The object store does not respond, or a checkpoint cannot be
      written, for example to a full disk. The same command continues once this
      is over.
    LOST_ROLE: Another process is the trainer, or the index builder, of this
      MODEL_DIR, or has taken over while this one was cut off. The command is
      not restarted, so that it does not fight its successor.
    LOST_PROCESS: Another process of the same command has failed (its log has
      the reason), or has never started.
  """

  USER_ERROR = 2
  STORE_OUTAGE = 3
  LOST_ROLE = 4
  LOST_PROCESS = 5


class RealmError(ValueError):
  """An error that a user can act on; the message says what came and what to do.

  Attributes:
    exit_code: Code with which the command ends; None is the cause's code, or
      else USER_ERROR.
  """

  exit_code: int | None = None
