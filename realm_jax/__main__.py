"""The command `realm`: `realm train …` is `python -m realm_jax.train …`.

It imports nothing, and becomes the other command, whose signals and exit codes
are thus the same.
"""

import difflib
import os
import signal
import sys

# In the order in which a run needs them.
COMMANDS = {
  "build_corpus": "Builds a corpus from titles and texts.",
  "show_task": "Prints training examples of a task.",
  "import_weights": "Starts a run from weights of another system.",
  "train": "Trains one stage of a run, or resumes it.",
  "build_index": "Builds search indexes, once or while a run trains.",
  "launch.xm_launch": "Starts all jobs of a run, here or on a cluster.",
  "precompile": "Says whether a run fits a TPU slice, without one.",
  "build_memory": "Stores the masked words of a corpus (kNN-LM).",
  "evaluate": "Evaluates a run on questions or masked sentences.",
  "compare": "Compares evaluations, question by question.",
  "ask": "Answers questions.",
  "explain": "Shows what each retrieved block contributes.",
  "serve": "Serves a run: a page, and an interface for programs.",
  "list_snapshots": "Lists, verifies and prunes the indexes of a run.",
  "export_weights": "Writes weights or vectors for another system.",
  "demo": "Runs every stage on a generated world, in a clone.",
}


def main() -> int:
  """Becomes the command that is named, or lists the commands."""
  name, *arguments = sys.argv[1:] or ["--help"]
  if name in COMMANDS:
    module = f"realm_jax.{name}"
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
  # `realm | head` ends it without a word.
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  if name in ("--help", "-h", "help"):
    lines = [f"  {name:18}{meaning}" for name, meaning in COMMANDS.items()]
    print("usage: realm COMMAND [--FLAG=VALUE ...]", "", *lines, "", sep="\n")
    print("`realm COMMAND --help` shows the flags of a command.")
    return 0
  near = difflib.get_close_matches(name, COMMANDS, n=1)
  print(
    f"realm: no command {name!r}; "
    + (f"did you mean `realm {near[0]}`? " if near else "")
    + "`realm --help` lists them",
    file=sys.stderr,
  )
  return 2


if __name__ == "__main__":
  sys.exit(main())
