"""Which folder may import what, and how the sources are read to check it."""

import ast
import dataclasses
import functools
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parent.parent
PROJECT_PACKAGES = frozenset({"realm_jax", "tasks", "launch", "benchmarks"})

# Folder: the folders of realm_jax it may import besides itself. The layers
# of WORKSPACE.md; nobody imports an entry point (realm_jax/*.py).
MAY_IMPORT = {
  "realm_jax/files": (),
  "realm_jax/console": (),
  "realm_jax/configuration": ("console",),
  "realm_jax/models": (),
  "realm_jax/objectives": (),
  "realm_jax/partitioning": (),
  "realm_jax/text": (),
  "realm_jax/corpus": ("console", "text"),
  "realm_jax/stage_commands": ("console",),
  "realm_jax/demo_world": ("text",),
  "realm_jax/checkpoints": ("models",),
  "realm_jax/indexes": ("partitioning",),
  "realm_jax/inputs": ("text", "corpus", "partitioning"),
  "realm_jax/answers": (
    "console",
    "text",
    "corpus",
    "inputs",
    "partitioning",
  ),
  "realm_jax/retrieval": ("indexes", "corpus", "models", "partitioning"),
  "realm_jax/generations": (
    "console",
    "indexes",
    "corpus",
    "models",
    "checkpoints",
    "partitioning",
  ),
  "realm_jax/training": (
    "answers",
    "console",
    "models",
    "objectives",
    "retrieval",
    "indexes",
    "inputs",
    "corpus",
    "text",
    "partitioning",
    "checkpoints",
    "generations",
  ),
  "realm_jax/t5x_engine": (
    "models",
    "objectives",
    "inputs",
    "partitioning",
    "checkpoints",
    "training",
  ),
  "realm_jax/evaluation": (
    "console",
    "models",
    "objectives",
    "retrieval",
    "indexes",
    "inputs",
    "corpus",
    "text",
    "partitioning",
    "checkpoints",
    "generations",
    "training",
  ),
  "realm_jax/ablation": (
    "console",
    "corpus",
    "demo_world",
    "checkpoints",
    "training",
    "evaluation",
    "generations",
    "stage_commands",
  ),
  "realm_jax/demo_run": (
    "console",
    "text",
    "configuration",
    "corpus",
    "demo_world",
    "checkpoints",
    "training",
    "evaluation",
    "generations",
    "stage_commands",
  ),
  "realm_jax/precompilation": (
    "console",
    "models",
    "indexes",
    "retrieval",
    "corpus",
    "partitioning",
    "generations",
    "training",
  ),
  "realm_jax/conversion": (
    "console",
    "models",
    "checkpoints",
    "corpus",
    "generations",
    "indexes",
    "text",
    "partitioning",
  ),
  "realm_jax/serving": (
    "models",
    "indexes",
    "inputs",
    "corpus",
    "text",
    "partitioning",
    "generations",
    "evaluation",
  ),
  "realm_jax/tagging": ("conversion", "models", "text"),
  "tasks": ("text", "corpus", "inputs"),
  "launch": (),
}

# Folder inside a layer: the folders and files of the same layer that it may
# import besides itself.
MAY_IMPORT_INSIDE = {
  "realm_jax/files/local_disk": (),
  "realm_jax/files/object_store": (
    "realm_jax/files/checksum.py",
    "realm_jax/files/local_disk",
  ),
  "realm_jax/files/whole": (
    "realm_jax/files/local_disk",
    "realm_jax/files/object_store",
  ),
  "realm_jax/generations/store": (),
  "realm_jax/generations/building": ("realm_jax/generations/store",),
  "realm_jax/generations/follow": ("realm_jax/generations/store",),
}

# What runs where neither TensorFlow nor ScaNN is installed. A folder stands
# for all its modules; what these import is held to the same.
NUMERIC_CORE = (
  "realm_jax/models",
  "realm_jax/objectives",
  "realm_jax/partitioning",
  "realm_jax/training/stage_losses.py",
  "realm_jax/training/step.py",
  "realm_jax/retrieval/candidate_rows.py",
  "realm_jax/indexes/exact.py",
)
CORE_LIBRARIES = frozenset({"jax", "flax", "optax", "numpy", "jaxtyping"})

# Runs in the environment of `make peers`, where nothing of ours is installed.
PEERS = "benchmarks/peers"
PEER_LIBRARIES = frozenset(
  {"numpy", "sentence_transformers", "torch", "transformers"}
)

# t5x's interfaces have types of other libraries, so its folder may import them.
T5X_ENGINE = "realm_jax/t5x_engine"

