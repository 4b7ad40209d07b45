"""Compares the speed, recall and memory of the indexes on the same vectors.

    python -m benchmarks.index --directory=out/index --vectors=clustered
    python -m benchmarks.index --directory=out/index --vectors=out/vectors/demo

The vectors are generated (`clustered`, `spectrum`), or those of a trained run
in a folder that `benchmarks.data.trained_vectors` has written. Compared are
ScaNN with our trees and with its own, and our exact search, with FAISS
(inverted lists of 4-bit product codes and of RaBitQ codes, with several numbers
of lists, and exact search) and with Intel's SVS, where the environment of
`make peers` has it. Each index is built in one process and searched in another,
so that its memory is measured alone.
"""

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peer_processes
from benchmarks.data import index_vectors
from benchmarks.data.index_vectors import IndexVectors
from benchmarks.runs.jobs import printed_json
from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks, BuildOptions, SearchResult
from realm_jax.indexes.registry import config_from
from realm_jax.storage.json_files import write_json

Row = dict[str, Any]

_K = 8
_THREADS = 2
_REPEATS = 5
_TARGETS = (0.95, 0.99)
# Numbers of leaves and of lists, as multiples of the root of the blocks.
_FACTORS = (1, 2, 4, 8)
_FAISS_SEARCHES = tuple(
  {"nprobe": nprobe, "num_reordered": num_reordered}
  for nprobe in (2, 4, 8, 16, 32, 64, 128)
  for num_reordered in (50, 100, 200, 400, 800)
)
_SYSTEMS = (
  "scann",
  "scann_own_builder",
  "exact",
  "faiss_pq",
  "faiss_rabitq",
  "faiss_flat",
  "svs",
)
# What is compared with what.
_PEERS = ("faiss_pq", "faiss_rabitq", "svs")


@dataclasses.dataclass(frozen=True)
class Job:
  """Measurement of one index, as its processes receive it.

  Attributes:
    system: One of `_SYSTEMS`.
    kind: Kind of the index, as a generation has it.
    folder: Folder of `IndexVectors`.
    saved: Folder of the built index.
    parameters: Configuration that the index is built with.
    searches: Changes of it, with each of which the index is searched.
  """

  system: str
  kind: str
  folder: str
  saved: str
  parameters: dict[str, Any]
  searches: Sequence[dict[str, Any]] = ({},)

  @property
  def data(self) -> IndexVectors:
    """Vectors and queries."""
    return IndexVectors(Path(self.folder))

  def blocks(self) -> Blocks:
    """Returns the vectors as the argument of an index."""
    vectors = self.data.vectors()
    return Blocks(num_blocks=len(vectors), vectors=vectors)


def jobs_of(system: str, folder: Path, directory: Path) -> Iterator[Job]:
  """Yields the indexes of a system, each with its settings."""
  num_blocks, dim = IndexVectors(folder).vectors().shape
  saved = str(directory / "index")

  def job(kind: str, searches: Sequence[Row] = ({},), **parameters: Any) -> Job:
    return Job(system, kind, str(folder), saved, parameters, searches)

  if system == "exact":
    yield job("exact")
  elif system == "faiss_flat":
    settings = {"threads": _THREADS, "brute_force_below": 0}
    yield job("faiss", factory="Flat", **settings)
  elif system.startswith("faiss"):
    codes = f"PQ{dim // 2}x4fs" if system == "faiss_pq" else "RaBitQfs"
    for factor in _FACTORS:
      lists = round(factor * num_blocks**0.5)
      factory = f"IVF{lists},{codes},RFlat"
      settings = {"threads": _THREADS, "brute_force_below": 0}
      yield job("faiss", _FAISS_SEARCHES, factory=factory, **settings)
  else:
    scann: dict[str, Any] = {
      "threads": _THREADS,
      "below_target": True,
      "brute_force_below": 0,
    }
    leaves: Sequence[dict[str, Any]] = ({},)
    if system == "scann_own_builder":
      scann["builder"] = "stock"
      root = 2 ** round(np.log2(num_blocks) / 2)
      leaves = [{"num_leaves": factor * root} for factor in _FACTORS]
    for setting in leaves:
      for target in _TARGETS:
        yield job("scann", recall_target=target, **scann, **setting)


