"""Compares our values with the systems from which we import weights.

    make parity
    python -m benchmarks.parity --json=parity.json

Random Hugging Face REALM models of BERT-base size are created in the
environment of `make peers`, with outputs, losses and gradients. They are
imported, and our values are compared with theirs. The same is done for T5,
including the outputs of greedy and beam search. Vectors of MiniLM, and of
models that we export, are compared with sentence-transformers. The wordpieces
of real texts are compared with both of Hugging Face's BERT tokenizers, and the
loss and optimizer with the published rules. Without real texts (listed in
`benchmarks/README.md`), the tokenizers are skipped. The exit status is 1 if a
comparison fails.

Everything is computed in float32. It takes six minutes on one core, 6 GB of
temporary disk space and 8 GB of memory.
"""

import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from benchmarks import flags
from benchmarks.data.real_texts import TEXTS_DIR, read_texts
from harness import peer_processes
from harness.agreement import realm, rules, sentences, t5
from harness.agreement.comparison import Row
from realm_jax.objectives.marginal import FORMS
from realm_jax.text.normalization import Normalization
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.text.wordpieces import WordpieceVocabulary


def comparisons(texts_dir: Path) -> Iterator[Row]:
  """Yields all comparisons; without real texts, skips tokens.

  Raises:
    PeerError: The other systems are not installed, or failed.
  """
  yield from map(rules.compare_signal, FORMS)
  yield rules.compare_adam()
  vocab = peer_processes.minilm_vocabulary()
  with tempfile.TemporaryDirectory(prefix="realm_parity_") as name:
    folder = Path(name)
    texts = read_texts(texts_dir) if texts_dir.is_dir() else {}
    for data_set, texts_of_set in texts.items():
      yield from compare_tokens(data_set, texts_of_set, vocab, folder)
    peer_processes.run("realm", f"--output_dir={folder}", f"--vocab={vocab}")
    for of_model in realm.COMPARISONS:
      yield from of_model(folder)
    peer_processes.run("t5", f"--output_dir={folder}")
    for variant in t5.VARIANTS:
      yield from t5.compare_variant(folder, variant)
    yield from sentences.compare_sentences(
      vocab.parent, folder / "embedder", folder
    )


def compare_tokens(
  data_set: str, texts: list[str], vocab: Path, folder: Path
) -> list[Row]:
  """Compares wordpieces with both of Hugging Face's tokenizers.

  TensorFlow Text normalizes text by NFKC and case folding, like Google's
  released open QA. Hugging Face's tokenizers cannot, so they get normalized
  text.
  """
  pieces = read_vocabulary(vocab).pieces
  folded = [unicodedata.normalize("NFKC", text).casefold() for text in texts]
  rows = []
  for normalizer, read in (("bert", texts), ("tensorflow_text", folded)):
    theirs = peer_processes.run_on_texts("tokens", read, folder, model=vocab)
    words = WordpieceVocabulary(pieces, Normalization(normalizer))
    tokens = words.tokenize_with_offsets(texts)
    ours = _split(tokens.token_ids, tokens.row_offsets)
    for name in ("fast", "slow"):
      tokens_found = _split(theirs[f"{name}/ids"], theirs[f"{name}/offsets"])
      rows.append(
        Row(
          f"tokens of {data_set}, {normalizer}, {name}",
          "texts that differ",
          sum(a != b for a, b in zip(ours, tokens_found, strict=True)),
          0,
          f"of {len(texts):,} texts, {len(tokens.token_ids):,} tokens",
        )
      )
  return rows


def _split(ids: np.ndarray, offsets: np.ndarray) -> list[list[int]]:
  return [row.tolist() for row in np.split(ids, offsets[1:-1])]


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the comparisons."""
  options, rows = flags.parse(__doc__, argv, texts_dir=TEXTS_DIR), []
  # By default, GPUs and TPUs round float32 products to fewer bits.
  with jax.default_matmul_precision("highest"):
    for row in comparisons(options.texts_dir):
      print(row, flush=True)
      rows.append(row)
  passed = all(row.passed for row in rows)
  print(f"{sum(row.passed for row in rows)} of {len(rows)} agree")
  results = [{**row._asdict(), "passed": row.passed} for row in rows]
  flags.write(options, {"passed": passed, "rows": results})
  sys.exit(0 if passed else 1)


if __name__ == "__main__":
  main()
