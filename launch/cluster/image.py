"""Contents of a job's container image."""

import shutil
import subprocess
from pathlib import Path

_PROJECT_DIR = Path(__file__).resolve().parents[2]
_INSTALL = "pip install --no-cache-dir -c constraints.txt -e '.[tpu,gcs]'"


def copy_clone(directory: Path) -> Path:
  """Copies the files that git tracks, as they are in the working tree.

  The clone's environment and outputs, which are gigabytes, are left out.

  Returns:
    Path of the copy, a new folder in `directory`.
  """
  copy = directory / "realm_jax_clone"
  listed = subprocess.run(
    ["git", "ls-files", "-z"], cwd=_PROJECT_DIR, capture_output=True, check=True
  )
  for name in listed.stdout.decode().split("\0"):
    source = _PROJECT_DIR / name
    if name and source.is_file():
      target = copy / name
      target.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(source, target)
  return copy


def docker_instructions(clone: Path) -> list[str]:
  """Returns instructions that install the copied clone.

  Its dependencies come first, since they change less often and Docker caches
  each instruction.
  """
  packaging = ("setup.py", "pyproject.toml", "constraints.txt")
  files = " ".join(f"{clone.name}/{name}" for name in packaging)
  return [
    f"COPY --chown=1000:root {files} /{clone.name}/",
    f"WORKDIR /{clone.name}",
    f"RUN {_INSTALL}",
    f"COPY --chown=1000:root {clone.name}/ /{clone.name}/",
    # The project's own packages, now that their files are there.
    f"RUN {_INSTALL}",
  ]
