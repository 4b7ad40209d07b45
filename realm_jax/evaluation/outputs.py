"""The files that an evaluation writes."""

import contextlib
import time
from collections.abc import Callable, Iterator

from etils import epath

from realm_jax.evaluation.trained_model import TrainedModel
from realm_jax.files.json_file import JsonValue, json_lines, write_json
from realm_jax.generations.follow.loading import Generation

METRICS = "metrics.json"

# Metrics and a description of what was measured, by name.
Figures = dict[str, JsonValue]


@contextlib.contextmanager
def lines(
  output_dir: epath.PathLike | None, name: str
) -> Iterator[Callable[[int, Figures], None]]:
  """Opens a file of `output_dir` with a function that adds lines of JSON.

  It takes the position of a line among the examples, by which the lines are
  sorted. The file appears when the `with` block ends well. Without a directory
  nothing is written.
  """
  if output_dir is None:
    yield lambda position, line: None
    return
  by_position: dict[int, Figures] = {}
  with json_lines(epath.Path(output_dir) / name) as write:
    yield by_position.__setitem__
    for _, line in sorted(by_position.items()):
      write(line)


def report(
  metrics: Figures,
  model: TrainedModel,
  generation: Generation,
  *,
  start: float,
  output_dir: epath.PathLike | None,
) -> Figures:
  """Adds what was measured to metrics, and writes both to `metrics.json`.

  The evaluation started when `time.monotonic()` was `start`. Without a
  directory nothing is written.
  """
  figures = metrics | {
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
  if output_dir is not None:
    write_json(epath.Path(output_dir) / METRICS, figures)
  return figures
