"""Compares our values with those of the systems that we import weights from.

    make parity
    python -m benchmarks.parity --json=parity.json

Random Hugging Face REALM models of BERT-base size are made in the environment
of `make peers`, with their outputs, losses and gradients. They are imported,
and our values are compared with theirs. The wordpieces of real texts are
compared with both of Hugging Face's BERT tokenizers, sentence vectors with
MiniLM's, and the loss and optimizer with the published rules. Retrievers that
are exported to sentence-transformers are compared with what it makes of them.
Without real texts (`benchmarks/README.md` lists them), the two parts that need
them are skipped. The exit status is 1 if a comparison fails. Everything is
computed in float32. It takes six minutes of one core, 6 GB of temporary disk
space and 8 GB of memory.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks import peer_processes
from benchmarks.agreement import comparison, exports, realm, rules
from benchmarks.agreement import texts as text_agreement
from benchmarks.agreement.comparison import Row
from benchmarks.data.real_texts import TEXTS_DIR, NoTextsError, read_texts
from realm_jax.storage.json_files import write_json

_NUM_SENTENCES = 300
PARTS = ("rules", "tokens", "sentences", "exports", "realm")
_OF_TEXTS = ("tokens", "sentences")


def compare(
  parts: Sequence[str],
  *,
  size: str,
  texts_dir: Path = TEXTS_DIR,
) -> list[Row]:
  """Makes the comparisons of some parts, and prints each when it is done.

  Args:
    parts: Some of `PARTS`.
    size: Size of the random models, `tiny` or `base`.
    texts_dir: Folder of real texts.

  Raises:
    PeerError: The other systems are not installed, or failed.
    NoTextsError: There are no real texts, and a part needs them.
  """
  rows: list[Row] = []

  def add(found: Sequence[Row]) -> None:
    print(comparison.table(found), flush=True)
    rows.extend(found)

  if "rules" in parts:
    add(rules.compare_all())
  if set(parts) == {"rules"}:
    return rows
  minilm = peer_processes.minilm_dir()
  with tempfile.TemporaryDirectory(prefix="realm_parity_") as name:
    folder = Path(name)
    if "tokens" in parts:
      texts = read_texts(texts_dir)
      vocab = minilm / "vocab.txt"
      add(text_agreement.compare_tokens(texts, vocab, folder))
    if "sentences" in parts:
      sentences = read_texts(texts_dir)["qed"][:_NUM_SENTENCES]
      add(text_agreement.compare_sentences(sentences, minilm, folder))
    if "exports" in parts:
      add(exports.compare_exports(minilm, folder, size=size))
    if "realm" in parts:
      print(f"creating REALM models of size {size} …", file=sys.stderr)
      arguments = ("--output_dir", folder, "--vocab", minilm / "vocab.txt")
      peer_processes.run("realm", *arguments, "--size", size)
      for of_model in realm.COMPARISONS:
        add(of_model(folder))
  return rows


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the comparisons."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--parts",
    nargs="+",
    choices=PARTS,
    help="parts to compare; by default all, if there are real texts",
  )
  parser.add_argument(
    "--size",
    choices=("tiny", "base"),
    default="base",
    help="size of the random models",
  )
  parser.add_argument(
    "--texts_dir", type=Path, default=TEXTS_DIR, help="folder of real texts"
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  parts = given.parts or PARTS
  if not given.parts and not given.texts_dir.is_dir():
    skipped = " and ".join(_OF_TEXTS)
    print(f"no texts in {given.texts_dir}: skipping {skipped}")
    parts = [part for part in PARTS if part not in _OF_TEXTS]
  try:
    # By default GPUs and TPUs round float32 products to fewer bits.
    with jax.default_matmul_precision("highest"):
      rows = compare(
        parts,
        size=given.size,
        texts_dir=given.texts_dir,
      )
  except (peer_processes.PeerError, NoTextsError) as error:
    print(f"parity: {error}", file=sys.stderr)
    sys.exit(2)
  failed = [row.what for row in rows if not row.passed]
  print(f"{len(rows) - len(failed)} of {len(rows)} agree")
  if given.json:
    result = {
      "passed": not failed,
      "rows": [comparison.as_json(row) for row in rows],
    }
    write_json(given.json, result)
  if failed:
    print(f"parity: FAILED: {', '.join(failed)}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
  main()
