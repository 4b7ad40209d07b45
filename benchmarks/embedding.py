"""Compares the speed of embedding a corpus with two systems in torch.

    python -m benchmarks.embedding --corpus_dir=CORPUS --json=embedding.json

A BERT of MiniLM's size embeds a random sample of --blocks blocks, in the order
of the corpus. The systems take turns for --rounds rounds, and their medians are
reported:

- ours: the index builder's embedder, in length buckets, with matrix products in
  this platform's precision;
- ours, float32: the same, with products in float32;
- ours, padded: the same as ours, with every block padded to the longest one;
- sentence-transformers, in float32 and in bfloat16: `encode` with MiniLM's
  weights, in the environment of `make peers`. It sorts texts by length and also
  tokenizes them, which ours has done before;
- Hugging Face: its BertModel, in batches of 32 in the order of the corpus, each
  padded to its longest block.
"""

import collections
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from benchmarks import flags
from benchmarks.train_step import random_parameters
from harness import peer_processes
from realm_jax.corpus.store import Corpus
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.embedding import CorpusEmbedder, round_up
from realm_jax.text.normalization import Normalization
from realm_jax.weights.hf_files import CONFIG, class_files

_TARGETS = {
  "ours, padded": "≥ 1.5",
  "sentence-transformers, float32": "≥ 2",
  "sentence-transformers, bfloat16": "≥ 1.2",
}
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


class Embedder(NamedTuple):
  """A function that embeds all rows, padded to one of the lengths."""

  embed_all: Callable[[], None]
  lengths: Sequence[int]


def for_corpus(retriever: BertRetriever, corpus: Corpus) -> BertRetriever:
  """Returns the retriever with the corpus's vocabulary."""
  words = corpus.vocabulary
  return retriever.for_vocabulary(
    vocab_size=words.size, separator_id=words.sep_id
  )


def measure(
  corpus: Corpus, rows: Int[np.ndarray, " n"], directory: Path, *, rounds: int
) -> list[dict[str, Any]]:
  """Measures the systems in turns; returns a row for each.

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

  def embedder(precision: str | None = None, **settings: Any) -> Embedder:
    corpus_embedder = CorpusEmbedder(
      *(corpus, embed),
      dim=retriever.vector_size,
      mesh=mesh,
      rows_per_call=len(rows),
      **settings,
    )

    def embed_all() -> None:
      with jax.default_matmul_precision(precision):
        corpus_embedder.embed(params, rows)

    embed_all()  # Compiles.
    return Embedder(embed_all, corpus_embedder.lengths)

  embedders = {
    "ours": embedder(),
    "ours, float32": embedder("float32"),
    "ours, padded": embedder(num_lengths=1),
  }
  blocks = [corpus.block(int(row)) for row in rows]
  texts = [f"{block.title} {block.text}" for block in blocks]
  (directory / "texts.json").write_text(json.dumps(texts))
  config = class_files(retriever.bert, "BertModel", Normalization())[CONFIG]
  of_texts = (
    *("encode", "--input", directory / "texts.json"),
    f"--model={peer_processes.minilm_vocabulary().parent}",
  )
  peers = {
    "sentence-transformers, float32": of_texts,
    "sentence-transformers, bfloat16": (*of_texts, "--dtype=bfloat16"),
    "Hugging Face": (
      *("blocks", "--input", directory / "blocks.npz"),
      f"--model={json.dumps(config)}",
    ),
  }
  seconds = collections.defaultdict[str, list[float]](list)
  for _ in range(rounds):
    for name, system in embedders.items():
      start = time.perf_counter()
      system.embed_all()
      seconds[name].append(time.perf_counter() - start)
    if peer_processes.installed():
      for name, arguments in peers.items():
        timing = json.loads(peer_processes.run("sentence", *arguments))
        seconds[name].append(timing["seconds"])
  measured = []
  for name, of_rounds in seconds.items():
    # Compared within each round, so other load on the machine cancels out.
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
  options = flags.parse(
    __doc__, arguments, corpus_dir=Path, blocks=1024, rounds=3
  )
  cpu_tuning.keep_freed_memory()
  corpus = Corpus.open(options.corpus_dir)
  with tempfile.TemporaryDirectory(prefix="realm_embedding_") as scratch:
    # A random sample, in the corpus's order.
    count = min(options.blocks, corpus.num_blocks)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(corpus.num_blocks, count, replace=False))
    measured = measure(corpus, rows, Path(scratch), rounds=options.rounds)
  print(flags.table(measured))
  flags.write(options, {"rows": measured})


if __name__ == "__main__":
  main()
