"""Compares the speed, recall and memory of the indexes on the same vectors.

    python -m benchmarks.index --directory=out/index --num_blocks=1000000

The indexes are ScaNN with our trees and our exact search, and FAISS's inverted
lists and its exact search. Each of them is built in one process and searched in
another, so that its memory is measured alone.
"""

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.index_vectors import SyntheticVectors, recall
from benchmarks.runs.jobs import printed_json
from benchmarks.train_step import matmul_gflops_per_second
from realm_jax.files.json_file import write_json
from realm_jax.files.staging import record_files
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks, BuildOptions, QueryBatch
from realm_jax.indexes.registry import config_from

Row = dict[str, Any]

_THREADS = 2  # Of FAISS.
# Numbers of FAISS's inverted lists, by number of blocks.
_LISTS = {1_000_000: 1000, 13_353_718: 3654}
_SETTINGS = tuple(
  {"nprobe": nprobe, "num_reordered": num_reordered}
  for nprobe in (2, 4, 8)
  for num_reordered in (100, 200, 400, 800)
)
_ROWS = {
  "scann": ("scann", ({},)),
  "exact": ("exact", ({},)),
  "faiss_ivf_pq": ("faiss", _SETTINGS),
  "faiss_flat": ("faiss", ({},)),
}


@dataclasses.dataclass(frozen=True)
class Job:
  """Measurement of one index, as its processes receive it.

  Attributes:
    index: One of `_ROWS`.
    directory: Folder of the vectors and of the index.
    num_blocks: Number of blocks N.
    repeats: Repetitions of the search of all queries; the median is reported.
    recall_target: Recall that ScaNN is tuned for.
    scann: Settings of ScaNN that are given instead of tuned.
    base: Argument of `SyntheticVectors`.
  """

  index: str
  directory: str
  num_blocks: int
  repeats: int = 5
  recall_target: float = 0.95
  scann: dict[str, Any] = dataclasses.field(default_factory=dict)
  base: str | None = None

  @property
  def data(self) -> SyntheticVectors:
    """Vectors, queries and their true neighbours."""
    return SyntheticVectors(
      Path(self.directory),
      self.num_blocks,
      base=Path(self.base) if self.base else None,
    )

  @property
  def saved(self) -> Path:
    """Folder of the built index."""
    return Path(self.directory) / f"{self.index}-{self.num_blocks}"

  def parameters(self) -> dict[str, Any]:
    """Returns the configuration that the index is built with."""
    if self.index == "exact":
      return {}
    if self.index == "scann":
      target = {"recall_target": self.recall_target, "below_target": True}
      return {**target, **self.scann}
    factory = "Flat"
    if self.index == "faiss_ivf_pq":
      lists = _LISTS.get(self.num_blocks, round(self.num_blocks**0.5))
      factory = f"IVF{lists},PQ{self.data.dim // 2}x4fs,RFlat"
    return {"factory": factory, "threads": _THREADS, "brute_force_below": 0}

  def blocks(self) -> Blocks:
    """Returns the vectors as the argument of an index."""
    return Blocks(num_blocks=self.num_blocks, vectors=self.data.vectors())


def rows(job: Job) -> list[Row]:
  """Builds the index in one process, then loads and searches it in another."""
  job.data.truth()
  shutil.rmtree(job.saved, ignore_errors=True)
  built = _in_a_process("build", job)
  try:
    found = _in_a_process("search", job)
  finally:
    shutil.rmtree(job.saved, ignore_errors=True)
  of_search = found.pop("searches")
  return [{"index": job.index, **built, **found, **row} for row in of_search]


def build(job: Job) -> Row:
  """Builds the index and writes it to files.

  `build_seconds` excludes the choice of a structure, which is made only for the
  first generation; `trials_seconds` is the time of that choice.
  """
  kind, _ = _ROWS[job.index]
  config = config_from(kind, job.parameters())
  options = BuildOptions(
    directory=job.saved, queries=_batch(job.data.tuning_queries())
  )
  start = time.perf_counter()
  index = config.build(job.blocks(), options)
  row: Row = {"build_seconds": time.perf_counter() - start}
  row["peak_memory_gb"] = _peak_memory_bytes() / 1e9
  if report := index.report:
    row["trials_seconds"] = report.get("trials_seconds", 0.0)
    row["build_seconds"] -= row["trials_seconds"]
    row["report"] = report
  return row


def search(job: Job) -> Row:
  """Verifies and loads the index, and searches it with every setting.

  `load_seconds` is the time to load a generation until its first search is
  done. It includes the checksums of the vectors and of the index. As in a
  trainer, ScaNN loads in a process of its own while checksums are computed.
  """
  kind, settings = _ROWS[job.index]
  blocks, truth = job.blocks(), job.data.truth()
  batch = _batch(job.data.queries())
  start = time.perf_counter()
  searches, load_seconds = [], None
  process: int | None = None
  for setting in settings:
    parameters = {**job.parameters(), **setting}
    config = config_from(kind, parameters)
    if job.index == "scann":
      isolated = IsolatedIndex(config, job.saved, blocks)
      _read_checksums(job)
      isolated.wait_until_loaded()
      index, process = isolated, isolated.pid
    else:
      if load_seconds is None:
        _read_checksums(job)
      index = config.load(job.saved, blocks)
    # The first search reads the mapped files and compiles.
    found = index.search(batch, job.data.k)
    if load_seconds is None:
      load_seconds = time.perf_counter() - start
    seconds = []
    for _ in range(job.repeats):
      start = time.perf_counter()
      index.search(batch, job.data.k)
      seconds.append(time.perf_counter() - start)
    row = {
      "recall_at_8": recall(found.rows, truth),
      "queries_per_second": len(batch.token_ids) / statistics.median(seconds),
      "parameters": parameters,
    }
    if job.index == "exact":
      row.update(_share_of_products(job, row["queries_per_second"]))
    searches.append(row)
  return {
    "load_seconds": load_seconds,
    "searching_memory_gb": _peak_memory_bytes(process) / 1e9,
    "searches": searches,
  }


