"""Measures how fast a corpus is embedded, ours against Hugging Face's.

    python -m benchmarks.embedding --corpus_dir=CORPUS --json=embedding.json

A sample of the corpus's blocks, in their order, is embedded by a random BERT of
MiniLM's size; without a corpus, the demo's world is. Three systems embed the
blocks alternately, and their medians are reported:

- ours: the index builder's embedder, in length buckets;
- padded: the same embedder, with every block padded to the longest;
- hf: Hugging Face's BertModel, in batches of 32 that are padded to their
  longest block, in the environment of `make peers`.
"""

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from benchmarks import peer_processes
from benchmarks.data import demo_corpus
from benchmarks.data.large_generations import random_towers
from realm_jax.console import columns
from realm_jax.corpus.store import Corpus
from realm_jax.generations.embedding import CorpusEmbedder
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.storage.json_files import write_json
from realm_jax.weights.directory import CONFIG, class_files

_BLOCK_LENGTH = 288
_TARGETS = {"padded": 1.5, "hf": 2.0}
_MINILM = Retriever(
  BertConfig(
    hidden_size=384, num_layers=6, num_heads=12, intermediate_size=1536
  ),
  pooling="mean",
  projection_size=None,
  normalize=True,
  title_separator=False,
  token_types=False,
)


def measure(
  corpus: Corpus, rows: Int[np.ndarray, " n"], directory: Path, *, rounds: int
) -> list[dict[str, Any]]:
  """Measures the systems alternately; returns a row for each.

  Args:
    corpus: Corpus of the blocks.
    rows: Rows to embed.
    directory: Folder for the files of the other system.
    rounds: Number of times that each system embeds all rows.
  """
  retriever, values = random_towers(_MINILM, corpus)
  padded_ids = corpus.gather(rows, corpus.block_length)
  token_ids = np.asarray(retriever.block_input(padded_ids))
  tokens = int(np.count_nonzero(token_ids))
  blocks = directory / "blocks.npz"
  np.savez(blocks, token_ids=token_ids)
  mesh = make_mesh()
  params = jax.device_put(values, sharding.replicated(mesh))

  def embed(params: Any, token_ids: jax.Array) -> Any:
    return retriever.apply({"params": params}, token_ids, method="embed_blocks")

  make = functools.partial(
    CorpusEmbedder,
    *(corpus, embed),
    dim=retriever.vector_size,
    mesh=mesh,
    rows_per_call=len(rows),
  )
  embedders = {"ours": make(), "padded": make(num_lengths=1)}
  for embedder in embedders.values():
    embedder.embed(params, rows)  # Compiles.
  seconds: dict[str, list[float]] = {name: [] for name in embedders}
  for _ in range(rounds):
    for name, embedder in embedders.items():
      start = time.perf_counter()
      embedder.embed(params, rows)
      seconds[name].append(time.perf_counter() - start)
    if peer_processes.installed():
      files = class_files(retriever.bert, "BertModel", cased=False)
      printed = peer_processes.run(
        *("sentence", "blocks", "--input", blocks),
        f"--model={json.dumps(files[CONFIG])}",
      )
      took = json.loads(printed.splitlines()[-1])["seconds"]
      seconds.setdefault("hf", []).append(took)
  found = []
  for name, of_rounds in seconds.items():
    median = statistics.median(of_rounds)
    row = {
      "system": name,
      "blocks": len(rows),
      "tokens": tokens,
      "tokens_per_second": tokens / median,
      "blocks_per_second": len(rows) / median,
      "seconds": of_rounds,
    }
    if name in embedders:
      computed = int(embedders[name].costs()[rows].sum())
      row["computed_over_useful"] = computed / tokens
    if name != "ours":
      # Compared within each round, so that the machine's other load cancels.
      pairs = zip(of_rounds, seconds["ours"], strict=True)
      row["ours_is_faster"] = statistics.median(b / a for b, a in pairs)
    found.append(row)
  return found


def table(rows: Sequence[dict[str, Any]]) -> str:
  """Formats the rows as a table."""
  lines = [("system", "blocks/s", "tokens/s", "ours is faster")]
  for row in rows:
    system, ratio = row["system"], row.get("ours_is_faster")
    rates = (
      f"{row['blocks_per_second']:.1f}",
      f"{row['tokens_per_second']:,.0f}",
    )
    shown = f"{ratio:.2f} × (≥ {_TARGETS[system]})" if ratio else ""
    lines.append((system, *rates, shown))
  return columns(lines)


def main(arguments: Sequence[str] | None = None) -> None:
  """Measures and prints."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  for name, default, what in (
    ("blocks", 1024, "number of blocks in the sample"),
    ("rounds", 3, "passes of each system"),
    ("scale", 1.0, "size of the generated text; 1 is the demo's"),
  ):
    parser.add_argument(
      f"--{name}", type=type(default), default=default, help=what
    )
  parser.add_argument("--corpus_dir", type=Path, help="corpus of the blocks")
  parser.add_argument("--json", type=Path, help="file to write the rows to")
  given = parser.parse_args(arguments)
  cpu_tuning.keep_freed_memory()
  if not peer_processes.installed():
    print(
      "Hugging Face is not installed (run `make peers`); measuring ours only"
    )
  with tempfile.TemporaryDirectory(prefix="realm_embedding_") as scratch:
    corpus = Corpus.open(
      given.corpus_dir
      or demo_corpus.make_corpus(
        Path(scratch), scale=given.scale, block_length=_BLOCK_LENGTH
      )
    )
    # A random sample, in the corpus's order.
    count = min(given.blocks, corpus.num_blocks)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(corpus.num_blocks, count, replace=False))
    measured = measure(corpus, rows, Path(scratch), rounds=given.rounds)
  print(table(measured))
  if given.json:
    write_json(given.json, {"rows": measured})


if __name__ == "__main__":
  main()
