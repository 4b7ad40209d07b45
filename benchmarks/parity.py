"""Compares our values with those of the systems that we import weights from.

    make parity
    python -m benchmarks.parity --json=parity.json

Random Hugging Face REALM models of BERT-base size are made in the environment
of `make peers`, with their outputs, losses and gradients. They are imported,
and our values are compared with theirs. So are the vectors of MiniLM, and of
models that we export, with those of sentence-transformers. The wordpieces of
real texts are compared with both of Hugging Face's BERT tokenizers, and the
loss and optimizer with the published rules. Without real texts
(`benchmarks/README.md` lists them), the tokenizers are skipped. The exit status
is 1 if a comparison fails.
Everything is computed in float32. It takes six minutes of one core, 6 GB of
temporary disk space and 8 GB of memory.
"""

import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks import flags, peer_processes
from benchmarks.agreement import realm, rules, sentences
from benchmarks.agreement.comparison import Row
from benchmarks.data.real_texts import TEXTS_DIR, read_texts
from realm_jax.objectives.marginal import FORMS
from realm_jax.storage.json_files import write_json
from realm_jax.text.wordpieces import WordpieceVocabulary, read_pieces


def comparisons(texts_dir: Path) -> Iterator[Row]:
  """Yields all comparisons; those of tokens if there are real texts.

  Raises:
    PeerError: The other systems are not installed, or failed.
  """
  yield from map(rules.compare_signal, FORMS)
  yield rules.compare_adam()
  vocab = peer_processes.minilm_vocabulary()
  with tempfile.TemporaryDirectory(prefix="realm_parity_") as name:
    folder = Path(name)
    texts = read_texts(texts_dir) if texts_dir.is_dir() else {}
    for data_set, own in texts.items():
      yield from compare_tokens(data_set, own, vocab, folder)
    peer_processes.run("realm", f"--output_dir={folder}", f"--vocab={vocab}")
    for of_model in realm.COMPARISONS:
      yield from of_model(folder)
    yield from sentences.compare_sentences(
      vocab.parent, folder / "embedder", folder
    )


def compare_tokens(
  data_set: str, texts: list[str], vocab: Path, folder: Path
) -> list[Row]:
  """Compares wordpieces with those of both of Hugging Face's tokenizers.

  TensorFlow Text normalizes text by NFKC and case folding before it is split,
  as did Google's released open QA. BERT's own tokenizers only lower-case
  letters and drop accents, so that they are given normalized text; a note says
  how many texts differ otherwise.
  """
  folded = [unicodedata.normalize("NFKC", text).casefold() for text in texts]
  theirs, unfolded = (
    peer_processes.run_on_texts("tokens", given, folder, model=vocab)
    for given in (folded, texts)
  )
  tokens = WordpieceVocabulary(read_pieces(vocab)).tokenize_with_offsets(texts)
  ours = _split(tokens.token_ids, tokens.row_offsets)

  def num_different(found: dict[str, np.ndarray], name: str) -> int:
    rows = _split(found[f"{name}/ids"], found[f"{name}/offsets"])
    return sum(a != b for a, b in zip(ours, rows, strict=True))

  return [
    Row(
      f"tokens of {data_set}, {name}",
      "texts that differ",
      num_different(theirs, name),
      0,
      f"of {len(texts):,} texts, {len(tokens.token_ids):,} tokens; "
      f"{num_different(unfolded, name)} if theirs are not normalized",
    )
    for name in ("fast", "slow")
  ]


def _split(ids: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
  return [row.tolist() for row in np.split(ids, offsets[1:-1])]


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the comparisons."""
  given, rows = flags.parse(__doc__, argv, texts_dir=TEXTS_DIR), []
  # By default GPUs and TPUs round float32 products to fewer bits.
  with jax.default_matmul_precision("highest"):
    for row in comparisons(given.texts_dir):
      print(row, flush=True)
      rows.append(row)
  passed = all(row.passed for row in rows)
  print(f"{sum(row.passed for row in rows)} of {len(rows)} agree")
  if given.json:
    found = [{**row._asdict(), "passed": row.passed} for row in rows]
    write_json(given.json, {"passed": passed, "rows": found})
  sys.exit(0 if passed else 1)


if __name__ == "__main__":
  main()
