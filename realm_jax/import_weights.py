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
(model.safetensors, whole or in shards) and vocab.txt or tokenizer.json: BERT,
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
`bert_models.TowerOptions`, `released_index.BlockOptions` and
`mapping.Allowance` in place of the optional flags of the same names. Flags
override it.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TypeVar

from absl import flags

from realm_jax import configuration
from realm_jax.configuration import command_line
from realm_jax.conversion.planning import KINDS, PARTS, ImportSource
from realm_jax.models.retriever import POOLINGS

_T = TypeVar("_T")

_FROM = flags.DEFINE_enum(
  "from", None, KINDS, "Format of the input.", required=True
)
flags.DEFINE_string(
  "input",
  None,
  "Local directory to read, or the prefix of a TensorFlow checkpoint.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "MODEL_DIR to make.", required=True
)
for _name, _help in {
  "block_input": "Second input, for a separate block tower.",
  "query_prefix": "Text that the model expects before a query.",
  "block_prefix": "Text that the model expects before a block.",
  "tensor_prefix": "Prefix of `embeddings.word_embeddings.weight`, if the "
  "input holds several encoders.",
  "vocab": "Vocabulary file, if a tf_realm input has none.",
  "corpus_dir": "Corpus to make of the blocks that were released with the "
  "weights.",
  "block_records": "Texts of these blocks: block_records.npy, or TFRecords "
  "(blocks.tfr); by default the input's own.",
  "block_titles": "TFRecords of their titles (titles.tfr).",
}.items():
  flags.DEFINE_string(_name, None, _help)
for _name, _help in {
  "normalize": "Whether vectors have length 1.",
  "title_separator": "Whether [SEP] separates title and body; by default yes, "
  "as in REALM, except for sentence-transformers.",
  "token_types": "Whether tokens after the first [SEP] are of type 1; by "
  "default yes, as in REALM, except for sentence-transformers.",
}.items():
  flags.DEFINE_bool(_name, None, _help)
for _name, _help in {
  "allow_left": "Regular expression for whole names of tensors that may stay "
  "unused; repeatable.",
  "allow_fresh": "Regular expression for whole paths of parameters that may "
  "start from random values; repeatable.",
}.items():
  flags.DEFINE_multi_string(_name, [], _help)
flags.DEFINE_list(
  "parts",
  None,
  f"Parts to import: {', '.join(PARTS)}; by default what the input has.",
)
flags.DEFINE_enum(
  "pooling",
  None,
  POOLINGS,
  "How hidden states become a vector; without modules.json, the pooler if the "
  "weights have one, or else cls.",
)
flags.DEFINE_integer(
  "projection_size", None, "Size of a randomly initialized projection to add."
)
flags.DEFINE_float(
  "score_scale",
  None,
  "Factor of inner products, by default 1; training normalized vectors needs "
  "more.",
)
flags.DEFINE_bool(
  "separate_towers", False, "Start two towers from the same weights."
)
flags.DEFINE_integer(
  "block_length", None, "Maximum wordpieces of a block; by default all fit."
)
flags.DEFINE_enum(
  "index", None, ("exact", "scann"), "Index of the vectors; by default scann."
)
_SEED = flags.DEFINE_integer(
  "seed",
  0,
  "Seed of parameters that start from random values.",
  lower_bound=0,
)


def _options(target: Callable[..., _T], prefix: str = "", **more: str) -> _T:
  """Makes a dataclass of the flags that have the names of its fields."""
  names = set(inspect.signature(target).parameters) - more.keys()
  given = {name: flags.FLAGS[prefix + name] for name in names}
  values = {name: flag.value for name, flag in given.items() if flag.present}
  return configuration.configured(target)(**values, **more)


def main(argv: Sequence[str]) -> None:
  """Imports weights, and prints what happened."""
  del argv
  with configuration.parsed(None, *command_line.given()):
    source = _options(ImportSource, kind=_FROM.value)
    source.require_local()
    # After the input was found: these import what reads weights.
    from realm_jax.conversion import importing
    from realm_jax.conversion.bert_models import TowerOptions
    from realm_jax.conversion.google.released_index import BlockOptions
    from realm_jax.conversion.mapping import Allowance

    report = importing.import_weights(
      source,
      _OUTPUT_DIR.value,
      towers=_options(TowerOptions),
      blocks=_options(BlockOptions),
      allowance=_options(Allowance, prefix="allow_"),
      seed=_SEED.value,
    )
  print(report)
  print(f"model: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  command_line.run(main)
