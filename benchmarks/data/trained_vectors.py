"""Vectors of a trained run: of blocks and, by its query tower, of questions.

    python -m benchmarks.data.trained_vectors --model_dir=out/demo/realm \\
      --world_scale=100 --output_dir=out/vectors/demo
    python -m benchmarks.data.trained_vectors --model_dir=runs/minilm \\
      --texts_dir=../shared/data --block_length=32 --output_dir=out/minilm

The first command generates the demo's world at 100 times its size, about a
million blocks; the second cuts the texts at hand into blocks. The folder
`vectors` of what is written is an argument of `benchmarks.index`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import realm_jax
from benchmarks.data import demo_corpus, real_texts


def main(argv: Sequence[str] | None = None) -> None:
  """Embeds blocks and questions."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--model_dir", type=Path, required=True)
  parser.add_argument("--output_dir", type=Path, required=True)
  parser.add_argument("--block_length", type=int, default=36)
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--world_scale", type=float, help="1 is the demo's world")
  source.add_argument("--texts_dir", type=Path, help="folder of real texts")
  given = parser.parse_args(argv)

  made, run = given.output_dir, str(given.model_dir)
  made.mkdir(parents=True)
  if given.world_scale is not None:
    world = demo_corpus.generated_world(given.world_scale)
    articles = [(d.title, d.text(world.facts)) for d in world.documents]
    asked = [*world.statements["test"], *world.statements["validation"]]
    questions = [question.text for question in asked]
  else:
    articles = real_texts.titled_paragraphs(given.texts_dir)
    asked = [
      *real_texts.held_out_questions(given.texts_dir),
      *real_texts.training_questions(given.texts_dir),
    ]
    questions = [question["question"] for question in asked]
  with (made / "text.jsonl").open("w") as file:
    for title, text in articles:
      file.write(json.dumps({"title": title, "text": text}) + "\n")
  # An import has its vocabulary in MODEL_DIR, and no corpus.
  if (imported := given.model_dir / "vocab.txt").exists():
    text = imported.read_text()
  else:
    pieces = realm_jax.load(run).vocabulary.pieces
    text = "".join(f"{piece}\n" for piece in pieces)
  (made / "vocab.txt").write_text(text)
  in_corpus = [f"--model_dir={run}", f"--corpus_dir={made / 'corpus'}"]
  in_corpus += [f"--gin.GENERATIONS_DIR={made / 'generations'}"]
  for command, *flags in (
    (
      "build_corpus",
      f"--input={made / 'text.jsonl'}",
      f"--output_dir={made / 'corpus'}",
      f"--vocab={made / 'vocab.txt'}",
      f"--block_length={given.block_length}",
      "--workers=2",
    ),
    ("build_index", "--once", "--gin.INDEX=%EXACT", *in_corpus),
    (
      *("export_weights", "--to=vectors", f"--output_dir={made / 'vectors'}"),
      *in_corpus,
    ),
  ):
    module = f"realm_jax.{command}"
    subprocess.run([sys.executable, "-m", module, *flags], check=True)
  loaded = realm_jax.load(
    run,
    corpus_dir=made / "corpus",
    generation=made / "generations",
    bindings=[f"BLOCK_LENGTH = {given.block_length}"],
  )
  shuffled = np.random.default_rng(0).permutation(questions)
  np.save(made / "vectors" / "queries.npy", loaded.embed([*shuffled]))


if __name__ == "__main__":
  main()
