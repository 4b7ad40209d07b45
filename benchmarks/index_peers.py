"""FAISS's indexes and our exact search on the same vectors, as rows.

    python -m benchmarks.index_peers --directory=out/index --num_blocks=1000000

Each index is built, loaded and searched in processes of their own, so that
memory is its own too. Prints a line of JSON for each row. `benchmarks.index`
calls `rows`.
"""

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.index_vectors import SyntheticVectors, recall
from benchmarks.jobs import PROJECT_DIR
from benchmarks.own_step import matmul_gflops_per_second
from realm_jax.indexes.protocol import Blocks, QueryBatch
from realm_jax.indexes.registry import config_from

Row = dict[str, Any]

# As in the figures that we hold ours against.
_IVF_PQ = {1_000_000: "IVF1000,PQ64x4fs,RFlat"}
_IVF_PQ_OF_MORE = "IVF3654,PQ64x4fs,RFlat"
_SETTINGS = tuple(
  {"nprobe": nprobe, "num_reordered": num_reordered}
  for nprobe in (2, 4, 8)
  for num_reordered in (100, 200, 400, 800)
)
_ROWS = {
  "faiss_ivf_pq": ("faiss", _SETTINGS),
  "faiss_flat": ("faiss", ({},)),
  "exact": ("exact", ({},)),
}


@dataclasses.dataclass(frozen=True)
class Job:
  """What one index is measured on, as it is given to its processes.

  Attributes:
    index: of `_ROWS`.
    directory: of the vectors, and for the index.
    num_blocks: N.
    threads: of FAISS.
    repeats: of the search of all queries; the median counts.
  """

  index: str
  directory: str
  num_blocks: int
  threads: int = 2
  repeats: int = 5

  @property
  def data(self) -> SyntheticVectors:
    """The vectors, the queries and their true neighbours."""
    return SyntheticVectors(Path(self.directory), self.num_blocks)

  @property
  def saved(self) -> Path:
    """Where the built index lies between the processes."""
    return Path(self.directory) / f"{self.index}-{self.num_blocks}"

  def parameters(self) -> dict[str, Any]:
    """What the index is built with."""
    if self.index == "exact":
      return {}
    factory = "Flat"
    if self.index == "faiss_ivf_pq":
      factory = _IVF_PQ.get(self.num_blocks, _IVF_PQ_OF_MORE)
    return {"factory": factory, "threads": self.threads, "brute_force_below": 0}

  def blocks(self) -> Blocks:
    """The vectors as an index is given them."""
    return Blocks(num_blocks=self.num_blocks, vectors=self.data.vectors())


def rows(job: Job) -> list[Row]:
  """Builds the index in one process, loads and searches it in another."""
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
  """Builds and saves; the time is without saving."""
  kind, _ = _ROWS[job.index]
  config = config_from(kind, job.parameters())
  blocks = job.blocks()
  start = time.perf_counter()
  index = config.build(blocks)
  seconds = time.perf_counter() - start
  peak = _peak_memory_bytes()
  index.save(job.saved)
  return {"build_seconds": seconds, "peak_memory_gb": peak / 1e9}


def search(job: Job) -> Row:
  """Loads, and searches at every setting, one after the other."""
  kind, settings = _ROWS[job.index]
  blocks, queries, truth = job.blocks(), job.data.queries(), job.data.truth()
  batch = QueryBatch(np.zeros((len(queries), 1), np.int32), queries)
  searches, load_seconds = [], None
  for setting in settings:
    parameters = {**job.parameters(), **setting}
    start = time.perf_counter()
    index = config_from(kind, parameters).load(job.saved, blocks)
    # A search reads what loading has only mapped, and compiles.
    found = index.search(batch, job.data.k)
    if load_seconds is None:
      load_seconds = time.perf_counter() - start
    seconds = []
    for _ in range(job.repeats):
      start = time.perf_counter()
      index.search(batch, job.data.k)
      seconds.append(time.perf_counter() - start)
    row = {
      "recall_at_8": recall(found.rows, truth.rows),
      "queries_per_second": len(queries) / statistics.median(seconds),
      "parameters": parameters,
    }
    if job.index == "exact":
      row.update(_share_of_products(job, row["queries_per_second"]))
    searches.append(row)
  return {"load_seconds": load_seconds, "searches": searches}


def _share_of_products(job: Job, queries_per_second: float) -> Row:
  """What exact search computes against the rate of matrix products."""
  best = matmul_gflops_per_second("float32")
  rate = 2e-9 * job.num_blocks * job.data.dim * queries_per_second
  return {
    "gflops_per_second": rate,
    "matmul_gflops_per_second": best,
    "share_of_matmul": rate / best,
  }


def _peak_memory_bytes() -> int:
  """Of this program; a child's `ru_maxrss` would start at its parent's."""
  for line in Path("/proc/self/status").read_text().splitlines():
    if line.startswith("VmHWM:"):
      return 1024 * int(line.split()[1])
  raise OSError("/proc/self/status has no VmHWM; measure on Linux")


def _in_a_process(what: str, job: Job) -> Row:
  command = [sys.executable, "-m", "benchmarks.index_peers", f"--run={what}"]
  command.append(f"--job={json.dumps(dataclasses.asdict(job))}")
  done = subprocess.run(
    command, cwd=PROJECT_DIR, stdout=subprocess.PIPE, text=True, check=True
  )
  return json.loads(done.stdout.splitlines()[-1])


def make_parser() -> argparse.ArgumentParser:
  """The flags."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument("--directory", help="of vectors, made where absent")
  parser.add_argument("--num_blocks", type=int, default=1_000_000, help="N")
  parser.add_argument(
    "--index", action="append", choices=list(_ROWS), help="all, if none given"
  )
  parser.add_argument("--threads", type=int, default=2, help="of FAISS")
  parser.add_argument("--repeats", type=int, default=5, help="of a search")
  parser.add_argument("--run", choices=["build", "search"], help="internal")
  parser.add_argument("--job", help="internal, with --run")
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Measures and prints."""
  parser = make_parser()
  given = parser.parse_args(arguments)
  if given.run:
    job = Job(**json.loads(given.job))
    print(json.dumps({"build": build, "search": search}[given.run](job)))
    return
  if not given.directory:
    parser.error("--directory: where should the vectors be?")
  # Processes run elsewhere, and a relative path would be another there.
  directory = str(Path(given.directory).resolve())
  for index in given.index or _ROWS:
    job = Job(index, directory, given.num_blocks, given.threads, given.repeats)
    for row in rows(job):
      print(json.dumps(row), flush=True)


if __name__ == "__main__":
  main()
