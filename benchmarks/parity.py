"""Compares what we compute with what the systems we take weights from compute.

    make parity
    python -m benchmarks.parity --json=parity.json

Random Hugging Face REALM models of BERT-base size are made in the environment
of `make peers`, with their outputs, losses and gradients; they are imported,
and what is computed here is held against theirs. So are the wordpieces of real
texts against both of Hugging Face's BERT tokenizers, MiniLM's sentence vectors,
and the rules of training against the published ones. Where there are no real
texts (`benchmarks/README.md` says which), the two parts that need them are left
out. Ends with status 1 where a row fails. All is in float32; six minutes of one
core, 6 GB of disk for the while, and 8 GB of memory.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks import (
  agreement,
  peer_processes,
  realm_agreement,
  rule_agreement,
  text_agreement,
)
from benchmarks.agreement import Row
from benchmarks.real_texts import TEXTS_DIR, NoTextsError, read_texts
from realm_jax.files.json_file import write_json

_NUM_SENTENCES = 300
PARTS = ("rules", "tokens", "sentences", "realm")
_OF_TEXTS = ("tokens", "sentences")


def compare(
  parts: Sequence[str],
  *,
  size: str,
  minilm: Path | None = None,
  texts_dir: Path = TEXTS_DIR,
) -> list[Row]:
  """The rows of some parts; each is printed as it is done.

  Args:
    parts: of `PARTS`.
    size: of the REALM models, `tiny` or `base`.
    minilm: a folder with MiniLM's weights and vocabulary; None takes the
      package's.
    texts_dir: of real texts.

  Raises:
    PeerError: the other systems are not installed, or failed.
    NoTextsError: there are no real texts, and a part wants some.
  """
  rows: list[Row] = []

  def add(found: Sequence[Row]) -> None:
    print(agreement.table(found), flush=True)
    rows.extend(found)

  if "rules" in parts:
    add(rule_agreement.compare_all())
  if set(parts) == {"rules"}:
    return rows
  minilm = minilm or peer_processes.minilm_dir()
  with tempfile.TemporaryDirectory(prefix="realm_parity_") as name:
    folder = Path(name)
    if "tokens" in parts:
      texts = read_texts(texts_dir)
      vocab = minilm / "vocab.txt"
      add(text_agreement.compare_tokens(texts, vocab, folder))
    if "sentences" in parts:
      sentences = read_texts(texts_dir)["qed"][:_NUM_SENTENCES]
      add(text_agreement.compare_sentences(sentences, minilm, folder))
    if "realm" in parts:
      print(f"making REALM models of size {size} …", file=sys.stderr)
      arguments = ("--output_dir", folder, "--vocab", minilm / "vocab.txt")
      peer_processes.run("hf_realm_values", *arguments, "--size", size)
      for of_model in realm_agreement.COMPARISONS:
        add(of_model(folder))
  return rows


def main(argv: Sequence[str] | None = None) -> None:
  """Compares and prints."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--parts",
    nargs="+",
    choices=PARTS,
    help="what to compare; by default all that there are texts for",
  )
  parser.add_argument(
    "--size", choices=("tiny", "base"), default="base", help="of REALM models"
  )
  parser.add_argument(
    "--minilm",
    type=Path,
    help="a folder with MiniLM's weights and vocabulary, instead of the "
    "package's in .venv-peers",
  )
  parser.add_argument(
    "--texts_dir", type=Path, default=TEXTS_DIR, help="of real texts"
  )
  parser.add_argument("--json", help="a file to write the result to")
  given = parser.parse_args(argv)
  parts = given.parts or PARTS
  if not given.parts and not given.texts_dir.is_dir():
    print(f"no texts in {given.texts_dir}: without {' and '.join(_OF_TEXTS)}")
    parts = [part for part in PARTS if part not in _OF_TEXTS]
  # On GPUs and TPUs float32 products are rounded to fewer bits otherwise.
  jax.config.update("jax_default_matmul_precision", "highest")
  try:
    rows = compare(
      parts,
      size=given.size,
      minilm=given.minilm,
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
      "rows": [agreement.as_json(row) for row in rows],
    }
    write_json(given.json, result)
  if failed:
    print(f"parity: FAILED: {', '.join(failed)}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
  main()
