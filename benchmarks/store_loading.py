"""Measures what loading a large generation reads from an object store.

    python -m benchmarks.store_loading --directory=out/store --json=loading.json

A generation of a million blocks with ScaNN is written to a bucket of a server
on this machine. It is loaded and verified as in pre-training, which searches
ScaNN and reads no vectors, and as with an exact index, which reads the vectors.
The bytes that the server has sent are compared with the sizes of the files that
the index needs, and the time with loading the same files from the disk. Texts
and vectors are generated, and kept in --directory.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.data import generation_flags, large_corpus
from benchmarks.data.large_generations import make_generations
from benchmarks.retrieval_overhead import machine
from benchmarks.runs.object_store import ObjectStore
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import write_json
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import Manifest
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.partitioning import cpu_tuning

_TARGET = 1.1


def upload(generation: Path, store: ObjectStore, folder: str) -> None:
  """Writes the files of a generation to a folder of the bucket."""
  for path in sorted(generation.rglob("*")):
    if path.is_file():
      name = path.relative_to(generation.parent).as_posix()
      store.write(f"{folder}/{name}", path.read_bytes())


def needed_bytes(manifest: Manifest, *, vectors: bool) -> int:
  """Returns the size of the files that an index is loaded from.

  Args:
    manifest: Manifest of the generation.
    vectors: Whether it is an exact index, which needs the vectors alone.
  """
  return sum(
    file.size
    for file in manifest.files
    if file.path.startswith("query_tower/")
    or file.path.startswith("embeddings-") == vectors
  )


def measure(
  directory: Path, *, num_blocks: int, index: IndexConfig, scale: float
) -> dict[str, Any]:
  """Makes the missing files, and loads the generation in each way."""
  directory.mkdir(parents=True, exist_ok=True)
  corpus = large_corpus.make_corpus(directory, num_blocks, scale=scale)
  (made,) = make_generations(directory, corpus, index, count=1)
  manifest = manifests.read(made)
  rows: list[dict[str, Any]] = []
  with ObjectStore() as store:
    os.environ.update(store.environment)
    upload(made, store, "generations")
    for name, instead in (("scann", None), ("exact", ExactConfig())):
      for storage, folder in (
        ("bucket", store.path("generations")),
        ("disk", str(made.parent)),
      ):
        before = store.answered_bytes()
        seconds = _load(folder, manifest.step, corpus, instead)
        rows.append(
          {
            "index": name,
            "storage": storage,
            "seconds": seconds,
            "read_bytes": store.answered_bytes() - before,
            "needed_bytes": needed_bytes(manifest, vectors=name == "exact"),
          }
        )
  for row in rows:
    row["read_over_needed"] = row["read_bytes"] / row["needed_bytes"]
  return {
    "num_blocks": num_blocks,
    "files": len(manifest.files),
    "all_bytes": sum(file.size for file in manifest.files),
    "loads": rows,
    "target": _TARGET,
    "machine": machine(),
  }


def _load(
  folder: str, step: int, corpus: Corpus, instead: IndexConfig | None
) -> float:
  """Loads a generation as a trainer does; returns the seconds it took.

  An index may be built over its vectors instead of its own.
  """
  began = time.perf_counter()
  load_generation(
    folder,
    step,
    corpus=corpus,
    index=instead,
    beside_training=True,
    reads_vectors=False,
  )
  return time.perf_counter() - began


def table(result: dict[str, Any]) -> str:
  """Formats the loads as a table."""
  lines = [
    f"{result['num_blocks']:,} blocks, {result['files']} files, "
    f"{result['all_bytes'] / 1e6:,.0f} MB",
    f"{'index':<8}{'storage':<9}{'seconds':>9}{'MB needed':>11}{'MB read':>9}"
    f"{'read / needed':>15}",
  ]
  for row in result["loads"]:
    lines.append(
      f"{row['index']:<8}{row['storage']:<9}{row['seconds']:>9.1f}"
      f"{row['needed_bytes'] / 1e6:>11,.1f}{row['read_bytes'] / 1e6:>9,.1f}"
      f"{row['read_over_needed']:>15.3f}"
    )
  return "\n".join([*lines, f"target in a bucket: ≤ {result['target']}"])


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = generation_flags.make_parser((__doc__ or "").partition("\n")[0])
  given = parser.parse_args(arguments)
  cpu_tuning.keep_freed_memory()
  result = measure(
    given.directory.absolute(),
    num_blocks=given.num_blocks,
    index=generation_flags.index_of(given),
    scale=given.scale,
  )
  print(table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
