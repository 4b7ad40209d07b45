"""Creates a MODEL_DIR from weights of another system.

    python -m realm_jax.import_weights --from=hf_bert \\
      --input=all-MiniLM-L6-v2 --output_dir=runs/minilm

This writes checkpoint 0, the vocabulary (for `build_corpus --vocab=MODEL_DIR`)
and the model (`config.json`, which can be passed as --gin_file in place of
gin/models/bert_base.gin). It prints which parameter came from which tensor,
which tensors are unused, and which parameters start from random values. A
tensor without a parameter, a parameter without a tensor, or a shape that does
not fit is an error, unless --ignore matches its name.

build_index and evaluate use the MODEL_DIR directly; train uses it as
INITIAL_CHECKPOINT or INITIAL_READER. The help for --from lists the formats.
With the extra `hub`, --input may be a model's name on Hugging Face's hub, such
as intfloat/e5-base-v2; --revision is its commit, tag or branch. `imported.json`
records the flags and the commit.

If the directory has the modules.json of sentence-transformers, it determines
how vectors are computed; otherwise use these flags:

    Contriever   --pooling=mean --notitle_separator --notoken_types
    E5           --query_prefix='query: ' --block_prefix='passage: '
    DPR          --input=QUESTION_ENCODER --block_input=CONTEXT_ENCODER \\
                 --pooling=cls --parts=retriever --notoken_types

An E5 or BGE directory with modules.json needs only the prefixes. Without
modules.json, it also needs `--pooling=mean --normalize --notitle_separator
--notoken_types` (BGE: --pooling=cls). ModernBERT needs the extra `tokenizers`.

Taggers of named entities are not imported: build_corpus
--tagger=bert:DIRECTORY reads their directories.

A model that Google fine-tuned for open QA needs the vocabulary and the block
tower of the module that it was trained from. With --corpus_dir, the released
blocks become a corpus in that directory, and their vectors become snapshot 0 of
the MODEL_DIR, so nothing has to be embedded again:

    python -m realm_jax.import_weights --from=tf_realm \\
      --input=orqa_nq_model_from_realm --output_dir=runs/realm_nq \\
      --block_input=cc_news_pretrained/embedder \\
      --corpus_dir=corpus --block_records=enwiki-20181220/blocks.tfr \\
      --block_titles=enwiki-20181220/titles.tfr

Instead of optional flags, a gin file may bind the fields of
`registry.ImportConfig` with the same names. Flags take precedence.
"""

import dataclasses
from collections.abc import Sequence

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.weights.registry import FORMATS, ImportConfig, locate

_FROM = flags.DEFINE_enum(
  "from",
  None,
  list(FORMATS),
  "Format of the input.\n"
  + "\n".join(f"{name}: {meaning}." for name, (meaning, _) in FORMATS.items()),
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "MODEL_DIR to make.", required=True
)
_FIELDS = tuple(
  field.name
  for field in dataclasses.fields(ImportConfig)
  if field.name != "format"
)
command_line.define_flags_of(ImportConfig, *_FIELDS)


def main(argv: Sequence[str]) -> None:
  """Imports weights, and prints a report."""
  del argv
  options = command_line.given_flags(*_FIELDS)
  config = command_line.configured(
    ImportConfig, format=_FROM.value, **options
  )()
  locate(config.input, config.revision)
  if config.block_input is not None:
    locate(config.block_input, config.block_revision)
  # Imported after the inputs are located, because it is slow.
  from realm_jax.weights import importing

  report = importing.import_weights(config, _OUTPUT_DIR.value)
  print(report)
  print(f"model: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  command_line.run(main)
