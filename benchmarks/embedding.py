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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from benchmarks import peer_processes
from benchmarks.agreement import imported_model
from benchmarks.data import demo_corpus
from benchmarks.data.random_towers import random_towers
from benchmarks.data.real_texts import (
  TEXTS_DIR,
  NoTextsError,
  titled_paragraphs,
)
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.hugging_face.config import write_bert_config
from realm_jax.conversion.planning import ImportSource
from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import json_lines, write_json
from realm_jax.generations.building.corpus_embedder import CorpusEmbedder
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh

BLOCK_LENGTH = 288
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

System = Callable[[], float]


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


def minilm(weights: Path) -> Model:
  """Loads MiniLM from a folder."""
  source = ImportSource("hf_bert", weights, parts=("retriever",))
  plan = plan_hf_bert(source, TowerOptions())
  loaded = imported_model.load(plan)
  return Model(loaded.retriever, loaded.params["retriever"], weights)


def real_corpus(directory: Path, texts_dir: Path, vocab: Path) -> Corpus:
  """Builds the corpus of QED's and WikiText-2's paragraphs.

  Raises:
    NoTextsError: There is no such folder of texts.
  """
  paragraphs = titled_paragraphs(texts_dir)
  with json_lines(directory / "text.jsonl") as write:
    for number, (title, text) in enumerate(paragraphs):
      write({"id": f"d{number}", "title": title, "text": text})
  build_corpus(
    [str(directory / "text.jsonl")],
    directory / "corpus",
    vocab=str(vocab),
    block_length=BLOCK_LENGTH,
  )
  return Corpus.open(directory / "corpus")


def sample_of(
  corpus: Corpus, count: int | None, *, seed: int = 0
) -> Int[np.ndarray, " n"]:
  """Returns random rows in the corpus's order, or all if there are fewer."""
  if count is None or count >= corpus.num_blocks:
    return np.arange(corpus.num_blocks)
  rng = np.random.default_rng(seed)
  return np.sort(rng.choice(corpus.num_blocks, count, replace=False))


class Ours:
  """Our embedder on some rows, compiled before the first measured pass.

  Args:
    model: Towers.
    corpus: Corpus of the rows.
    rows: Rows that one pass embeds.
    settings: Settings of `CorpusEmbedder`.
  """

  def __init__(
    self,
    model: Model,
    corpus: Corpus,
    rows: Int[np.ndarray, " n"],
    **settings: Any,
  ):
    mesh = make_mesh()
    self._rows = rows
    self._params = jax.device_put(model.params, sharding.replicated(mesh))
    self._embedder = CorpusEmbedder(
      corpus,
      functools.partial(_embed_blocks, model.retriever),
      dim=model.retriever.vector_size,
      mesh=mesh,
      rows_per_call=len(rows),
      **settings,
    )
    self.computed_tokens = int(self._embedder.costs()[rows].sum())
    self.vectors: Float[np.ndarray, "n d"] = self._embed()

  def __call__(self) -> float:
    start = time.perf_counter()
    self._embed()
    return time.perf_counter() - start

  @property
  def host_wait_seconds(self) -> float:
    """Time for which the devices have waited for the host, in all passes."""
    return self._embedder.host_wait_seconds

  def _embed(self) -> Float[np.ndarray, "n d"]:
    return self._embedder.embed(self._params, self._rows)


def _embed_blocks(
  retriever: Retriever, params: Any, token_ids: jax.Array
) -> jax.Array:
  return retriever.apply({"params": params}, token_ids, method="embed_blocks")


