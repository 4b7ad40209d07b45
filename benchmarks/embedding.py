"""Measures how fast a corpus is embedded, ours against Hugging Face's.

    python -m benchmarks.embedding --json=embedding.json

The blocks are a sample of a real corpus (QED's and WikiText-2's paragraphs, up
to 288 wordpieces) in its order, and the model is MiniLM, which `make peers`
installs. If either is missing, or with --random, a random BERT of MiniLM's size
embeds the demo's world. Three systems embed the blocks alternately, and their
medians are reported:

- ours: the index builder's embedder, in length buckets;
- padded: the same embedder, with every block padded to the longest;
- hf: Hugging Face's BertModel with the same weights (random if ours are), in
  batches of 32 that are padded to their longest block, in the environment of
  `make peers`.
"""

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from benchmarks import peer_processes
from benchmarks.agreement import imported_model
from benchmarks.data import demo_corpus, real_texts
from benchmarks.data.large_generations import random_towers
from realm_jax.console import columns
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.generations.embedding import CorpusEmbedder
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.storage.json_files import json_lines, write_json
from realm_jax.weights.directory import CONFIG, class_files
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.plan import make_plan

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


class Model(NamedTuple):
  """A retriever over the corpus's vocabulary.

  Attributes:
    retriever: Towers.
    params: Parameters of the towers.
    weights: Hugging Face's folder of weights; None if they are random.
  """

  retriever: Retriever
  params: Any
  weights: Path | None


def measure(
  model: Model,
  corpus: Corpus,
  rows: Int[np.ndarray, " n"],
  directory: Path,
  *,
  rounds: int,
) -> list[dict[str, Any]]:
  """Measures the systems alternately; returns a row for each.

  Args:
    model: Towers.
    corpus: Corpus of the blocks.
    rows: Rows to embed.
    directory: Folder for the files of the other system.
    rounds: Number of times that each system embeds all rows.
  """
  retriever = model.retriever
  padded_ids = corpus.gather(rows, corpus.block_length)
  token_ids = np.asarray(retriever.block_input(padded_ids))
  tokens = int(np.count_nonzero(token_ids))
  blocks, output = directory / "blocks.npz", directory / "vectors.npz"
  np.savez(blocks, token_ids=token_ids)
  mesh = make_mesh()
  params = jax.device_put(model.params, sharding.replicated(mesh))

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
  # The first passes compile.
  vectors = {n: e.embed(params, rows) for n, e in embedders.items()}
  seconds: dict[str, list[float]] = {name: [] for name in embedders}
  for _ in range(rounds):
    for name, embedder in embedders.items():
      start = time.perf_counter()
      embedder.embed(params, rows)
      seconds[name].append(time.perf_counter() - start)
    if peer_processes.installed():
      files = class_files(retriever.bert, "BertModel", cased=False)
      sizes = json.dumps(files[CONFIG])
      printed = peer_processes.run(
        *("sentence", "blocks", "--input", blocks, "--output", output),
        f"--model={model.weights or sizes}",
        f"--pooling={retriever.pooling}",
      )
      took = json.loads(printed.splitlines()[-1])["seconds"]
      seconds.setdefault("hf", []).append(took)
  found: dict[str, dict[str, Any]] = {}
  for name, of_rounds in seconds.items():
    median = statistics.median(of_rounds)
    found[name] = {
      "system": name,
      "blocks": len(rows),
      "tokens": tokens,
      "tokens_per_second": tokens / median,
      "blocks_per_second": len(rows) / median,
      "seconds": of_rounds,
    }
    if name != "ours":
      # Compared within each round, so that the machine's other load cancels.
      pairs = zip(of_rounds, seconds["ours"], strict=True)
      found[name]["ours_is_faster"] = statistics.median(b / a for b, a in pairs)
  for name, embedder in embedders.items():
    computed = int(embedder.costs()[rows].sum())
    found[name]["computed_over_useful"] = computed / tokens
  if "hf" in found and model.weights is not None:
    ours = np.float64(vectors["ours"])
    with np.load(output, allow_pickle=False) as arrays:
      theirs = np.float64(arrays["vectors"])
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = np.einsum("nd,nd->n", ours, theirs) / norms
    found["hf"]["least_cosine"] = float(np.min(cosines))
  return list(found.values())


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


def model_and_corpus(
  given: argparse.Namespace, directory: Path
) -> tuple[Model, Corpus]:
  """Returns MiniLM and real texts if available, unless --random is given."""
  if not given.random:
    try:
      weights = peer_processes.minilm_dir().absolute()
      paragraphs = real_texts.titled_paragraphs(given.texts_dir)
    except OSError as error:
      print(f"using a random model and generated texts, because: {error}")
    else:
      with json_lines(directory / "text.jsonl") as write:
        for title, text in paragraphs:
          write({"title": title, "text": text})
      build_corpus(
        [str(directory / "text.jsonl")],
        directory / "corpus",
        vocab=str(weights / "vocab.txt"),
        block_length=_BLOCK_LENGTH,
      )
      config = ImportConfig("hf_bert", weights, parts=("retriever",))
      loaded = imported_model.load(make_plan(config))
      model = Model(loaded.retriever, loaded.params["retriever"], weights)
      return model, Corpus.open(directory / "corpus")
  corpus = Corpus.open(
    demo_corpus.make_corpus(
      directory, scale=given.scale, block_length=_BLOCK_LENGTH
    )
  )
  return Model(*random_towers(_MINILM, corpus), None), corpus


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
    ("texts_dir", real_texts.TEXTS_DIR, "folder of real texts"),
  ):
    parser.add_argument(
      f"--{name}", type=type(default), default=default, help=what
    )
  parser.add_argument(
    "--random",
    action="store_true",
    help="use a random model and generated texts",
  )
  parser.add_argument("--json", type=Path, help="file to write the rows to")
  given = parser.parse_args(arguments)
  cpu_tuning.keep_freed_memory()
  if not peer_processes.installed():
    print(
      "Hugging Face is not installed (run `make peers`); measuring ours only"
    )
  with tempfile.TemporaryDirectory(prefix="realm_embedding_") as scratch:
    model, corpus = model_and_corpus(given, Path(scratch))
    # A random sample, in the corpus's order.
    count = min(given.blocks, corpus.num_blocks)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(corpus.num_blocks, count, replace=False))
    measured = measure(model, corpus, rows, Path(scratch), rounds=given.rounds)
  print(table(measured))
  if given.json:
    write_json(given.json, {"rows": measured})


if __name__ == "__main__":
  main()
