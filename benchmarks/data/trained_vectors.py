"""Writes a trained run's vectors of blocks and questions.

    python -m benchmarks.data.trained_vectors --model_dir=out/demo/realm \\
      --world_scale=100 --output_dir=out/vectors/demo
    python -m benchmarks.data.trained_vectors --model_dir=runs/minilm \\
      --texts_dir=../shared/data --block_length=32 --output_dir=out/minilm

The first command generates the demo's world at 100 times its size, with about a
million blocks. The second one splits real texts into blocks. The folder
`vectors` in the output can be passed to `benchmarks.index`.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import realm_jax
from benchmarks import flags
from benchmarks.data import demo_corpus, real_texts
from harness.jobs import Macro, gin_command
from realm_jax.corpus.build import build_corpus


def main(argv: Sequence[str] | None = None) -> None:
  """Embeds blocks and questions."""
  options = flags.parse(
    __doc__,
    argv,
    model_dir=Path,
    output_dir=Path,
    block_length=36,
    world_scale=1.0,
    texts_dir=None,
  )
  output, run = options.output_dir, str(options.model_dir)
  output.mkdir(parents=True)
  if options.texts_dir is None:
    world = demo_corpus.generated_world(options.world_scale)
    articles = [(d.title, d.text(world.facts)) for d in world.documents]
    asked = [*world.statements["test"], *world.statements["validation"]]
    questions = [question.text for question in asked]
  else:
    articles = real_texts.titled_paragraphs(options.texts_dir)
    questions = real_texts.questions(options.texts_dir)
  with (output / "text.jsonl").open("w") as file:
    for title, text in articles:
      file.write(json.dumps({"title": title, "text": text}) + "\n")
  # An import has no corpus, but its vocabulary is in MODEL_DIR.
  vocab = options.model_dir / "vocab.txt"
  if not vocab.exists():
    vocab = output / "vocab.txt"
    vocab.write_text("\n".join(realm_jax.load(run).vocabulary.pieces) + "\n")
  build_corpus(
    [str(output / "text.jsonl")],
    output / "corpus",
    vocab=str(vocab),
    block_length=options.block_length,
    workers=2,
  )
  bindings = {"SNAPSHOTS_DIR": output / "snapshots"}
  of_run = f"--model_dir={run}", f"--corpus_dir={output / 'corpus'}"
  vectors = "--to=vectors", f"--output_dir={output / 'vectors'}"
  for command in (
    gin_command(
      *("build_index", (), "--once", *of_run), INDEX=Macro("EXACT"), **bindings
    ),
    gin_command("export_weights", (), *vectors, *of_run, **bindings),
  ):
    subprocess.run(command, check=True)
  loaded = realm_jax.load(
    run,
    corpus_dir=output / "corpus",
    snapshot=output / "snapshots",
    bindings=[f"BLOCK_LENGTH = {options.block_length}"],
  )
  shuffled = np.random.default_rng(0).permutation(questions)
  np.save(output / "vectors" / "queries.npy", loaded.embed([*shuffled]))


if __name__ == "__main__":
  main()
