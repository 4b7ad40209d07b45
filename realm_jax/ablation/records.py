"""What each run was made with, so that unlike runs are never compared."""

import dataclasses
import difflib
import hashlib
import json
from pathlib import Path
from typing import Any

from etils import epath

from realm_jax.ablation.config import AblationError
from realm_jax.ablation.recipes import Recipes
from realm_jax.ablation.runs import Run
from realm_jax.corpus.store import Corpus
from realm_jax.files.checksum import sha256_of
from realm_jax.files.json_file import write_json

FILE = "made_with.json"
_PROJECT_DIR = Path(__file__).resolve().parents[2]
# Changes here, such as to a plot, change no run.
_NOT_OF_RUNS = ("realm_jax/ablation/", "realm_jax/ablate.py")
_DATA = ("CORPUS_DIR", "TRAIN_QUESTIONS", "QUESTIONS")
_MAX_DIFFERENCES = 6


@dataclasses.dataclass(frozen=True)
class Record:
  """What a run was made with.

  Attributes:
    code: Hash of the sources.
    data: Fingerprint of the corpus, and checksums of questions, by the names
      that gin files give them.
    configuration: All that gin binds, in lines, without what `data` has. The
      output directory is left out of the paths.
  """

  code: str
  data: dict[str, str]
  configuration: list[str]


def code_hash(project_dir: Path = _PROJECT_DIR) -> str:
  """Returns a hash of the sources of `realm_jax` and of the tasks.

  Those of the ablation itself are left out: what they change of a run is in its
  configuration.
  """
  digest = hashlib.sha256()
  for folder in ("realm_jax", "tasks"):
    for path in sorted((project_dir / folder).rglob("*.py")):
      name = path.relative_to(project_dir).as_posix()
      if not name.startswith(_NOT_OF_RUNS):
        digest.update(f"{name}\n{len(path.read_bytes())}\n".encode())
        digest.update(path.read_bytes())
  return digest.hexdigest()


def record_of(
  run: Run, recipes: Recipes, *, code: str, output_dir: Path
) -> Record:
  """Returns what a run would be made with now.

  Raises:
    ValueError: Its corpus or a recipe cannot be read.
  """
  lines: list[str] = []
  for command in filter(None, (run.command, run.sidecar)):
    lines.append(f"# {command.module}")
    lines += [
      line.replace(str(output_dir), "OUTPUT_DIR")
      for line in recipes.bound_lines(command)
      if line.partition(" = ")[0] not in _DATA
    ]
  bindings = run.command.bindings
  data = {
    name: _fingerprint(name, str(bindings[name]))
    for name in _DATA
    if name in bindings
  }
  return Record(code, data, lines)


def _fingerprint(name: str, path: str) -> str:
  if name == "CORPUS_DIR":
    return Corpus.open(path).fingerprint
  # A folder of a published data set, or what TFDS downloads, goes by its name.
  is_file = not path.startswith("tfds:") and epath.Path(path).is_file()
  return sha256_of(path) if is_file else path


def require_same(folder: Path, now: Record) -> None:
  """Checks that what stands in a run's folder was made with the same.

  Raises:
    AblationError: It was not; the message says what differs.
  """
  if not folder.exists() or not any(folder.iterdir()):
    return
  path = folder / FILE
  try:
    before = Record(**json.loads(path.read_text()))
  except (OSError, ValueError, TypeError) as error:
    raise AblationError(
      f"{folder} is not empty, and {path} does not say what made it; remove "
      "the folder, or choose another --output_dir"
    ) from error
  if before == now:
    return
  raise AblationError(
    f"{folder} was made with {_differences(before, now)}\n"
    "Runs that differ in more than their rows cannot be compared: go back to "
    "what it was made with, remove this folder (and those of runs that start "
    "from it), or choose another --output_dir"
  )


def write_record(folder: Path, record: Record) -> None:
  """Writes what a run is made with to its folder."""
  value: dict[str, Any] = dataclasses.asdict(record)
  write_json(folder / FILE, value)


def _differences(before: Record, now: Record) -> str:
  found = []
  for name in before.data.keys() | now.data.keys():
    if before.data.get(name) != now.data.get(name):
      found.append(f"another {name} than there is now")
  if before.configuration != now.configuration:
    lines = [
      line
      for line in difflib.unified_diff(
        before.configuration, now.configuration, lineterm="", n=0
      )
      if not line.startswith(("---", "+++", "@@"))
    ]
    more = len(lines) - _MAX_DIFFERENCES
    shown = "\n  ".join(lines[:_MAX_DIFFERENCES])
    found.append(
      f"another configuration (- then, + now):\n  {shown}"
      + (f"\n  and {more} more lines" if more > 0 else "")
    )
  if before.code != now.code:
    found.append(
      f"other sources of realm_jax: {before.code[:12]} then, {now.code[:12]} "
      "now"
    )
  return "; ".join(found)
