"""Builds a corpus directory from JSON Lines of titles and texts.

    python -m realm_jax.build_corpus --input='text/*.jsonl' \\
      --output_dir=corpus --vocab=vocab.txt

Each line is `{"title": …, "text": …}`, with optional `id` and `url`. The
corpus appears complete or not at all; a summary counts what was cut or skipped.

    python -m realm_jax.build_corpus --update --input=changes.jsonl \\
      --output_dir=corpus

makes a new version of the corpus in its directory: a line with an id that it
has replaces that document, one with a new id adds a document, and
`{"id": …, "remove": true}` removes one. Documents that are given as they were
cost nothing, and whoever has the version before open goes on reading it. Give
the flags of the build; vocabulary and block length are the corpus's.

A gin file may bind the arguments of `corpus.build.build_corpus` (or of
`corpus.update.update_corpus`) in place of the optional flags; what the command
line says goes first.
"""

from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.corpus.build import corpus as build
from realm_jax.corpus.build import update
from realm_jax.corpus.build.summary import BuildSummary, UpdateSummary
from realm_jax.corpus.errors import CorpusError
from realm_jax.text import salient_spans

_INPUT = flags.DEFINE_multi_string(
  "input",
  None,
  "A JSON Lines file or a quoted pattern of such; repeatable.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir",
  None,
  "The corpus directory to make, or to update.",
  required=True,
)
_UPDATE = flags.DEFINE_bool(
  "update", False, "Change the corpus at --output_dir by document ids."
)
_VOCAB = flags.DEFINE_string(
  "vocab",
  None,
  "A BERT vocabulary file, or train:SIZE to learn one of at most SIZE pieces "
  "from the input; an update needs none.",
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
_KEEP_VERSIONS = flags.DEFINE_integer(
  "keep_versions",
  None,
  "With --update: how many of the newest versions stay in the directory; all "
  "where it is not given. Runs need the version that they began with.",
)

# Argument: flag, of both functions and of one of them.
_SHARED: dict[str, flags.FlagHolder[Any]] = {
  "inputs": _INPUT,
  "output_dir": _OUTPUT_DIR,
  "vocab": _VOCAB,
  "block_length": _BLOCK_LENGTH,
  "tagger": _TAGGER,
  "drop_titles": _DROP_TITLES,
  "unescape_html": _UNESCAPE_HTML,
  "skip_bad_lines": _SKIP_BAD_LINES,
  "blocks_per_shard": _BLOCKS_PER_SHARD,
}
_OF_BUILD: dict[str, flags.FlagHolder[Any]] = {
  "overwrite": _OVERWRITE,
  "version": _CORPUS_VERSION,
}
_OF_UPDATE: dict[str, flags.FlagHolder[Any]] = {
  "keep_versions": _KEEP_VERSIONS,
}


def _given_arguments(*, is_update: bool) -> dict[str, Any]:
  """What the command line says, which goes before what gin files say."""
  own, others = (
    (_OF_UPDATE, _OF_BUILD) if is_update else (_OF_BUILD, _OF_UPDATE)
  )
  for flag in others.values():
    if flag.present:
      raise CorpusError(
        f"--{flag.name} is for a whole build; give it or --update"
        if is_update
        else f"--{flag.name} is for an update; give --update, too"
      )
  given: dict[str, Any] = {
    name: flag.value
    for name, flag in {**_SHARED, **own}.items()
    if flag.present
  }
  if "tagger" in given:
    given["tagger"] = salient_spans.find_tagger(given["tagger"])
  if "drop_titles" in given:
    given["drop_titles"] = [title for title in given["drop_titles"] if title]
  return given


def main(argv: Sequence[str]) -> None:
  """Builds or updates the corpus and prints what happened."""
  del argv
  is_update = _UPDATE.value
  given = _given_arguments(is_update=is_update)
  function: Callable[..., Any]
  function = update.update_corpus if is_update else build.build_corpus
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    summary = configuration.call(function, **given)
  elif is_update or "vocab" in given:
    summary = function(**given)
  else:
    raise CorpusError(
      "--vocab is missing; give a BERT vocabulary file, or --vocab=train:SIZE"
    )
  print(summary.table())
  print(f"corpus: {_OUTPUT_DIR.value}{_of_version(summary)}")


def _of_version(summary: BuildSummary | UpdateSummary) -> str:
  if isinstance(summary, BuildSummary):
    return ""
  if not summary.changes_something:
    return f", where nothing changes: it stays at version {summary.version}"
  return f", version {summary.version}"


if __name__ == "__main__":
  configuration.run(main)
