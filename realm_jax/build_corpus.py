"""Builds a corpus directory from titles and texts.

    python -m realm_jax.build_corpus --input='text/*.jsonl' \\
      --output_dir=corpus --vocab=vocab.txt

Each line is `{"title": …, "text": …}`, with optional `id`, `url`, `language`
and `links`. The title is optional, and files may be compressed (.gz, .bz2, .xz,
.zst). The corpus appears complete or not at all, and a summary reports
everything that was cut or skipped. Other inputs (see docs/training.md):

    --input=psgs_w100.tsv.gz      TSV, as of DPR and MS MARCO
    --input='wiki/*.parquet'      parquet
    --input=wiki/train            a data set that `datasets` has saved
    --input=notes                 a folder of texts (.txt, .md, .html)
    --input=tfds:salient_span_wikipedia/documents     each row is a block
    --input=tfds:wikipedia/20230601.en:train          articles
    --input=seqio:MODULE:TASK[:SPLIT]
    --input=hotpot_train_v1.1.json    the paragraphs of HotpotQA's questions

`--workers=16` uses 16 processes on this machine. `--runner=DirectRunner`, or
DataflowRunner, FlinkRunner or SparkRunner with `--pipeline_options`, uses
Apache Beam. The corpus is the same, byte for byte.

    python -m realm_jax.build_corpus --update --input=changes.jsonl \\
      --output_dir=corpus

makes a new version of the corpus in its directory: a line with an existing id
replaces that document, a line with a new id adds a document, and
`{"id": …, "remove": true}` removes one. Unchanged documents cost nothing, and
processes can continue to read the previous version. Vocabulary, block length,
language and dropped titles stay; pass the build's other flags again.

    python -m realm_jax.build_corpus --update --view=t5:spiece.model \\
      --output_dir=corpus

also stores the texts of a corpus in another vocabulary, for a reader such as
T5, now and in later updates. A build accepts the same flag.

A gin file may bind the arguments of `build.build_corpus` and
`update.update_corpus` in `realm_jax.corpus`; flags take precedence.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.corpus import CorpusError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.summary import UpdateSummary
from realm_jax.corpus.update import add_views, update_corpus

_INPUTS = flags.DEFINE_multi_string(
  "input",
  None,
  "File or quoted pattern of JSON Lines, TSV, parquet or texts, a folder of "
  "texts or of a saved data set, tfds:NAME/CONFIG[:SPLIT], or "
  "seqio:MODULE:TASK[:SPLIT]; repeatable.",
)
_UPDATE = flags.DEFINE_bool(
  "update",
  False,
  "Update the corpus at --output_dir by document ids, or add a --view to it.",
)
_OF_BUILDS = (
  "output_dir vocab block_length language cased tagger fields drop_titles "
  "links link_table unescape_html skip_bad_lines overwrite name "
  "remove_duplicates view workers runner pipeline_options"
).split()
command_line.define_flags_of(build_corpus, *_OF_BUILDS)


def main(argv: Sequence[str]) -> None:
  """Builds or updates the corpus and prints a summary."""
  del argv
  arguments = command_line.given_flags(*_OF_BUILDS)
  adds_views = _UPDATE.value and "view" in arguments and not _INPUTS.value
  if not (_INPUTS.value or adds_views):
    raise CorpusError("--input is missing; give files or folders of text")
  function: Callable[..., Any] = build_corpus
  if _UPDATE.value:
    function = add_views if adds_views else update_corpus
  for name in arguments.keys() - inspect.signature(function).parameters.keys():
    without = "--input" if name == "view" else "--update"
    raise CorpusError(
      f"--{name} is for a whole build; give it without {without}"
    )
  if adds_views:
    add_views(**arguments)
    print(
      f"corpus: {arguments['output_dir']}, with {', '.join(arguments['view'])}"
    )
    return
  arguments["inputs"] = _INPUTS.value
  summary: Any
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    summary = command_line.configured(function, **arguments)()
  else:
    summary = function(**arguments)
  print(summary.table())
  version = ""
  if isinstance(summary, UpdateSummary):
    still = "" if summary.changes_something else "unchanged: still "
    version = f", {still}version {summary.version}"
  else:
    for warning in summary.warnings():
      print(f"warning: {warning}")
  print(f"corpus: {arguments['output_dir']}{version}")


if __name__ == "__main__":
  command_line.run(main)