# A library that may change under us meets the project in a single file, or in
# a folder that is about nothing else.
ONLY_IN = {
  "ahocorasick_rs": "realm_jax/answers/matcher.py",
  "apache_beam": "realm_jax/corpus/building/parallel/beam.py",
  "bm25s": "realm_jax/indexes/bm25.py",
  "faiss": "realm_jax/indexes/faiss.py",
  "gcsfs": "realm_jax/files/object_store/gcs_client.py",
  "gin": "realm_jax/configuration",
  "matplotlib": "realm_jax/console/plots.py",
  "regex": "realm_jax/text/patterns.py",
  "orbax": "realm_jax/checkpoints/manager.py",
  "scann": "realm_jax/indexes/scann/library.py",
  "sentencex": "realm_jax/text/sentences.py",
  "starlette": "realm_jax/serving/app.py",
  "tensorboard": "realm_jax/training/metrics/event_files.py",
  "tensorflow_datasets": "realm_jax/files/prepared_tfds.py",
  "tensorflow_text": "realm_jax/text/wordpieces.py",
  "torch": "realm_jax/conversion/hugging_face/torch_file.py",
  "uvicorn": "realm_jax/serving/server.py",
  "xmanager": "launch/xmanager_experiments.py",
  "xmanager_cloud": "launch/xmanager_experiments.py",
  "yaml": "launch/cluster/jobset.py",
}
# A benchmark that draws its own figures.
PICTURES = {"matplotlib": "benchmarks/roofline.py"}
# What every command shares, and files that are no command but read gin, too.
CONFIGURATION = "realm_jax/configuration/__init__.py"
READ_GIN = frozenset(
  {"launch/gin_check.py", "realm_jax/ablation/gin_recipes.py"}
)


def may_import(layer: str) -> tuple[str, ...]:
  """The folders of realm_jax that a layer may import besides itself.

  All may import `files` but the layers that are numeric core as a whole.
  """
  files = () if layer in (*NUMERIC_CORE, "realm_jax/files") else ("files",)
  return (*MAY_IMPORT[layer], *files)


@dataclasses.dataclass(frozen=True)
class Import:
  """One imported module, as it stands in a source file."""

  file: str
  line: int
  module: str

  @property
  def library(self) -> str:
    return self.module.partition(".")[0]

  def __str__(self) -> str:
    return f"{self.file}:{self.line} imports {self.module}"


def sources(folder: str) -> list[str]:
  """The Python files under a folder of the project, or the file itself."""
  path = PROJECT_DIR / folder
  found = [path] if path.is_file() else sorted(path.rglob("*.py"))
  return [file.relative_to(PROJECT_DIR).as_posix() for file in found]


def library_sources(folder: str) -> list[str]:
  """The same without the entry points of packages."""
  return [f for f in sources(folder) if not f.endswith("/__main__.py")]


@functools.cache
def file_of(module: str) -> str | None:
  """The source of a module of the project; None for any other module."""
  stem = PROJECT_DIR / module.replace(".", "/")
  for file in (stem.with_suffix(".py"), stem / "__init__.py"):
    if module.partition(".")[0] in PROJECT_PACKAGES and file.is_file():
      return file.relative_to(PROJECT_DIR).as_posix()
  return None


@functools.cache
def imports(file: str) -> tuple[Import, ...]:
  """All imports of a file, those inside functions included."""
  return tuple(_imports(file))


def _imports(file: str) -> Iterator[Import]:
  tree = ast.parse((PROJECT_DIR / file).read_text(), file)
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
      # `from package import name` imports a module where name is one.
      modules = [
        f"{node.module}.{alias.name}"
        if file_of(f"{node.module}.{alias.name}")
        else str(node.module)
        for alias in node.names
      ]
    elif isinstance(node, ast.ImportFrom):
      modules = [f"a relative module ({'.' * node.level}{node.module or ''})"]
    else:
      continue
    for module in dict.fromkeys(modules):
      yield Import(file, node.lineno, module)


def circle() -> list[str]:
  """Files of realm_jax that import each other in a circle, if there are any."""
  sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
  for file in sources("realm_jax"):
    sorter.add(file, *filter(None, (file_of(i.module) for i in imports(file))))
  try:
    sorter.prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return []


def third_party(file: str) -> Iterator[Import]:
  """The imports of a file that somebody must have installed."""
  for found in imports(file):
    if found.library not in PROJECT_PACKAGES | sys.stdlib_module_names:
      yield found


def with_packages(module: str) -> Iterator[str]:
  """The files that importing a module of the project runs: its packages too."""
  parts = module.split(".")
  for end in range(1, len(parts) + 1):
    file = file_of(".".join(parts[:end]))
    if file is not None:
      yield file


def module_of(file: str) -> str:
  """`realm_jax/models/reader.py` as `realm_jax.models.reader`."""
  return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def core_modules() -> list[str]:
  """The modules of the numeric core, as they are imported."""
  return [module_of(file) for part in NUMERIC_CORE for file in sources(part)]


def core_closure() -> list[str]:
  """The files that importing the numeric core runs."""
  waiting = [f for m in core_modules() for f in with_packages(m)]
  closure: dict[str, None] = {}
  while waiting:
    file = waiting.pop()
    if file in closure:
      continue
    closure[file] = None
    for found in imports(file):
      waiting.extend(with_packages(found.module))
  return sorted(closure)
