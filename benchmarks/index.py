"""Compares the speed, recall and memory of indexes on the same vectors.

    python -m benchmarks.index --directory=out/index
    python -m benchmarks.index --directory=out/index --vectors=out/vectors/demo

The vectors are --num_blocks generated ones, or a trained run's, from a folder
that `benchmarks.data.trained_vectors` has written. The systems are our exact
search, ScaNN with several numbers of leaves, FAISS, and SymphonyQG. FAISS uses
exact search, and inverted lists of 4-bit product codes or RaBitQ codes with
several numbers of lists. FAISS's HNSW, the inverted lists by RaBitQ's authors
and SVS are also measured, but are not in the package
(benchmarks/peer_indexes.py). Systems whose library is missing are skipped.
--system selects some. Each index is built in one process and searched in
another, so their memory is measured separately.
"""

import dataclasses
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, peer_indexes
from benchmarks.data import index_vectors
from harness import peer_processes
from harness.peer_processes import in_new_process
from realm_jax.console import columns
from realm_jax.errors import RealmError
from realm_jax.indexes.exact import GroundTruth
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import (
  CONFIGS,
  Blocks,
  TreeIndex,
  config_from,
)

Row = dict[str, Any]

_K = 8
_REPEATS = 5
_RECALLS = (0.95, 0.99)
# Numbers of leaves or lists, as multiples of the square root of the number of
# blocks.
_FACTORS = (1, 2, 4, 8)
# Numbers of lists to search, and numbers of blocks to score again.
_LISTS = (4, 8, 16, 32, 64, 128, 256)
_REORDERED = (50, 100, 200, 400, 800, 1600)
# Numbers of blocks that a search in a graph keeps.
_KEPT = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_GRAPHS = ("hnsw", "svs")
_OWN = ("scann", "exact", "faiss_pq", "faiss_rabitq", "faiss_flat")
_SYSTEMS = (*_OWN, "symphonyqg", "hnsw", "rabitq", "svs")


def settings_of(
  system: str, num_blocks: int, dim: int
) -> tuple[str, list[Row], list[Row]]:
  """Returns the kind of a system's index, and settings to measure.

  The first settings are for builds. The others, parts of a `Tree`, are for
  searches; without any, searches use the build's.
  """
  root = num_blocks**0.5
  common: Row = {"brute_force_below": 0}
  if system == "exact":
    return "exact", [{}], []
  if system == "faiss_flat":
    return "faiss", [{"factory": "Flat", **common}], []
  if system == "symphonyqg":
    builds = [{"degree": degree, **common} for degree in (32, 64)]
    return system, builds, [{"num_reordered": n} for n in _KEPT]
  if system in _GRAPHS:
    bits = {"svs": (32, 8)}.get(system, (32,))
    builds = [{"degree": d, "bits": n} for d in (32, 64) for n in bits]
    return system, builds, [{"num_reordered": n} for n in _KEPT]
  lists = [round(factor * root) for factor in _FACTORS]
  if system == "rabitq":
    builds = [{"num_lists": n, "bits": bits} for n in lists for bits in (32, 7)]
    return system, builds, [{"leaves_searched": n} for n in _LISTS]
  if system.startswith("faiss"):
    codes = f"PQ{dim // 2}x4fs" if system == "faiss_pq" else "RaBitQfs"
    builds = [{"factory": f"IVF{n},{codes},RFlat", **common} for n in lists]
    searches = [
      {"leaves_searched": searched, "num_reordered": again}
      for searched in _LISTS
      for again in _REORDERED
    ]
    return "faiss", builds, searches
  power = 2 ** round(np.log2(root))
  common["below_target"] = True
  builds = [
    {**common, "recall_target": recall, "num_leaves": factor * power}
    for factor in _FACTORS
    for recall in _RECALLS
  ]
  return "scann", builds, []


def rows(system: str, folder: Path, saved: Path) -> Iterator[Row]:
  """Builds each index in one process, then loads and searches it in another.

  Args:
    system: One of `_SYSTEMS`.
    folder: Folder of vectors and queries.
    saved: Folder for the built index.
  """
  shape = index_vectors.vectors(folder).shape
  kind, builds, searches = settings_of(system, *shape)
  for parameters in builds:
    index = folder, saved, kind, parameters
    shutil.rmtree(saved, ignore_errors=True)
    try:
      built = in_new_process(build, *index)
      for row in in_new_process(search, *index, searches):
        yield {"system": system, **built, **row}
    finally:
      shutil.rmtree(saved, ignore_errors=True)