def _batch(vectors: np.ndarray) -> QueryBatch:
  return QueryBatch(np.zeros((len(vectors), 1), np.int32), vectors)


def _read_checksums(job: Job) -> None:
  """Computes the checksums that loading a generation verifies."""
  paths = [job.data.path]
  if job.saved.exists():
    paths += sorted(job.saved.iterdir())
  folder = job.data.path.parent
  names = [str(path.relative_to(folder)) for path in paths]
  record_files(folder, names, drop_pages=True)


def _share_of_products(job: Job, queries_per_second: float) -> Row:
  """Compares exact search with the best rate of matrix products."""
  best = matmul_gflops_per_second()
  rate = 2e-9 * job.num_blocks * job.data.dim * queries_per_second
  return {
    "gflops_per_second": rate,
    "matmul_gflops_per_second": best,
    "share_of_matmul": rate / best,
  }


def _peak_memory_bytes(process: int | None = None) -> int:
  """Returns the peak memory of this process, or of another one.

  `ru_maxrss` is not used, because a child inherits its parent's value.
  """
  path = Path(f"/proc/{process or 'self'}/status")
  for line in path.read_text().splitlines():
    if line.startswith("VmHWM:"):
      return 1024 * int(line.split()[1])
  raise OSError(f"{path} has no VmHWM; measure on Linux")


def _in_a_process(what: str, job: Job) -> Row:
  given = json.dumps(dataclasses.asdict(job))
  return printed_json("benchmarks.index", f"--run={what}", f"--job={given}")


def best(
  rows: Sequence[Row], index: str, *, recall_target: float
) -> Row | None:
  """Returns the fastest row of an index that reaches the recall, if any."""
  good = [
    row
    for row in rows
    if row["index"] == index and row["recall_at_8"] >= recall_target
  ]
  return max(good, key=lambda row: row["queries_per_second"], default=None)


def table(result: dict[str, Any]) -> str:
  """Formats the best row of each index, and the ratios, as a table."""
  rows, target = result["rows"], result["recall_target"]
  lines = [
    f"{result['num_blocks']:,} blocks of {result['dim']} dimensions",
    f"{'index':<14}{'recall@8':>9}{'queries/s':>11}{'build s':>9}"
    f"{'load s':>8}{'peak GB':>9}",
  ]
  shown = []
  for index in _ROWS:
    of_index = [row for row in rows if row["index"] == index]
    row = best(of_index, index, recall_target=target)
    shown += [row] if row else of_index
  for row in shown:
    lines.append(
      f"{row['index']:<14}{row['recall_at_8']:>9.3f}"
      f"{row['queries_per_second']:>11,.0f}{row['build_seconds']:>9.1f}"
      f"{row['load_seconds']:>8.1f}{row['peak_memory_gb']:>9.2f}"
    )
  lines += [f"{name}: {value:.2f}" for name, value in ratios(result).items()]
  return "\n".join(lines)


def ratios(result: dict[str, Any]) -> dict[str, float]:
  """Returns the ratios of our speed to FAISS's, if both were measured."""
  rows, target = result["rows"], result["recall_target"]
  found = {}
  for ours, theirs in (("scann", "faiss_ivf_pq"), ("exact", "faiss_flat")):
    a = best(rows, ours, recall_target=target)
    b = best(rows, theirs, recall_target=target)
    if a and b:
      ratio = a["queries_per_second"] / b["queries_per_second"]
      found[f"{ours} against {theirs}, recall@8 ≥ {target}"] = ratio
  for row in rows:
    if "share_of_matmul" in row:
      found["exact, share of the matrix products' rate"] = row[
        "share_of_matmul"
      ]
  return found


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    "--directory", help="folder of the vectors, which are generated if absent"
  )
  parser.add_argument(
    "--num_blocks", type=int, default=1_000_000, help="number of blocks"
  )
  parser.add_argument(
    "--index",
    action="append",
    choices=list(_ROWS),
    help="index to measure, repeatable; by default all",
  )
  parser.add_argument(
    "--recall_target",
    type=float,
    default=0.95,
    help="recall@8 that ScaNN is tuned for, and at which indexes are compared",
  )
  parser.add_argument(
    "--scann",
    type=json.loads,
    default={},
    help="settings of ScaNN as JSON, which are then not tuned",
  )
  parser.add_argument(
    "--base", help=".npy file of a trained model's block vectors to resample"
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
  directory, base = (
    path and str(Path(path).resolve()) for path in (given.directory, given.base)
  )
  measured: list[Row] = []
  jobs = [
    Job(
      index,
      directory,
      given.num_blocks,
      recall_target=given.recall_target,
      scann=given.scann,
      base=base,
    )
    for index in given.index or _ROWS
  ]
  for job in jobs:
    measured += rows(job)
    print(f"{job.index} has been measured", file=sys.stderr, flush=True)
  result = {
    "num_blocks": given.num_blocks,
    "dim": jobs[0].data.dim,
    "recall_target": given.recall_target,
    "rows": measured,
  }
  print(table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
