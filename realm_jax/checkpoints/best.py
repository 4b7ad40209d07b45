"""The best checkpoint of a run: which one it is, and by which metric.

An evaluation that follows the run writes MODEL_DIR/best.json. The trainer keeps
the checkpoints that are named there, and other commands find the best one at
MODEL_DIR/checkpoints/best, which is no folder.
"""

import dataclasses
import json

from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.json_files import write_json
from realm_jax.storage.paths import read_text

FILE = "best.json"
NAME = "best"


@dataclasses.dataclass(frozen=True)
class BestCheckpoint:
  """Contents of `best.json`.

  Attributes:
    metric: Metric by which checkpoints are compared.
    step: Step of the best checkpoint; None until one has been evaluated.
    value: Its metric.
    evaluating: Step of the checkpoint that is being evaluated.
  """

  metric: str
  step: int | None = None
  value: float | None = None
  evaluating: int | None = None

  @property
  def kept(self) -> frozenset[int]:
    """Steps of the checkpoints that the trainer keeps."""
    named = (self.step, self.evaluating)
    return frozenset(step for step in named if step is not None)


def read_best(model_dir: epath.PathLike) -> BestCheckpoint | None:
  """Returns the best checkpoint of a run; None if none was ever named."""
  path = epath.Path(model_dir) / FILE
  try:
    best = BestCheckpoint(**json.loads(read_text(path)))
    if not all(isinstance(step, int) for step in best.kept):
      raise RealmError(f"a step of {[*best.kept]} is no number")
    return best
  except FileNotFoundError:
    return None
  except (TypeError, ValueError) as error:
    raise RealmError(
      f"{path} is not what `realm_jax.evaluate --follow` writes: {error}; "
      "remove it, and follow the run again"
    ) from error


def write_best(model_dir: epath.PathLike, best: BestCheckpoint) -> None:
  """Replaces the file."""
  write_json(epath.Path(model_dir) / FILE, dataclasses.asdict(best))