class Theirs:
  """Hugging Face's model on the same tokens, in a new process for each pass."""

  def __init__(
    self, model: Model, token_ids: Int[np.ndarray, "n l"], directory: Path
  ):
    self._output = directory / "vectors.npz"
    blocks = directory / "blocks.npz"
    np.savez(blocks, token_ids=token_ids)
    config = model.retriever.bert
    sizes = json.dumps(write_bert_config(config))
    weights = model.weights
    self._flags: list[str | Path] = ["--input", blocks, "--output"]
    self._flags += [self._output, f"--pooling={model.retriever.pooling}"]
    self._flags.append(f"--model={weights or sizes}")

  def __call__(self) -> float:
    printed = peer_processes.run("sentence", "blocks", *self._flags)
    return json.loads(printed.splitlines()[-1])["seconds"]

  def vectors(self) -> Float[np.ndarray, "n d"]:
    """Returns the vectors of the last pass."""
    with np.load(self._output, allow_pickle=False) as arrays:
      return arrays["vectors"]


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
  padded_ids = corpus.gather(rows, corpus.block_length)
  token_ids = np.asarray(model.retriever.block_input(padded_ids))
  tokens = int(np.count_nonzero(token_ids))
  ours = Ours(model, corpus, rows)
  padded = Ours(model, corpus, rows, num_lengths=1)
  systems: dict[str, System] = {"ours": ours, "padded": padded}
  theirs: Theirs | None = None
  if peer_processes.installed():
    systems["hf"] = theirs = Theirs(model, token_ids, directory)
  seconds: dict[str, list[float]] = {name: [] for name in systems}
  waited_before = ours.host_wait_seconds
  for _ in range(rounds):
    for name, system in systems.items():
      seconds[name].append(system())
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
  for name, system in (("ours", ours), ("padded", padded)):
    found[name]["computed_over_useful"] = system.computed_tokens / tokens
  waited = ours.host_wait_seconds - waited_before
  found["ours"]["host_wait_share"] = waited / sum(seconds["ours"])
  if theirs is not None and model.weights is not None:
    found["hf"]["least_cosine"] = _least_cosine(ours.vectors, theirs.vectors())
  return list(found.values())


def _least_cosine(
  one: Float[np.ndarray, "n d"], other: Float[np.ndarray, "n d"]
) -> float:
  norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
  return float(np.min(np.einsum("nd,nd->n", one, other) / norms))


def table(rows: Sequence[dict[str, Any]]) -> str:
  """Formats the rows as a table."""
  lines = [
    f"{'system':<8}{'blocks/s':>10}{'tokens/s':>10}"
    f"{'ours is faster':>16}{'wait for the host':>20}"
  ]
  for row in rows:
    ratio = ""
    if "ours_is_faster" in row:
      target = _TARGETS[row["system"]]
      ratio = f"{row['ours_is_faster']:.2f} × (≥ {target})"
    wait = ""
    if "host_wait_share" in row:
      wait = f"{row['host_wait_share']:.1%}"
    lines.append(
      f"{row['system']:<8}{row['blocks_per_second']:>10.1f}"
      f"{row['tokens_per_second']:>10,.0f}{ratio:>16}{wait:>20}"
    )
  return "\n".join(lines)


def model_and_corpus(
  given: argparse.Namespace, directory: Path
) -> tuple[Model, Corpus]:
  """Returns MiniLM and real texts if available, unless --random is given."""
  if not given.random:
    try:
      weights = (given.minilm or peer_processes.minilm_dir()).absolute()
      corpus = real_corpus(directory, given.texts_dir, weights / "vocab.txt")
      return minilm(weights), corpus
    except (peer_processes.PeerError, NoTextsError) as error:
      print(f"using a random model and generated texts, because: {error}")
  corpus = Corpus.open(
    demo_corpus.make_corpus(
      directory, scale=given.scale, block_length=BLOCK_LENGTH
    )
  )
  return Model(*random_towers(_MINILM, corpus), None), corpus


def make_parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--blocks", type=int, default=1024, help="number of blocks in the sample"
  )
  parser.add_argument(
    "--rounds", type=int, default=3, help="passes of each system"
  )
  parser.add_argument(
    "--random",
    action="store_true",
    help="use a random model and generated texts",
  )
  parser.add_argument(
    "--scale",
    type=float,
    default=1.0,
    help="size of the generated text; 1 is the demo's",
  )
  parser.add_argument(
    "--minilm", type=Path, help="folder of MiniLM, instead of the package's"
  )
  parser.add_argument(
    "--texts_dir", type=Path, default=TEXTS_DIR, help="folder of real texts"
  )
  parser.add_argument("--json", type=Path, help="file to write the rows to")
  return parser


def main(arguments: Sequence[str] | None = None) -> None:
  """Measures and prints."""
  given = make_parser().parse_args(arguments)
  cpu_tuning.keep_freed_memory()
  if not peer_processes.installed():
    print(
      "Hugging Face is not installed (run `make peers`); measuring ours only"
    )
  with tempfile.TemporaryDirectory(prefix="realm_embedding_") as scratch:
    model, corpus = model_and_corpus(given, Path(scratch))
    rows = sample_of(corpus, given.blocks)
    measured = measure(model, corpus, rows, Path(scratch), rounds=given.rounds)
  print(table(measured))
  if given.json:
    write_json(given.json, {"rows": measured})


if __name__ == "__main__":
  main()