def _blocks(folder: Path) -> Blocks:
  vectors = index_vectors.vectors(folder)
  return Blocks(num_blocks=len(vectors), vectors=vectors)


def build(folder: Path, saved: Path, kind: str, parameters: Row) -> Row:
  """Builds the index and writes it to files."""
  tuning, _ = index_vectors.queries(folder)
  blocks = dataclasses.replace(_blocks(folder), queries=tuning)
  start = time.perf_counter()
  CONFIGS.update(peer_indexes.KINDS)
  index = config_from(kind, parameters).build(blocks, saved)
  seconds = time.perf_counter() - start
  return {
    "build_seconds": seconds,
    "build_memory_gb": peer_processes.peak_memory() / 1e9,
    "disk_gb": sum(p.stat().st_size for p in saved.rglob("*")) / 1e9,
    "num_leaves": index.report.get("num_leaves"),
  }


def search(
  folder: Path, saved: Path, kind: str, parameters: Row, searches: list[Row]
) -> list[Row]:
  """Loads the index, and searches for a batch of all queries by each setting.

  As in a trainer, ScaNN searches in a separate process. `load_seconds` includes
  the first search, which reads the mapped files and compiles.
  """
  blocks, (_, queries) = _blocks(folder), index_vectors.queries(folder)
  truth = GroundTruth(blocks.embedded(), queries, _K)
  CONFIGS.update(peer_indexes.KINDS)
  config = config_from(kind, parameters)
  start = time.perf_counter()
  if config.needs_separate_process:
    index = IsolatedIndex(config, saved, blocks)
  else:
    index = config.load(saved, blocks)
  index.search(queries, _K)
  load_seconds = time.perf_counter() - start
  measured, num_queries = [], len(queries.token_ids)
  for setting in searches or [{}]:
    if isinstance(index, TreeIndex) and index.tree:
      index.tree = index.tree._replace(**setting)
    seconds, recall = [], 0.0
    # The speed of a setting below the target does not matter.
    while not seconds or (recall >= _RECALLS[0] and len(seconds) < _REPEATS):
      start = time.perf_counter()
      result = index.search(queries, _K)
      seconds.append(time.perf_counter() - start)
      recall = truth.recall(result)
    measured.append(
      {
        "recall_at_8": recall,
        "queries_per_second": num_queries / statistics.median(seconds),
        "load_seconds": load_seconds,
        "parameters": {**parameters, **setting},
      }
    )
  return measured


def report(measured: Sequence[Row]) -> str:
  """Formats, for each recall, the fastest row of each system with it."""
  names = ("system", "recall_at_8", "queries_per_second", "build_seconds")
  names += ("load_seconds", "build_memory_gb", "num_leaves", "parameters")
  lines: list[list[object]] = [["wanted", *names]]
  for recall in _RECALLS:
    best: dict[str, Row] = {}
    for row in sorted(measured, key=lambda row: row["queries_per_second"]):
      if row["recall_at_8"] >= recall:
        best[row["system"]] = row
    lines += [[recall, *(row[n] for n in names)] for row in best.values()]
  return columns(lines)


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  options = flags.parse(
    __doc__,
    arguments,
    directory=Path,
    vectors=None,
    num_blocks=1_000_000,
    system=_SYSTEMS,
  )
  folder = (
    options.vectors or options.directory / f"vectors-{options.num_blocks}"
  )
  if options.vectors is None:
    index_vectors.generate(folder, options.num_blocks)
  measured: list[Row] = []
  for system in options.system:
    try:
      measured += rows(system, folder, options.directory / "index")
      line = f"{system} has been measured"
    except RealmError as error:
      line = f"{system} is left out: {error}"
    print(line, file=sys.stderr, flush=True)
    # Written here, so results are kept if a later system does not end.
    flags.write(options, {"vectors": folder.name, "rows": measured})
  print(report(measured))


if __name__ == "__main__":
  main()
