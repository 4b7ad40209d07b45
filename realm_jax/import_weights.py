"""Starts a MODEL_DIR from weights of another system.

    python -m realm_jax.import_weights --from=hf_bert \\
      --input=all-MiniLM-L6-v2 --output_dir=runs/minilm

writes checkpoint 0, the vocabulary (`vocab.txt`, for `build_corpus --vocab`)
and the model's gin file (`model.gin`, to give as --gin_file in place of
gin/models/bert_base.gin), and prints which parameter came from which tensor,
which tensors were left unused, and which parameters start from random values.
A tensor without a place, a parameter without a tensor and a shape that does
not fit are errors, unless --allow_left and --allow_fresh name them.

The MODEL_DIR goes to build_index and evaluate as it is, and to train as
INITIAL_CHECKPOINT or INITIAL_READER.

--from=hf_bert: a directory with BERT's config.json, its weights
(model.safetensors, whole or in shards) and vocab.txt or tokenizer.json: BERT,
MiniLM, Contriever, E5, BGE and the like. Where it has the modules.json of
sentence-transformers, vectors are made as that says; otherwise flags choose:

    Contriever   --pooling=mean --notitle_separator --notoken_types
    E5           --query_prefix='query: ' --block_prefix='passage: '
    DPR          --input=QUESTION_ENCODER --block_input=CONTEXT_ENCODER \\
                 --pooling=cls --parts=retriever --notoken_types

An E5 or BGE directory with modules.json needs no more than the prefixes; a
plain one also needs `--pooling=mean --normalize --notitle_separator
--notoken_types` (BGE: --pooling=cls).

--from=hf_realm: a directory of transformers' REALM; config.json names its
class. RealmEmbedder and RealmScorer give a retriever, RealmKnowledgeAugEncoder
and RealmReader a reader, RealmForOpenQA both, with the blocks' vectors (and
their texts, where block_records.npy lies beside them).

--from=tf_bert: a directory with Google's bert_config.json, bert_model.ckpt.*
and vocab.txt, or a checkpoint's prefix in one.

--from=tf_realm: what Google released of REALM and ORQA: a TF-Hub module
(`embedder`, `bert`, `ict`), a directory of such (`cc_news_pretrained`), or a
fine-tuned model (`orqa_nq_model_from_realm`; its vocabulary and its block tower
are the module's that it was trained from):

    python -m realm_jax.import_weights --from=tf_realm \\
      --input=orqa_nq_model_from_realm --output_dir=runs/realm_nq \\
      --block_input=cc_news_pretrained/embedder \\
      --corpus_dir=corpus --block_records=enwiki-20181220/blocks.tfr \\
      --block_titles=enwiki-20181220/titles.tfr

With --corpus_dir the released blocks become a corpus there, and their vectors
generation 0 of the MODEL_DIR, so that nothing is embedded again.

A gin file may bind the arguments of `conversion.importing.import_weights` in
place of the optional flags; what the command line says goes first.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.conversion import importing, planning
from realm_jax.conversion.plan import PARTS
from realm_jax.models.retriever import POOLINGS

_FROM = flags.DEFINE_enum(
  "from", None, planning.KINDS, "What the input is.", required=True
)
_INPUT = flags.DEFINE_string(
  "input",
  None,
  "The directory to read (or a TensorFlow checkpoint's prefix), on this "
  "machine.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "The MODEL_DIR to make.", required=True
)
_BLOCK_INPUT = flags.DEFINE_string(
  "block_input", None, "A second directory, for a block tower of its own."
)
_PARTS = flags.DEFINE_list(
  "parts",
  None,
  f"Which of {', '.join(PARTS)} to import; without it, what the input has.",
)
_POOLING = flags.DEFINE_enum(
  "pooling",
  None,
  POOLINGS,
  "How hidden states become a vector; without modules.json, the pooler if the "
  "weights have one, or else cls.",
)
_PROJECTION_SIZE = flags.DEFINE_integer(
  "projection_size", None, "Adds a projection, which starts afresh."
)
_NORMALIZE = flags.DEFINE_bool(
  "normalize", None, "Whether vectors have length 1."
)
_SCORE_SCALE = flags.DEFINE_float(
  "score_scale",
  1.0,
  "Multiplies inner products; training normalised vectors needs more than 1.",
)
_QUERY_PREFIX = flags.DEFINE_string(
  "query_prefix", None, "Text that the model wants before a query."
)
_BLOCK_PREFIX = flags.DEFINE_string(
  "block_prefix", None, "Text that the model wants before a block."
)
_TITLE_SEPARATOR = flags.DEFINE_bool(
  "title_separator",
  None,
  "Whether a [SEP] stands between title and body: yes, as in REALM, but for "
  "sentence-transformers.",
)
_TOKEN_TYPES = flags.DEFINE_bool(
  "token_types",
  None,
  "Whether tokens after the first [SEP] are of type 1: yes, as in REALM, but "
  "for sentence-transformers.",
)
_SEPARATE_TOWERS = flags.DEFINE_bool(
  "separate_towers", False, "Start two towers from the same weights."
)
_TENSOR_PREFIX = flags.DEFINE_string(
  "tensor_prefix",
  None,
  "What precedes `embeddings.word_embeddings.weight`, where the input holds "
  "several encoders.",
)
_VOCAB = flags.DEFINE_string(
  "vocab", None, "The vocabulary file, where a tf_realm input has none."
)
_CORPUS_DIR = flags.DEFINE_string(
  "corpus_dir",
  None,
  "The corpus to make of the blocks that were released with the weights.",
)
_BLOCK_RECORDS = flags.DEFINE_string(
  "block_records",
  None,
  "The texts of these blocks: block_records.npy, or TFRecords (blocks.tfr); "
  "by default the input's own.",
)
_BLOCK_TITLES = flags.DEFINE_string(
  "block_titles", None, "TFRecords of their titles (titles.tfr)."
)
_BLOCK_LENGTH = flags.DEFINE_integer(
  "block_length", None, "The most wordpieces of a block; by default all fit."
)
_INDEX = flags.DEFINE_enum(
  "index",
  None,
  ("exact", "scann"),
  "What searches their vectors; by default scann.",
)
_ALLOW_LEFT = flags.DEFINE_multi_string(
  "allow_left",
  [],
  "A regular expression for whole names of tensors that may stay unused; "
  "repeatable.",
)
_ALLOW_FRESH = flags.DEFINE_multi_string(
  "allow_fresh",
  [],
  "A regular expression for whole paths of parameters that may start from "
  "random values; repeatable.",
)
_SEED = flags.DEFINE_integer("seed", 0, "Of what starts afresh.")


def _given_arguments() -> dict[str, Any]:
  """What the command line says, which goes before what gin files say."""
  arguments: dict[str, flags.FlagHolder[Any]] = {
    "kind": _FROM,
    "input_dir": _INPUT,
    "output_dir": _OUTPUT_DIR,
    "block_input": _BLOCK_INPUT,
    "parts": _PARTS,
    "pooling": _POOLING,
    "projection_size": _PROJECTION_SIZE,
    "normalize": _NORMALIZE,
    "score_scale": _SCORE_SCALE,
    "query_prefix": _QUERY_PREFIX,
    "block_prefix": _BLOCK_PREFIX,
    "title_separator": _TITLE_SEPARATOR,
    "token_types": _TOKEN_TYPES,
    "separate_towers": _SEPARATE_TOWERS,
    "tensor_prefix": _TENSOR_PREFIX,
    "vocab": _VOCAB,
    "corpus_dir": _CORPUS_DIR,
    "block_records": _BLOCK_RECORDS,
    "block_titles": _BLOCK_TITLES,
    "block_length": _BLOCK_LENGTH,
    "index": _INDEX,
    "allow_left": _ALLOW_LEFT,
    "allow_fresh": _ALLOW_FRESH,
    "seed": _SEED,
  }
  return {name: flag.value for name, flag in arguments.items() if flag.present}


def main(argv: Sequence[str]) -> None:
  """Imports, and prints what happened."""
  del argv
  given = _given_arguments()
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    report = configuration.call(importing.import_weights, **given)
  else:
    report = importing.import_weights(**given)
  print(report)
  print(f"model: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  configuration.run(main)
