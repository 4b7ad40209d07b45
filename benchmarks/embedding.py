"""Measures how fast a corpus is embedded, ours against Hugging Face's.

    python -m benchmarks.embedding --corpus_dir=CORPUS --json=embedding.json

A sample of --blocks of the corpus, in their order, is embedded by a random BERT
of MiniLM's size. Three systems embed the blocks alternately, in --rounds, and
their medians are reported:

- ours: the index builder's embedder, in length buckets;
- padded: the same embedder, with every block padded to the longest;
- hf: Hugging Face's BertModel, in batches of 32 that are padded to their
  longest block, in the environment of `make peers`.
"""

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

from benchmarks import flags
from benchmarks.train_step import random_parameters
from harness import peer_processes
from realm_jax.console import columns
from realm_jax.corpus.store import Corpus
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.embedding import CorpusEmbedder, round_up
from realm_jax.storage.json_files import write_json
from realm_jax.text.normalization import Normalization
from realm_jax.weights.hf_files import CONFIG, class_files

_TARGETS = {"padded": "≥ 1.5", "hf": "≥ 2"}
_MINILM = BertRetriever(
  BertConfig(
    hidden_size=384, num_layers=6, num_heads=12, intermediate_size=1536
  ),
  pooling="mean",
  projection_size=None,
  normalize=True,
  title_separator=False,
  token_types=False,
)


def for_corpus(retriever: BertRetriever, corpus: Corpus) -> BertRetriever:
  """Returns the retriever for the corpus's vocabulary."""
  words = corpus.vocabulary
  return retriever.for_vocabulary(
    vocab_size=words.vocab_size, separator_id=words.sep_id
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
  retriever = for_corpus(_MINILM, corpus)
  padded_ids = corpus.gather(rows, corpus.block_length)
  token_ids = np.asarray(retriever.block_input(padded_ids))
  tokens = int(np.count_nonzero(token_ids))
  np.savez(directory / "blocks.npz", token_ids=token_ids)
  mesh = make_mesh()
  params = jax.device_put(
    random_parameters(retriever), sharding.replicated(mesh)
  )

  def embed(params: Any, token_ids: jax.Array) -> Any:
    return retriever.apply({"params": params}, token_ids, method="embed_blocks")

  def embedder(**settings: Any) -> CorpusEmbedder:
    made = CorpusEmbedder(
      *(corpus, embed),
      dim=retriever.vector_size,
      mesh=mesh,
      rows_per_call=len(rows),
      **settings,
    )
    made.embed(params, rows)  # Compiles.
    return made

  embedders = {"ours": embedder(), "padded": embedder(num_lengths=1)}
  seconds: dict[str, list[float]] = {name: [] for name in embedders}
  for _ in range(rounds):
    for name, own in embedders.items():
      start = time.perf_counter()
      own.embed(params, rows)
      seconds[name].append(time.perf_counter() - start)
    if peer_processes.installed():
      config = class_files(retriever.bert, "BertModel", Normalization())[CONFIG]
      found = peer_processes.run(
        *("sentence", "blocks", "--input", directory / "blocks.npz"),
        f"--model={json.dumps(config)}",
      )
      seconds.setdefault("hf", []).append(json.loads(found)["seconds"])
  measured = []
  for name, of_rounds in seconds.items():
    # Compared within each round, so that the machine's other load cancels.
    pairs = zip(of_rounds, seconds["ours"], strict=True)
    computed = ""
    if name in embedders:
      lengths = round_up(corpus.lengths[rows], embedders[name].lengths)
      computed = int(lengths.sum()) / tokens
    row = {
      "system": name,
      "tokens": tokens,
      "tokens_per_second": tokens / statistics.median(of_rounds),
      "blocks_per_second": len(rows) / statistics.median(of_rounds),
      "ours_is_faster": statistics.median(b / a for b, a in pairs),
      "target": _TARGETS.get(name, ""),
      "computed_over_useful": computed,
    }
    measured.append(row)
  return measured


def main(arguments: Sequence[str] | None = None) -> None:
  """Measures and prints."""
  given = flags.parse(
    __doc__, arguments, corpus_dir=Path, blocks=1024, rounds=3
  )
  cpu_tuning.keep_freed_memory()
  corpus = Corpus.open(given.corpus_dir)
  with tempfile.TemporaryDirectory(prefix="realm_embedding_") as scratch:
    # A random sample, in the corpus's order.
    count = min(given.blocks, corpus.num_blocks)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(corpus.num_blocks, count, replace=False))
    measured = measure(corpus, rows, Path(scratch), rounds=given.rounds)
  print(columns([[*measured[0]], *([*row.values()] for row in measured)]))
  if given.json:
    write_json(given.json, {"rows": measured})


if __name__ == "__main__":
  main()
