"""Measures how fast corpora are built, and what memory and disk they take.

    python -m benchmarks.corpus --json=corpus.json

The text is generated (`benchmarks/data/generated_text.py`), with names, dates
and blocks of up to 288 wordpieces. Every build is a process of its own:

- of a quarter of the blocks with one worker, two workers and Beam's direct
  runner, whose files are compared byte for byte;
- of all blocks on two workers: if a block takes as long and as much memory as
  in the quarter, time is linear and memory flat.
"""

import argparse
import hashlib
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.generated_text import write_documents
from benchmarks.runs.jobs import printed_json
from realm_jax.corpus import manifest
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import RowReader
from realm_jax.corpus.sources import DocumentSource
from realm_jax.corpus.store import Corpus
from realm_jax.storage.json_files import write_json
from realm_jax.text.wordpieces import (
  train_vocabulary,
  write_pieces,
)

BLOCK_LENGTH = 288
_WIKIPEDIA_BLOCKS = 13_353_718
_VOCABULARY_SIZE = 20_000
# Words of the generated text in a block, found by trying.
_WORDS_PER_BLOCK = 196
# What a training step and the order of the data read.
_READ_BY_TRAINING = (
  *("token_ids", "token_ids_offsets", "title_lengths", "sentences"),
  *("sentences_offsets", "salient_spans", "salient_spans_offsets"),
  *("salient_span_kinds", "block_ids", "content_hashes"),
)


def _build(given: argparse.Namespace) -> dict[str, Any]:
  """Builds one corpus in this process; returns what it took."""
  output_dir = given.directory / f"corpus-{given.run}-{given.input.stem}"
  start, cpu_before = time.perf_counter(), _cpu_seconds()
  summary = build_corpus(
    [str(given.input)],
    output_dir,
    vocab=str(given.directory / "vocab.txt"),
    block_length=BLOCK_LENGTH,
    name="corpus",
    workers=1 if given.run == "beam" else int(given.run),
    beam_options=["--runner=DirectRunner"] if given.run == "beam" else None,
  )
  seconds = time.perf_counter() - start
  cpu_seconds = [
    after - before
    for before, after in zip(cpu_before, _cpu_seconds(), strict=True)
  ]
  # Kilobytes; of the children, the largest.
  usage = [
    resource.getrusage(who).ru_maxrss / 1024
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  ]
  return {
    "runner": given.run,
    "blocks": summary.blocks,
    "tokens": summary.tokens,
    "seconds": seconds,
    "blocks_per_second": summary.blocks / seconds,
    "cpu_seconds": cpu_seconds[0],
    "cpu_seconds_of_workers": cpu_seconds[1],
    "peak_mebibytes": usage[0],
    "peak_mebibytes_of_a_worker": usage[1],
    "output_dir": str(output_dir),
  }


def _cpu_seconds() -> tuple[float, float]:
  """Returns the processor time of this process, and of ended children."""
  usages = map(
    resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  )
  own, children = (usage.ru_utime + usage.ru_stime for usage in usages)
  return own, children


def _child(arguments: argparse.Namespace, **values: object) -> dict[str, Any]:
  """Measures in a process of its own."""
  given = {"directory": arguments.directory, **values}
  flags = (f"--{name}={value}" for name, value in given.items())
  found = printed_json("benchmarks.corpus", *flags)
  print(json.dumps(found), flush=True)
  return found


def _checksum(directory: str) -> str:
  """Returns a hash of all files and their names."""
  total = hashlib.sha256()
  for path in sorted(Path(directory).rglob("*")):
    if path.is_file():
      name = str(path.relative_to(directory))
      content = hashlib.sha256(path.read_bytes()).hexdigest()
      total.update(f"{name} {content}\n".encode())
  return total.hexdigest()


def _disk(output_dir: str) -> dict[str, Any]:
  """Returns bytes per block of a corpus, by array and for training."""
  corpus = Corpus.open(output_dir)
  sizes: dict[str, int] = {}
  for shard in manifest.read(corpus.source)["shards"]:
    for name, record in shard["files"].items():
      array = name.removesuffix(".npy")
      sizes[array] = sizes.get(array, 0) + record["bytes"]
  per_block = {n: size / corpus.num_blocks for n, size in sizes.items()}
  total = sum(per_block.values())
  read = sum(per_block[name] for name in _READ_BY_TRAINING)
  return {
    "bytes_per_block": total,
    "bytes_per_block_read_by_training": read,
    "bytes_per_block_by_array": per_block,
    "tokens_per_block": float(corpus.lengths.mean()),
    "gigabytes_of_wikipedia": total * _WIKIPEDIA_BLOCKS / 1e9,
    "gigabytes_of_wikipedia_read_by_training": read * _WIKIPEDIA_BLOCKS / 1e9,
  }


