"""Builds a corpus directory from JSON Lines of titles and texts.

    python -m realm_jax.build_corpus --input='text/*.jsonl' \\
      --output_dir=corpus --vocab=vocab.txt

Each line is `{"title": …, "text": …}`, with optional `id` and `url`. The
corpus appears complete or not at all; a summary counts what was cut or skipped.

A gin file may bind the arguments of `corpus.build.build_corpus` in place of the
optional flags; what the command line says goes first.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.corpus import build
from realm_jax.text import salient_spans

_INPUT = flags.DEFINE_multi_string(
  "input",
  None,
  "A JSON Lines file or a quoted pattern of such; repeatable.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "The corpus directory to make.", required=True
)
_VOCAB = flags.DEFINE_string(
  "vocab",
  None,
  "A BERT vocabulary file, or train:SIZE to learn one of at most SIZE pieces "
  "from the input.",
  required=True,
)
_BLOCK_LENGTH = flags.DEFINE_integer(
  "block_length", 288, "The most wordpieces of [CLS] title [SEP] body [SEP]."
)
_TAGGER = flags.DEFINE_string(
  "tagger",
  "rules",
  "What finds salient spans: rules, none, or module.name of a callable "
  "(text, title) -> [(start byte, limit byte, kind)].",
)
_DROP_TITLES = flags.DEFINE_multi_string(
  "drop_title",
  list(build.DROPPED_TITLES),
  "Leave out documents whose title contains this; repeatable, and '' keeps "
  "all.",
)
_UNESCAPE_HTML = flags.DEFINE_bool(
  "unescape_html", True, "Read &amp; as & in titles and texts."
)
_SKIP_BAD_LINES = flags.DEFINE_bool(
  "skip_bad_lines", False, "Count malformed lines and go on, not stop."
)
_OVERWRITE = flags.DEFINE_bool(
  "overwrite", False, "Replace the corpus that is at --output_dir."
)
_BLOCKS_PER_SHARD = flags.DEFINE_integer(
  "blocks_per_shard", 200_000, "A shard ends at about this many blocks."
)
_CORPUS_VERSION = flags.DEFINE_integer(
  "corpus_version", 1, "The version to write; an update takes the next."
)


def _given_arguments() -> dict[str, Any]:
  """What the command line says, which goes before what gin files say."""
  arguments: dict[str, flags.FlagHolder[Any]] = {
    "inputs": _INPUT,
    "output_dir": _OUTPUT_DIR,
    "vocab": _VOCAB,
    "block_length": _BLOCK_LENGTH,
    "tagger": _TAGGER,
    "drop_titles": _DROP_TITLES,
    "unescape_html": _UNESCAPE_HTML,
    "skip_bad_lines": _SKIP_BAD_LINES,
    "overwrite": _OVERWRITE,
    "blocks_per_shard": _BLOCKS_PER_SHARD,
    "version": _CORPUS_VERSION,
  }
  given: dict[str, Any] = {
    name: flag.value for name, flag in arguments.items() if flag.present
  }
  if "tagger" in given:
    given["tagger"] = salient_spans.find_tagger(given["tagger"])
  if "drop_titles" in given:
    given["drop_titles"] = [title for title in given["drop_titles"] if title]
  return given


def main(argv: Sequence[str]) -> None:
  """Builds the corpus and prints what happened."""
  del argv
  configuration.show_our_lines()
  given = _given_arguments()
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    summary = configuration.call(build.build_corpus, **given)
  else:
    summary = build.build_corpus(**given)
  print(summary.table())
  print(f"corpus: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  configuration.run(main)
