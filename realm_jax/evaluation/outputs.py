"""The files that an evaluation writes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etils import epath

from realm_jax.evaluation.shares import Share
from realm_jax.evaluation.trained_model import TrainedModel
from realm_jax.generations.loading import Generation
from realm_jax.storage.access import require_writable
from realm_jax.storage.json_files import JsonValue, json_lines, write_json

METRICS = "metrics.json"

# Metrics and a description of what was measured, by name.
Figures = dict[str, JsonValue]
# What was found for an example, as JSON.
Line = dict[str, Any]


@contextlib.contextmanager
def lines(
  output_dir: epath.PathLike | None, name: str, share: Share
) -> Iterator[dict[int, Line]]:
  """Opens a file of `output_dir` for lines of JSON, which all processes add.

  Yields a dictionary for this process's lines, by their positions among the
  examples. When the `with` block ends well, that of process 0 has the lines of
  all, in their order, and the others are empty; the file then appears. Without
  a directory nothing is written.

  Raises:
    ValueError: There are no lines.
    OSError: The disk is full, or the directory cannot be written to.
    StoreAccessError: Likewise, where it is on an object store.
    ProcessesError: A process has failed.
  """
  by_position: dict[int, Line] = {}
  with contextlib.ExitStack() as stack:
    write = None
    if output_dir is not None and share.writes:
      require_writable(output_dir)
      path = epath.Path(output_dir) / name
      write = stack.enter_context(json_lines(path))
    yield by_position
    parts = share.gathered(name, list(by_position.items()))
    by_position.clear()
    # JSON makes lists of the pairs.
    pairs = sorted((pair for part in parts for pair in part), key=_position)
    by_position.update(pairs)
    if share.writes and not by_position:
      raise ValueError("the task gives no questions")
    if write is not None:
      for line in by_position.values():
        write(line)


def _position(pair: Sequence[Any]) -> int:
  return pair[0]


def report(
  metrics: Callable[[], Figures],
  model: TrainedModel,
  generation: Generation,
  *,
  start: float,
  output_dir: epath.PathLike | None,
  share: Share,
) -> Figures:
  """Adds what was measured to metrics, and writes both to `metrics.json`.

  Process 0 computes the metrics and writes, and all return the same. The
  evaluation started when `time.monotonic()` was `start`. Without a directory
  nothing is written.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
    ProcessesError: Another process has failed.
  """

  def write() -> Figures:
    figures = metrics() | _measured(model, generation, start)
    if output_dir is not None:
      write_json(epath.Path(output_dir) / METRICS, figures)
    return figures

  return share.agreement.on_process_0("figures", write)


def _measured(
  model: TrainedModel, generation: Generation, start: float
) -> Figures:
  return {
    "checkpoint": model.step,
    "generation": generation.step,
    "index": generation.index.kind,
    "num_blocks": generation.num_blocks,
    "model_dir": str(model.model_dir),
    "corpus_dir": str(model.corpus.source),
    "corpus_fingerprint": generation.corpus.fingerprint,
    "corpus_version": generation.corpus.version,
    "seconds": round(time.monotonic() - start, 3),
  }
