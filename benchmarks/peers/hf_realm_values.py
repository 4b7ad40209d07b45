"""Makes random Hugging Face REALM models, and the values that they compute.

    .venv-peers/bin/python -m benchmarks.peers.hf_realm_values \
      --output_dir=out/hf_realm --vocab=vocab.txt --size=base

Each model is a folder written by `save_pretrained`. `expected.npz` in it has
the inputs and the outputs. The name of a gradient is `gradient/` and the
parameter's name. Everything is drawn from one seed.

| folder | contents of `expected.npz` |
| --- | --- |
| `embedder` | vectors of queries and blocks |
| `two_towers` | relevance by a scorer with a query tower of its own |
| `scorer`, `encoder` | relevance, masked-LM logits, REALM's loss, gradients |
| `reader` | span scores, losses and the spans chosen, gradients |
| `open_qa` | the same, with retrieval from stored vectors and texts |
"""

import argparse
from pathlib import Path

from benchmarks.peers.hf_realm_random import SIZES, RandomRealm
from benchmarks.peers.hf_realm_readers import make_open_qa, make_reader
from benchmarks.peers.hf_realm_retrievers import (
  make_embedder,
  make_scorer_and_encoder,
  make_two_towers,
)


def make_all(
  output_dir: Path, vocab: Path, *, size: str, seed: int = 0
) -> None:
  """Makes all models in one of `SIZES`."""
  realm = RandomRealm(output_dir, vocab, SIZES[size], seed=seed)
  make_embedder(realm)
  make_two_towers(realm)
  make_scorer_and_encoder(realm)
  make_reader(realm)
  make_open_qa(realm)


def main() -> None:
  """Makes all models."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--output_dir", type=Path, required=True, help="folder of models"
  )
  parser.add_argument(
    "--vocab", type=Path, required=True, help="vocabulary file"
  )
  parser.add_argument(
    "--size", choices=SIZES, default="base", help="size of models"
  )
  parser.add_argument(
    "--seed", type=int, default=0, help="seed of all random numbers"
  )
  given = parser.parse_args()
  make_all(given.output_dir, given.vocab, size=given.size, seed=given.seed)


if __name__ == "__main__":
  main()