def rows(job: Job) -> list[Row]:
  """Builds the index in one process, then loads and searches it in another."""
  shutil.rmtree(job.saved, ignore_errors=True)
  given = json.dumps(dataclasses.asdict(job))
  try:
    built, found = (
      printed_json("benchmarks.index", f"--run={what}", f"--job={given}")
      for what in ("build", "search")
    )
  finally:
    shutil.rmtree(job.saved, ignore_errors=True)
  searches = found.pop("searches")
  return [{"system": job.system, **built, **found, **row} for row in searches]


def build(job: Job) -> Row:
  """Builds the index and writes it to files.

  `build_seconds` excludes the choice of a structure, which is made only for the
  first generation; `trials_seconds` is the time of that choice.
  """
  config = config_from(job.kind, job.parameters)
  options = BuildOptions(
    directory=Path(job.saved), queries=job.data.tuning_queries()
  )
  start = time.perf_counter()
  index = config.build(job.blocks(), options)
  seconds = time.perf_counter() - start
  trials = float(str(index.report.get("trials_seconds", 0.0)))
  return {
    "build_seconds": seconds - trials,
    "trials_seconds": trials,
    "build_memory_gb": _peak_memory_gb(),
    "num_leaves": index.report.get("num_leaves"),
  }


def search(job: Job) -> Row:
  """Loads the index, and searches all queries in a batch, with each setting.

  As in a trainer, ScaNN searches in a process of its own. `load_seconds` ends
  with the first search, which reads the mapped files and compiles.
  """
  blocks, queries = job.blocks(), job.data.queries()
  truth = GroundTruth(blocks.embedded(), queries, _K)
  searches, load_seconds, memory_gb = [], 0.0, 0.0
  for setting in job.searches:
    parameters = {**job.parameters, **setting}
    config = config_from(job.kind, parameters)
    start = time.perf_counter()
    if job.kind == "scann":
      index = IsolatedIndex(config, Path(job.saved), blocks)
      index.wait_until_loaded()
    else:
      index = config.load(Path(job.saved), blocks)
    found = index.search(queries, _K)
    load_seconds = load_seconds or time.perf_counter() - start
    seconds = []
    for _ in range(_REPEATS):
      start = time.perf_counter()
      index.search(queries, _K)
      seconds.append(time.perf_counter() - start)
    process = index.pid if isinstance(index, IsolatedIndex) else None
    memory_gb = max(memory_gb, _peak_memory_gb(process))
    searches.append(_searched(truth, found, seconds, parameters))
  return {
    "load_seconds": load_seconds,
    "searching_memory_gb": memory_gb,
    "searches": searches,
  }


def _searched(
  truth: GroundTruth,
  found: SearchResult,
  seconds: Sequence[float],
  parameters: Row,
) -> Row:
  return {
    "recall_at_8": truth.recall(found),
    "queries_per_second": len(found.rows) / statistics.median(seconds),
    "parameters": parameters,
  }


def svs_rows(folder: Path) -> list[Row]:
  """Measures Intel's SVS in the environment of `make peers`."""
  data = IndexVectors(folder)
  queries = data.queries()
  assert queries.vectors is not None
  truth = GroundTruth(data.vectors(), queries, _K)
  with tempfile.TemporaryDirectory(dir=folder) as scratch:
    (Path(scratch) / "vectors.npy").symlink_to(data.path.resolve())
    np.save(Path(scratch) / "measured.npy", queries.vectors)
    printed = peer_processes.run("svs_index", scratch, str(_THREADS), "5")
    measured = json.loads(printed.splitlines()[-1])
    made = []
    for row in measured["searches"]:
      found = np.load(Path(scratch) / f"found-{row['window']}.npy")
      result = SearchResult(found, np.zeros(found.shape, np.float32))
      parameters = {"window": row["window"]}
      made.append(_searched(truth, result, [row["seconds"]], parameters))
  built = {"system": "svs", "build_seconds": measured["build_seconds"]}
  return [{**built, **row} for row in made]


def _peak_memory_gb(process: int | None = None) -> float:
  """Returns the peak memory of this process, or of another one.

  `ru_maxrss` is not used, because a child inherits its parent's value.
  """
  path = Path(f"/proc/{process or 'self'}/status")
  for line in path.read_text().splitlines():
    if line.startswith("VmHWM:"):
      return 1024 * int(line.split()[1]) / 1e9
  raise OSError(f"{path} has no VmHWM; measure on Linux")


