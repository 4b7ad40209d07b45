"""Builds a corpus directory from titles and texts.

    python -m realm_jax.build_corpus --input='text/*.jsonl' \\
      --output_dir=corpus --vocab=vocab.txt

Each line is `{"title": …, "text": …}`, with optional `id`, `url` and
`language`; files may be compressed (.gz, .zst). The corpus appears complete or
not at all, and a summary counts what was cut or skipped. Other inputs are data
sets of TFDS and the sources of seqio tasks:

    --input=tfds:salient_span_wikipedia/documents     each row is a block
    --input=tfds:wikipedia/20230601.en:train          articles
    --input=seqio:MODULE:TASK[:SPLIT]

`--workers=16` uses 16 processes of this machine, and `--runner=DirectRunner`,
or DataflowRunner, FlinkRunner or SparkRunner with `--pipeline_options`, Apache
Beam. The corpus is the same, byte for byte.

    python -m realm_jax.build_corpus --update --input=changes.jsonl \\
      --output_dir=corpus

makes a new version of the corpus in its directory: a line with an id that the
corpus has replaces that document, one with a new id adds a document, and
`{"id": …, "remove": true}` removes one. Unchanged documents cost nothing, and
readers of the version before continue to read it. Vocabulary, block length,
language and dropped titles are those of the corpus; give the other flags of the
build.

A gin file may bind the arguments of `build.build_corpus` and
`update.update_corpus` of `realm_jax.corpus`; flags take precedence.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.corpus import CorpusError

if TYPE_CHECKING:
  from realm_jax.corpus.summary import BuildSummary

_INPUT = flags.DEFINE_multi_string(
  "input",
  None,
  "JSON Lines file or quoted pattern, tfds:NAME/CONFIG[:SPLIT], or "
  "seqio:MODULE:TASK[:SPLIT]; repeatable.",
  required=True,
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir",
  None,
  "Corpus directory to make, or to update.",
  required=True,
)
_UPDATE = flags.DEFINE_bool(
  "update", False, "Update the corpus at --output_dir by document ids."
)
_VOCAB = flags.DEFINE_string(
  "vocab",
  None,
  "BERT vocabulary file, or train:SIZE to learn at most SIZE pieces from the "
  "input; an update keeps the corpus's.",
)
_BLOCK_LENGTH = flags.DEFINE_integer(
  "block_length",
  288,
  "Largest number of wordpieces of [CLS] title [SEP] body [SEP].",
)
_LANGUAGE = flags.DEFINE_string(
  "language",
  "en",
  "ISO 639-1 code of the text's language, which decides where sentences end. A "
  "line of JSON may have its own in a field `language`. An update keeps it.",
)
_CASED = flags.DEFINE_bool(
  "cased",
  None,
  "Whether a vocabulary that is trained keeps capitals and accents; by default "
  "if the script of the language has no capitals.",
)
_TAGGER = flags.DEFINE_string(
  "tagger",
  None,
  "Tagger of salient spans: rules, recurring, none, bert:DIRECTORY of a "
  "BertForTokenClassification in Hugging Face's format, or module.name of a "
  "callable (text, title) -> [(start byte, limit byte, kind)]. "
  "By default rules in English, and else recurring. "
  "Documents that come with spans keep theirs.",
)
_DROP_TITLES = flags.DEFINE_multi_string(
  "drop_titles",
  None,
  "Text in the titles of documents to leave out; repeatable. 'wikipedia' is "
  "for its lists and disambiguation pages (List of, Index of, Outline of, "
  "(disambiguation)), as in REALM. By default none; with --update, those of "
  "the build, and '' is none.",
)
_UNESCAPE_HTML = flags.DEFINE_bool(
  "unescape_html", True, "Read &amp; as & in titles and texts."
)
_SKIP_BAD_LINES = flags.DEFINE_bool(
  "skip_bad_lines", False, "Count malformed lines instead of stopping."
)
_OVERWRITE = flags.DEFINE_bool(
  "overwrite", False, "Replace the corpus that is at --output_dir."
)
_NAME = flags.DEFINE_string(
  "name",
  None,
  "Name of the corpus, part of its block ids, by default the directory's; two "
  "corpora that a run reads need two names. An update keeps it.",
)
_REMOVE_DUPLICATES = flags.DEFINE_bool(
  "remove_duplicates",
  False,
  "Leave out blocks that have the title and body of an earlier one.",
)
_WORKERS = flags.DEFINE_integer(
  "workers",
  1,
  "Processes on this machine, at most one for each core; the corpus is the "
  "same for any number.",
)
_RUNNER = flags.DEFINE_string(
  "runner",
  None,
  "Apache Beam runner, such as DirectRunner or DataflowRunner, instead of "
  "processes on this machine; the corpus is the same.",
)
_PIPELINE_OPTIONS = flags.DEFINE_multi_string(
  "pipeline_options",
  [],
  "Option of the Beam runner, such as --project=…; repeatable.",
)
_KEEP_VERSIONS = flags.DEFINE_integer(
  "keep_versions",
  None,
  "With --update: number of the newest versions to keep; by default all. Runs "
  "need the version that they began with.",
  lower_bound=1,
)

_FLAGS: Sequence[flags.FlagHolder[Any]] = (
  *(_INPUT, _OUTPUT_DIR, _VOCAB, _BLOCK_LENGTH, _LANGUAGE, _CASED, _TAGGER),
  *(_DROP_TITLES, _UNESCAPE_HTML, _SKIP_BAD_LINES, _OVERWRITE),
  *(_NAME, _REMOVE_DUPLICATES, _WORKERS, _KEEP_VERSIONS),
)
# Flags of a whole build alone.
_OF_BUILDS: Sequence[flags.FlagHolder[Any]] = (
  *(_VOCAB, _BLOCK_LENGTH, _LANGUAGE, _CASED, _OVERWRITE, _NAME),
  *(_REMOVE_DUPLICATES, _WORKERS, _RUNNER, _PIPELINE_OPTIONS),
)


def _given_arguments() -> dict[str, Any]:
  """Returns the arguments that flags give."""
  for flag in _OF_BUILDS:
    if flag.present and _UPDATE.value:
      raise CorpusError(
        f"--{flag.name} is for a whole build; give it or --update"
      )
  if _KEEP_VERSIONS.present and not _UPDATE.value:
    raise CorpusError(
      f"--{_KEEP_VERSIONS.name} is for an update; give --update, too"
    )
  given = {flag.name: flag.value for flag in _FLAGS if flag.present}
  given["inputs"] = given.pop(_INPUT.name)
  if _RUNNER.value:
    given["beam_options"] = _beam_options(_RUNNER.value)
  elif _PIPELINE_OPTIONS.value:
    raise CorpusError("--pipeline_options are for Beam; give --runner, too")
  return given


def _beam_options(runner: str) -> list[str]:
  if _WORKERS.present:
    raise CorpusError(
      "--workers is for processes on this machine, and --runner for Beam, "
      "which takes their number from --pipeline_options; give one of them"
    )
  if importlib.util.find_spec("apache_beam") is None:
    raise CorpusError(
      "--runner needs Apache Beam, which `make env` and the extra `beam` "
      "install; install it, or give --workers"
    )
  return [f"--runner={runner}", *_PIPELINE_OPTIONS.value]


def main(argv: Sequence[str]) -> None:
  """Builds or updates the corpus and prints a summary."""
  del argv
  given = _given_arguments()
  from realm_jax.corpus import build, update
  from realm_jax.corpus.summary import UpdateSummary

  function: Callable[..., BuildSummary | UpdateSummary]
  function = update.update_corpus if _UPDATE.value else build.build_corpus
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    summary = command_line.call(function, **given)
  elif _UPDATE.value or "vocab" in given:
    summary = function(**given)
  else:
    raise CorpusError(
      "--vocab is missing; give a BERT vocabulary file, or --vocab=train:SIZE"
    )
  print(summary.table())
  if not isinstance(summary, UpdateSummary):
    for warning in summary.warnings():
      print(f"warning: {warning}")
  version = ""
  if isinstance(summary, UpdateSummary):
    still = "" if summary.changes_something else "unchanged: still "
    version = f", {still}version {summary.version}"
  print(f"corpus: {_OUTPUT_DIR.value}{version}")


if __name__ == "__main__":
  command_line.run(main)