def measure(given: argparse.Namespace) -> dict[str, Any]:
  """Generates the text, and runs every build."""
  inputs = {}
  for name, share in (("quarter", 0.25), ("all", 1.0)):
    inputs[name] = given.directory / f"{name}.jsonl"
    words = int(given.blocks * share * _WORDS_PER_BLOCK)
    write_documents(inputs[name], num_words=words)
  source = DocumentSource([str(inputs["quarter"])], RowReader())
  texts = (document.text for document in source.documents())
  sample = (text for text, _ in zip(texts, range(2_000), strict=False))
  pieces = train_vocabulary(sample, _VOCABULARY_SIZE)
  write_pieces(given.directory / "vocab.txt", pieces)
  compared = {
    run: _child(given, run=run, input=inputs["quarter"])
    for run in ("1", "2", "beam")
  }
  sums = {
    run: _checksum(found["output_dir"]) for run, found in compared.items()
  }
  whole = _child(given, run="2", input=inputs["all"])
  one, two = compared["1"], compared["2"]
  return {
    "builds": [whole, *compared.values()],
    "two_workers_are_faster": one["seconds"] / two["seconds"],
    # What two idle cores would give, if the machine has other load.
    "two_workers_are_faster_by_cpu_time": one["cpu_seconds"]
    / ((two["cpu_seconds"] + two["cpu_seconds_of_workers"]) / 2),
    "same_bytes": len(set(sums.values())) == 1,
    "seconds_per_block_all_over_quarter": two["blocks_per_second"]
    / whole["blocks_per_second"],
    "disk": _disk(whole["output_dir"]),
  }


def table(found: dict[str, Any]) -> str:
  """Formats the figures as a table."""
  lines = [
    f"{'runner':<10}{'blocks':>11}{'seconds':>10}{'blocks/s':>10}"
    f"{'CPU s':>8}{'workers':>9}{'peak MiB':>10}{'of a worker':>13}"
  ]
  for row in found["builds"]:
    lines.append(
      f"{row['runner']:<10}{row['blocks']:>11,}{row['seconds']:>10.1f}"
      f"{row['blocks_per_second']:>10,.0f}{row['cpu_seconds']:>8.1f}"
      f"{row['cpu_seconds_of_workers']:>9.1f}{row['peak_mebibytes']:>10,.0f}"
      f"{row['peak_mebibytes_of_a_worker']:>13,.0f}"
    )
  disk = found["disk"]
  lines += [
    f"two workers against one: {found['two_workers_are_faster']:.2f} × (≥ 1.7)",
    f"… by processor time: {found['two_workers_are_faster_by_cpu_time']:.2f} ×",
    f"the same bytes from all three: {found['same_bytes']}",
    "seconds per block, all against a quarter: "
    f"{found['seconds_per_block_all_over_quarter']:.2f}",
    f"bytes per block: {disk['bytes_per_block']:,.0f}, of which training reads "
    f"{disk['bytes_per_block_read_by_training']:,.0f}",
    f"{_WIKIPEDIA_BLOCKS:,} blocks: {disk['gigabytes_of_wikipedia']:.1f} GB, "
    f"{disk['gigabytes_of_wikipedia_read_by_training']:.1f} GB",
  ]
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
  """Measures, prints a table and writes the figures."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--blocks", type=int, default=1_000_000, help="number of blocks"
  )
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  parser.add_argument(
    "--directory",
    type=Path,
    help="folder for texts and corpora, 8 KB a block; by default temporary",
  )
  # What a process of its own measures.
  parser.add_argument("--run", help=argparse.SUPPRESS)
  parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
  given = parser.parse_args(argv)
  if given.run:
    print(json.dumps(_build(given)))
    return
  with tempfile.TemporaryDirectory() as temporary:
    # Its processes run in another folder.
    given.directory = (given.directory or Path(temporary)).absolute()
    given.directory.mkdir(parents=True, exist_ok=True)
    found = measure(given)
  print(table(found))
  if given.json:
    write_json(given.json, found)


if __name__ == "__main__":
  main()