def best(rows: Sequence[Row], system: str, target: float) -> Row | None:
  """Returns the fastest row of a system that reaches the recall, if any."""
  good = [
    row
    for row in rows
    if row["system"] == system and row["recall_at_8"] >= target
  ]
  return max(good, key=lambda row: row["queries_per_second"], default=None)


def table(result: dict[str, Any]) -> str:
  """Formats the best row of each system at each recall, and the ratios."""
  rows = result["rows"]
  lines = [
    f"{result['vectors']}: {result['num_blocks']:,} blocks of {result['dim']} "
    "dimensions",
    f"{'system':<19}{'recall@8':>9}{'queries/s':>11}{'build s':>9}"
    f"{'load s':>8}{'build GB':>10}  settings",
  ]
  for target in _TARGETS:
    lines.append(f"recall@8 ≥ {target}")
    for system in dict.fromkeys(row["system"] for row in rows):
      row = best(rows, system, target)
      if row is None:
        lines.append(f"{system:<19}  does not reach it")
        continue
      settings = {**row["parameters"], "num_leaves": row.get("num_leaves")}
      shown = ("factory", "nprobe", "num_reordered", "num_leaves", "window")
      lines.append(
        f"{system:<19}{row['recall_at_8']:>9.3f}"
        f"{row['queries_per_second']:>11,.0f}{row['build_seconds']:>9.1f}"
        f"{row.get('load_seconds', 0):>8.1f}"
        f"{row.get('build_memory_gb', 0):>10.2f}  "
        + " ".join(str(settings[name]) for name in shown if settings.get(name))
      )
  lines += [f"{name}: {value:.2f}" for name, value in ratios(rows).items()]
  return "\n".join(lines)


def ratios(rows: Sequence[Row]) -> dict[str, float]:
  """Returns the ratios of our rates to those of the fastest peers."""
  found = {}
  for target in _TARGETS:
    for ours, others in (
      ("scann", _PEERS),
      ("scann", ("scann_own_builder",)),
      ("exact", ("faiss_flat",)),
    ):
      a = best(rows, ours, target)
      peers = [row for b in others if (row := best(rows, b, target))]
      if a and peers:
        b = max(peers, key=lambda row: row["queries_per_second"])
        name = f"{ours} against {b['system']}, recall@8 ≥ {target}"
        found[name] = a["queries_per_second"] / b["queries_per_second"]
  return found


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument("--directory", help="folder for vectors and indexes")
  parser.add_argument(
    "--vectors", default="clustered", help="clustered, spectrum, or a folder"
  )
  parser.add_argument(
    "--num_blocks", type=int, default=1_000_000, help="of generated vectors"
  )
  parser.add_argument(
    "--system",
    action="append",
    choices=_SYSTEMS,
    help="index to measure, repeatable; by default all",
  )
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  parser.add_argument(
    "--run", choices=["build", "search"], help="internal flag"
  )
  parser.add_argument("--job", help="internal flag, with --run")
  given = parser.parse_args(arguments)
  if given.run:
    job = Job(**json.loads(given.job))
    print(json.dumps({"build": build, "search": search}[given.run](job)))
    return
  if not given.directory:
    parser.error("--directory is required; name a folder for the vectors")
  # The processes run in another folder, so paths must be absolute.
  directory = Path(given.directory).resolve()
  folder = Path(given.vectors).resolve()
  if given.vectors in index_vectors.GENERATED:
    folder = directory / f"{given.vectors}-{given.num_blocks}"
    index_vectors.generated(given.vectors, folder, given.num_blocks)
  measured: list[Row] = []
  num_blocks, dim = IndexVectors(folder).vectors().shape
  result = {
    "vectors": folder.name,
    "num_blocks": num_blocks,
    "dim": dim,
    "rows": measured,
  }
  for system in given.system or _SYSTEMS:
    if system != "svs":
      for job in jobs_of(system, folder, directory):
        measured += rows(job)
    elif peer_processes.installed():
      measured += svs_rows(folder)
    print(f"{system} has been measured", file=sys.stderr, flush=True)
    # What is measured is kept if a later system does not end.
    if given.json:
      write_json(given.json, result)
  print(table(result))


if __name__ == "__main__":
  main()
