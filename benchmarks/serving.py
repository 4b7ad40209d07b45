"""Puts a service under the load of programs that train on its results.

    python -m benchmarks.serving --model_dir=out/demo/open_qa

For `--seconds`, clients send queries to `/retrieve`, which are random sentences
of the corpus. Each client waits for its response. An imported run, which has no
record of its corpus, needs `--corpus_dir` and `--bindings BLOCK_LENGTH=…`. The
report has the numbers of answered and refused requests, their latency, and the
growth of the service's resident memory since it was idle. With `--feedback=1`,
the service samples and logs its results, and each client sends rewards.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from absl import flags as absl_flags

from benchmarks import flags
from realm_jax.api import load
from realm_jax.console import name_value_table

_PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 0.05


def resident_gb(pid: int) -> float:
  """Returns a process's memory that is not backed by files on a disk."""
  status = Path(f"/proc/{pid}/status").read_text()
  match = re.search(r"RssAnon:\s+(\d+) kB", status)
  return int(match[1]) / 1e6 if match else 0.0


def random_sentences(options: Any, count: int) -> list[str]:
  """Returns random sentences from the run's corpus."""
  run = load(
    options.model_dir, corpus_dir=options.corpus_dir, bindings=options.bindings
  )
  rng = np.random.default_rng(0)
  rows = rng.integers(run.corpus.num_blocks, size=count)
  texts = (run.corpus.block(row).text for row in rows.tolist())
  return [text.partition(". ")[0][:500] for text in texts]


def crowd(
  url: str, queries: Sequence[str], options: Any
) -> tuple[list[float], list[int], list[float]]:
  """Sends requests from several clients.

  Returns:
    The times of answered requests, the status codes of the others, and the
    times of requests that sent rewards.
  """
  seconds: list[float] = []
  of_rewards: list[float] = []
  refused: list[int] = []
  end = time.monotonic() + options.seconds

  def ask(client: int) -> None:
    rng = np.random.default_rng(client)
    with httpx.Client(timeout=_PATIENCE_SECONDS, trust_env=False) as session:
      while time.monotonic() < end:
        texts = rng.choice(queries, options.queries).tolist()
        start = time.monotonic()
        answer = session.post(
          f"{url}/retrieve", json={"queries": texts, "k": options.k}
        )
        if answer.status_code != httpx.codes.OK:
          refused.append(answer.status_code)
          time.sleep(_LOOK_SECONDS)
          continue
        reply = answer.json()
        assert len(reply["results"]) == options.queries
        seconds.append(time.monotonic() - start)
        if ids := reply.get("request_ids"):
          rewards = [{"request_id": name, "rewards": 1.0} for name in ids]
          start = time.monotonic()
          session.post(f"{url}/feedback", json={"feedback": rewards})
          of_rewards.append(time.monotonic() - start)

  threads = [
    threading.Thread(target=ask, args=[client])
    for client in range(options.clients)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return seconds, refused, of_rewards


def measure(options: Any) -> dict[str, Any]:
  """Serves a run, loads the service, and returns the metrics."""
  queries = random_sentences(options, 4096)
  command = [
    *(sys.executable, "-m", "realm_jax.serve"),
    *(f"--model_dir={options.model_dir}", "--port=0"),
    *([f"--corpus_dir={options.corpus_dir}"] if options.corpus_dir else []),
    *(f"--gin.{binding}" for binding in options.bindings),
  ]
  if options.feedback:
    command += ["--accept_feedback", "--explore_temperature=1"]
    command.append(f"--feedback_dir={tempfile.mkdtemp()}")
    command.append(f"--pool_size={options.k}")
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
    try:
      assert service.stdout is not None
      addresses = (re.search(r"http://\S+", line) for line in service.stdout)
      url = next(match[0] for match in addresses if match)
      first = {"queries": queries[: options.queries], "k": options.k}
      httpx.post(
        f"{url}/retrieve",
        json=first,
        timeout=_PATIENCE_SECONDS,
        trust_env=False,
      ).raise_for_status()
      idle = most = resident_gb(service.pid)
      ended = threading.Event()

      def watch() -> None:
        nonlocal most
        while not ended.wait(_LOOK_SECONDS):
          most = max(most, resident_gb(service.pid))

      watching = threading.Thread(target=watch)
      watching.start()
      start = time.monotonic()
      seconds, refused, of_rewards = crowd(url, queries, options)
      wall_seconds = time.monotonic() - start
      ended.set()
      watching.join()
    finally:
      service.terminate()
  return {
    "clients": options.clients,
    "queries_per_request": options.queries,
    "k": options.k,
    "requests_answered": len(seconds),
    "requests_refused": len(refused),
    "queries_per_second": len(seconds) * options.queries / wall_seconds,
    "median_seconds": statistics.median(seconds),
    "longest_seconds": max(seconds),
    **(
      {"median_seconds_of_rewards": statistics.median(of_rewards)}
      if of_rewards
      else {}
    ),
    "idle_gb": idle,
    "grown_by_gb": most - idle,
  }


def main() -> None:
  options = flags.parse(
    __doc__,
    model_dir=Path,
    corpus_dir=None,
    bindings=(),
    clients=64,
    queries=256,
    k=100,
    seconds=60.0,
    feedback=0,
  )
  absl_flags.FLAGS.mark_as_parsed()
  metrics = measure(options)
  print(name_value_table(metrics))
  flags.write(options, metrics)


if __name__ == "__main__":
  main()
