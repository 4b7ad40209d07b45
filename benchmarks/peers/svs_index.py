"""Builds and searches Intel's SVS: a Vamana graph over LVQ-compressed vectors.

    python -m benchmarks.peers.svs_index FOLDER THREADS REPEATS

It reads `vectors.npy` and `measured.npy` in FOLDER, writes the rows that it
finds to `found-WINDOW.npy`, and prints a JSON object with the seconds.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import svs

_WINDOWS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def main(folder: Path, threads: int, repeats: int, *, k: int = 8) -> None:
  """Measures the search of all queries in one batch, with each window."""
  vectors = np.load(folder / "vectors.npy")
  queries = np.load(folder / "measured.npy")
  start = time.perf_counter()
  # SVS documents alpha < 1 for inner products.
  parameters = svs.VamanaBuildParameters(
    alpha=0.95, graph_max_degree=64, window_size=128
  )
  graph = svs.Vamana.build(
    parameters, vectors, svs.DistanceType.MIP, num_threads=threads
  )
  graph.save(
    *(str(folder / f"svs-{name}") for name in ("config", "graph", "data"))
  )
  del graph
  data = svs.VectorDataLoader(
    str(folder / "svs-data"), svs.DataType.float32, dims=vectors.shape[1]
  )
  compressed = svs.LVQLoader(data, primary=4, residual=8)
  index = svs.Vamana(
    str(folder / "svs-config"),
    svs.GraphLoader(str(folder / "svs-graph")),
    compressed,
    distance=svs.DistanceType.MIP,
    num_threads=threads,
  )
  built = time.perf_counter() - start
  searches = []
  for window in _WINDOWS:
    index.search_window_size = window
    found, _ = index.search(queries, k)
    np.save(folder / f"found-{window}.npy", np.asarray(found, np.int32))
    seconds = []
    for _ in range(repeats):
      start = time.perf_counter()
      index.search(queries, k)
      seconds.append(time.perf_counter() - start)
    searches.append({"window": window, "seconds": statistics.median(seconds)})
  print(json.dumps({"build_seconds": built, "searches": searches}))


if __name__ == "__main__":
  main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
