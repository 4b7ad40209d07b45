"""Statistics of builds and updates, so that nothing is dropped silently."""

import dataclasses
import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from realm_jax.console import columns
from realm_jax.text.languages import ENGLISH
from realm_jax.text.sentences import THAI, splits_thai

# Bounds beyond which a stage has too little to train on. With fewer than two
# sentences in a block, hardly any is left once one has become the query.
_MIN_SENTENCES, _MIN_SPANS, _MAX_UNKNOWN = 2, 0.5, 0.01
_MIN_SHARE_OF_SCRIPT = 0.01
# Maximum number of errors, and of titles without a document, to list.
MOST_LISTED = 10
# Languages, their names, and the packages that find words in them.
_SEGMENTERS = (("zh", "Chinese", "jieba"), (THAI, "Thai", "pythainlp"))


@dataclasses.dataclass
class BuildSummary:
  """Counts of one build; the manifest records its `vars`.

  Attributes:
    documents, blocks, tokens, sentences: Sizes of the corpus.
    unknown_tokens: Tokens that are [UNK].
    uncut_sentences: Sentences, before those longer than a block were cut.
    cut_sentences: Sentences that are longer than a block.
    cut_titles: Titles that are longer than half a block.
    long_words: Dropped words of over 1,000 characters.
    salient_spans: Detected spans, by kind.
    unaligned_spans: Dropped spans, which begin or end inside a token or cross
      the end of a sentence.
    spans_to_mask: Spans in the corpus, other than bare numbers.
    duplicate_blocks: Blocks that equal an earlier one.
    links: Links of blocks.
    links_to_unknown: Links to titles that no document has.
    unknown_titles: Examples of such titles.
    languages: Documents by language code.
    scripts: Documents without a language, by the script of most letters.
    tagger: Tagger of salient spans that was chosen by language, if any.
    skipped: Skipped lines and documents, by reason.
    first_errors: Messages of the first bad lines.
  """

  documents: int = 0
  blocks: int = 0
  tokens: int = 0
  unknown_tokens: int = 0
  sentences: int = 0
  uncut_sentences: int = 0
  cut_sentences: int = 0
  cut_titles: int = 0
  long_words: int = 0
  salient_spans: Counter[str] = dataclasses.field(default_factory=Counter)
  unaligned_spans: int = 0
  spans_to_mask: int = 0
  duplicate_blocks: int = 0
  links: int = 0
  links_to_unknown: int = 0
  unknown_titles: list[str] = dataclasses.field(default_factory=list)
  languages: Counter[str] = dataclasses.field(default_factory=Counter)
  scripts: Counter[str] = dataclasses.field(default_factory=Counter)
  tagger: str = ""
  skipped: Counter[str] = dataclasses.field(default_factory=Counter)
  first_errors: list[str] = dataclasses.field(default_factory=list)

  def merge(self, other: Mapping[str, Any]) -> None:
    """Adds the counts of a part of the build, the `vars` of its summary."""
    for name, value in vars(self).items():
      if isinstance(value, Counter):
        value.update(other[name])
      else:
        total = value + other[name]
        is_list = isinstance(total, list)
        setattr(self, name, total[:MOST_LISTED] if is_list else total)

  def add_links(self, number: int, unknown: Sequence[str]) -> None:
    """Adds links, with the titles for which there is no document."""
    self.links += number
    self.links_to_unknown += len(unknown)
    titles = dict.fromkeys([*self.unknown_titles, *unknown])
    self.unknown_titles = [*titles][:MOST_LISTED]

  def table(self) -> str:
    """Returns one line for each count and ratio, aligned."""
    ratios = ((name, f"{ratio:.3f}") for name, ratio in self._ratios.items())
    unknown = [f"no document is called {t!r}" for t in self.unknown_titles]
    return "\n".join(
      [columns([*_rows(vars(self)), *ratios]), *unknown, *self.first_errors]
    )

  @property
  def _ratios(self) -> dict[str, float]:
    return {
      "sentences per document": self.uncut_sentences / max(self.documents, 1),
      "spans to mask per block": self.spans_to_mask / max(self.blocks, 1),
      "share of [UNK]": self.unknown_tokens / max(self.tokens, 1),
      "links per block": self.links / max(self.blocks, 1),
    }

  def warnings(self) -> list[str]:
    """Returns warnings, with advice, about too little data for a stage."""
    sentences, spans, unknown, _ = self._ratios.values()
    scripts = {
      name: f"{count:,} in {name}"
      for name, count in self.scripts.most_common()
      if count >= _MIN_SHARE_OF_SCRIPT * self.scripts.total()
    }
    is_other = self.languages[ENGLISH] and scripts and "Latin" not in scripts
    checks = [
      (
        sentences < _MIN_SENTENCES,
        f"documents have {sentences:.1f} sentences, and inverse cloze needs "
        "two: give the --language of the text, or longer documents",
      ),
      (
        spans < _MIN_SPANS,
        f"blocks have {spans:.1f} salient spans other than numbers, too few to "
        "mask: give a --tagger for the language, or train on the task "
        "masked_random_spans",
      ),
      (
        unknown > _MAX_UNKNOWN,
        f"{unknown:.1%} of the tokens are [UNK], which nothing can be learned "
        "from: give a --vocab of the language, or train one "
        "(--vocab=train:SIZE), a larger one if it was trained",
      ),
      (
        self.languages[THAI] and not splits_thai(),
        "Thai sentences end at the first white space after 80 characters: "
        "`pip install realm_jax[thai]` splits them by PyThaiNLP",
      ),
      *(
        (
          self.tagger == "recurring"
          and self.languages[language]
          and importlib.util.find_spec(package) is None,
          f"salient spans in {name} may begin or end inside words: `pip "
          f"install realm_jax[{name.lower()}]` finds words by {package}",
        )
        for language, name, package in _SEGMENTERS
      ),
      (
        len(scripts) > 1 or is_other,
        "the documents are in several languages, or not in English "
        f"({', '.join(scripts.values())}): give the --language, and each line "
        'in another one a field "language"',
      ),
    ]
    return [text for is_wrong, text in checks if is_wrong]


@dataclasses.dataclass
class UpdateSummary:
  """Counts of one update.

  Attributes:
    version: Number of the newest version after the update.
    added, replaced, removed, unchanged: Documents in the input.
    blocks_removed: Blocks of documents that were replaced or removed.
    new: Counts of the documents that were added or replaced others.
  """

  version: int
  added: int = 0
  replaced: int = 0
  removed: int = 0
  unchanged: int = 0
  blocks_removed: int = 0
  new: BuildSummary = dataclasses.field(default_factory=BuildSummary)

  @property
  def changes_something(self) -> bool:
    """Whether blocks were added or removed."""
    return bool(self.new.blocks or self.blocks_removed)

  def table(self) -> str:
    """Returns one line for each count, aligned."""
    counts = columns([*_rows(vars(self))])
    return f"{counts}\nadded and replacing documents:\n{self.new.table()}"


def _rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  for name, value in counts.items():
    label = name.replace("_", " ")
    if isinstance(value, int):
      yield label, f"{value:,}"
    elif isinstance(value, str) and value:
      yield label, value
    elif isinstance(value, Counter):
      for kind, count in sorted(value.items()):
        yield f"{label}: {kind}", f"{count:,}"
