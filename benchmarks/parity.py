"""Compares what we compute with what the systems we take weights from compute.

    make parity
    python -m benchmarks.parity --json=parity.json

Random Hugging Face REALM models of BERT-base size are made in the environment
of `make peers`, with their outputs, losses and gradients; they are imported,
and what is computed here is held against theirs. Then the wordpieces of the
real texts in ../shared/data against both of Hugging Face's BERT tokenizers,
MiniLM's sentence vectors, and the rules of training against the published
ones. Ends with status 1 where a row fails. All is in float32; six minutes of
one core, 6 GB of disk for the while, and 8 GB of memory.
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
from benchmarks.real_texts import NoTextsError, read_texts
from realm_jax.evaluation import outputs

_TEXTS_DIR = peer_processes.PROJECT_DIR.parent / "shared" / "data"
_NUM_SENTENCES = 300
PARTS = ("rules", "tokens", "sentences", "realm")


def compare(
  parts: Sequence[str],
  *,
  size: str,
  minilm: Path | None = None,
  texts_dir: Path = _TEXTS_DIR,
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
    "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to compare"
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
    "--texts_dir", type=Path, default=_TEXTS_DIR, help="of real texts"
  )
  parser.add_argument("--json", help="a file to write the result to")
  given = parser.parse_args(argv)
  # On GPUs and TPUs float32 products are rounded to fewer bits otherwise.
  jax.config.update("jax_default_matmul_precision", "highest")
  try:
    rows = compare(
      given.parts,
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
    outputs.write_json(given.json, result)
  if failed:
    print(f"parity: FAILED: {', '.join(failed)}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
  main()
