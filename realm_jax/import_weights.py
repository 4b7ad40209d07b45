"""Starts a MODEL_DIR from weights of another system.

    python -m realm_jax.import_weights --from=hf_bert \\
      --input=all-MiniLM-L6-v2 --output_dir=runs/minilm

writes checkpoint 0, the vocabulary (`vocab.txt`, for `build_corpus --vocab`)
and the model's gin file (`model.gin`, to give as --gin_file in place of
gin/models/bert_base.gin), and prints which parameter came from which tensor,
which tensors were left unused, and which parameters start from random values.
A tensor without a parameter, a parameter without a tensor and a shape that
does not fit are errors, unless --allow_left and --allow_fresh name them.

build_index and evaluate take the MODEL_DIR as it is, and train as
INITIAL_CHECKPOINT or INITIAL_READER.

--from=hf_bert: a directory with BERT's config.json, its weights
(model.safetensors or pytorch_model.bin) and vocab.txt or tokenizer.json: BERT,
MiniLM, Contriever, E5, BGE and the like. Where it has the modules.json of
sentence-transformers, vectors are made as it says; otherwise flags choose:

    Contriever   --pooling=mean --notitle_separator --notoken_types
    E5           --query_prefix='query: ' --block_prefix='passage: '
    DPR          --input=QUESTION_ENCODER --block_input=CONTEXT_ENCODER \\
                 --pooling=cls --parts=retriever --notoken_types

An E5 or BGE directory with modules.json needs no more than the prefixes; a
plain one also needs `--pooling=mean --normalize --notitle_separator
--notoken_types` (BGE: --pooling=cls).

A tagger of named entities is not imported: build_corpus --tagger=bert:DIRECTORY
reads its directory as it is.

--from=hf_realm: a directory of transformers' REALM; config.json names its
class. RealmEmbedder and RealmScorer give a retriever, RealmKnowledgeAugEncoder
and RealmReader a reader, RealmForOpenQA both, with the blocks' vectors (and
their texts, where block_records.npy lies beside them).

--from=tf_bert: a directory with Google's bert_config.json, bert_model.ckpt.*
and vocab.txt, or a checkpoint's prefix in one.

--from=tf_realm: what Google released of REALM and ORQA: a TF-Hub module
(`embedder`, `bert`, `ict`), a directory of modules (`cc_news_pretrained`), or a
fine-tuned model (`orqa_nq_model_from_realm`, which needs the vocabulary and the
block tower of the module that it was trained from):

    python -m realm_jax.import_weights --from=tf_realm \\
      --input=orqa_nq_model_from_realm --output_dir=runs/realm_nq \\
      --block_input=cc_news_pretrained/embedder \\
      --corpus_dir=corpus --block_records=enwiki-20181220/blocks.tfr \\
      --block_titles=enwiki-20181220/titles.tfr

With --corpus_dir the released blocks become a corpus there, and their vectors
generation 0 of the MODEL_DIR, so that nothing is embedded again.

A gin file may bind the fields of `planning.ImportSource`,
`options.TowerOptions`, `options.BlockOptions` and `mapping.Allowance` in place
of the optional flags of the same names. Flags override it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags

from realm_jax import configuration, settings
from realm_jax.configuration import command_line, names
from realm_jax.conversion.mapping import Allowance
from realm_jax.conversion.options import BlockOptions, TowerOptions
from realm_jax.conversion.planning import KINDS, ImportSource

_FROM = flags.DEFINE_enum(
  "from", None, KINDS, "Format of the input.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "MODEL_DIR to make.", required=True
)
_SEED = flags.DEFINE_integer(
  "seed",
  0,
  "Seed of parameters that start from random values.",
  lower_bound=0,
)
# Each field of these classes has a flag, whose name begins with a prefix.
_PREFIXES: dict[Any, str] = {
  ImportSource: "",
  TowerOptions: "",
  BlockOptions: "",
  Allowance: "allow_",
}


def _define(target: Any, field: dataclasses.Field[Any]) -> None:
  """Defines the flag of a field by its type; the docstring is its help."""
  name = _PREFIXES[target] + field.name
  text = f"{names.meaning(target, field.name)}."
  kind = settings.parameter_types(target)[field.name]
  if field.default == ():
    flags.DEFINE_multi_string(name, [], text)
  elif settings.accepts(kind, True):
    flags.DEFINE_bool(name, None, text)
  elif settings.accepts(kind, 1.5):
    flags.DEFINE_float(name, None, text)
  elif settings.accepts(kind, 1):
    flags.DEFINE_integer(name, None, text)
  elif settings.accepts(kind, [""]):
    flags.DEFINE_list(name, None, text)
  else:
    is_required = field.default is dataclasses.MISSING
    flags.DEFINE_string(name, None, text, required=is_required)


for _target in _PREFIXES:
  for _field in dataclasses.fields(_target):
    if _field.name != "kind":
      _define(_target, _field)


def _options(target: Any, **more: str) -> Any:
  """Makes a dataclass of the flags of its fields that are given."""
  values = {}
  for field in dataclasses.fields(target):
    name = _PREFIXES[target] + field.name
    if field.name not in more and flags.FLAGS[name].present:
      values[field.name] = flags.FLAGS[name].value
  return configuration.configured(target)(**values, **more)


def main(argv: Sequence[str]) -> None:
  """Imports weights, and prints what happened."""
  del argv
  with configuration.parsed(None, *command_line.given()):
    source = _options(ImportSource, kind=_FROM.value)
    source.require_local()
    # After the input was found: it imports what reads weights.
    from realm_jax.conversion import importing

    report = importing.import_weights(
      source,
      _OUTPUT_DIR.value,
      towers=_options(TowerOptions),
      blocks=_options(BlockOptions),
      allowance=_options(Allowance),
      seed=_SEED.value,
    )
  print(report)
  print(f"model: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  command_line.run(main)
