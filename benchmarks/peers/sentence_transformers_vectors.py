"""Computes what sentence-transformers makes of texts and of pairs of texts.

    .venv-peers/bin/python -m benchmarks.peers.sentence_transformers_vectors \
      --model=DIR --texts=texts.json --output=vectors.npz

Each of the texts is a string, or a list of title and body, which the library
gives to the tokenizer as a pair. The output has `vectors` [n, d] in the order
of the texts, and the inputs that the library makes: `token_ids` and
`token_types` [n, l], padded with 0.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.peers.tensors import save_arrays


def vectors(
  model_dir: Path, texts: list[str | tuple[str, ...]]
) -> dict[str, np.ndarray]:
  """Returns the output arrays for texts that are all strings, or all pairs."""
  model = SentenceTransformer(str(model_dir), device="cpu")
  inputs = model.tokenize(texts)
  token_ids = inputs["input_ids"].numpy()
  # Without types, BERT takes 0 for all.
  types = inputs.get("token_type_ids")
  return {
    "vectors": np.asarray(model.encode(texts)),
    "token_ids": token_ids,
    "token_types": np.zeros_like(token_ids) if types is None else types.numpy(),
  }


def main() -> None:
  """Embeds the texts and writes the vectors."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--model", type=Path, required=True, help="folder of the model"
  )
  parser.add_argument(
    "--texts", type=Path, required=True, help="list of texts or pairs"
  )
  parser.add_argument(
    "--output", type=Path, required=True, help="file for vectors"
  )
  given = parser.parse_args()
  texts = json.loads(given.texts.read_text(encoding="utf-8"))
  texts = [text if isinstance(text, str) else tuple(text) for text in texts]
  save_arrays(given.output, vectors(given.model, texts))


if __name__ == "__main__":
  main()
