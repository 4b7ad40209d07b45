"""Links: which block has them, where they lead, and what an update changes."""

import gzip
import hashlib
import json

import numpy as np
import pytest

from realm_jax.corpus import CorpusError, InputError, manifest
from realm_jax.corpus.documents import RowReader
from realm_jax.corpus.shard import ARRAYS
from realm_jax.corpus.store import NULL_ROW, Corpus
from tests.corpus.conftest import ROWS

# Three blocks of at most 11 wordpieces.
TEXT = "Ada was in Velt. The river was by the cafe. Built by Ada Stone."


def row(name: str, text: str, links: list | None = None) -> dict:
  links = [] if links is None else links
  return {"id": name, "title": name, "text": text, "links": links}


def at(words: str, **fields) -> dict:
  start = TEXT.index(words)
  return {"start": start, "limit": start + len(words), **fields}


def followed(corpus: Corpus, rows: list[int] | None = None) -> list[list[str]]:
  """The ids of the blocks that blocks link to, with relations after a slash."""
  rows = [*range(corpus.num_blocks)] if rows is None else rows
  edges = corpus.edges(np.array(rows, np.int64))
  pairs = [
    corpus.block(target).id + (f"/{name}" if name else "")
    for target, name in zip(
      edges.targets.tolist(),
      [corpus.relations[number] for number in edges.relations],
      strict=True,
    )
  ]
  assert len(edges.offsets) == len(rows) + 1
  return [
    pairs[slice(*edges.offsets[i : i + 2].tolist())] for i in range(len(rows))
  ]


def linked_texts(corpus: Corpus) -> list[list[str]]:
  """The words of each block that are links; "" of one without a place."""
  found = []
  for number in range(corpus.num_blocks):
    block = corpus.block(number)
    offsets = block.shard.array("links_offsets")
    ranges = block.shard.array("link_ranges")
    own = ranges[slice(*offsets[block.position : block.position + 2])]
    body = block.text.encode()
    found.append([body[s:t].decode() if s >= 0 else "" for s, t in own])
  return found


def test_a_link_belongs_to_the_block_that_has_it(build):
  links = [
    at("Ada Stone", title="ada  stone", relation="built by"),
    at("river", title="River"),
    at("cafe. Built", title="Stone"),
    # At its first whole word, in which a longer word does not count.
    "by",
    {"title": "of", "relation": "part of"},
  ]
  others = [row(n, "Stone.") for n in ("Ada stone", "river", "stone", "By")]
  others.append(row("Of", "Velt.", ["Nowhere", "nobody", "River"]))
  corpus = build([row("Velt", TEXT, links), *others], block_length=11)
  assert [corpus.block(i).id for i in range(4)] == [
    *("Velt:0", "Velt:1", "Velt:2"),
    "Ada stone:0",
  ]
  assert followed(corpus)[:3] == [
    ["Of:0/part of"],
    ["river:0", "By:0", "stone:0"],
    ["Ada stone:0/built by"],
  ]
  assert linked_texts(corpus)[:3] == [
    [""],
    # A link ends with its block.
    ["river", "by", "cafe."],
    ["Ada Stone"],
  ]
  assert followed(corpus)[-1] == ["river:0"]
  assert corpus.relations == ("", "part of", "built by")
  assert corpus.has_links
  assert corpus.summary["links"] == 8
  assert corpus.summary["links_to_unknown"] == 2
  assert corpus.summary["unknown_titles"] == ["Nowhere", "nobody"]


def test_a_block_links_once_to_a_title_and_not_to_its_own(build):
  links = ["Stone", "Velt", at("Ada", title="stone"), "stone", "velt"]
  links.append({"title": "Stone", "relation": "near"})
  corpus = build([row("Velt", TEXT, links), row("Stone", "Ada.")])
  assert followed(corpus) == [["Stone:0", "Stone:0/near"], []]
  # The one that comes first in the text.
  assert linked_texts(corpus) == [["Ada", "Stone"], []]


def test_offsets_are_of_the_text_as_it_is_given(build):
  text = "É&amp;&#233; &lt;b&gt; by &Eacute;velt. Ada &amp was."
  words = ("&#233;", "velt", "Ada &amp was")
  links = [
    {
      "title": f"River &amp; {i}",
      "start": text.index(part),
      "limit": text.index(part) + len(part),
    }
    for i, part in enumerate(words)
  ]
  corpus = build([row("Velt", text, links), row("River & 1", "Ada.")])
  assert linked_texts(corpus)[0] == ["é", "velt", "Ada & was"]
  assert followed(corpus) == [["River & 1:0"], []]


@pytest.mark.parametrize(
  ("links", "message"),
  [
    ("Velt", r"'links' is 'Velt' and no list; want a title"),
    ([7], r"one of the 'links' is 7; want a title, or \{\"title\""),
    ([" "], "one of the 'links' is ' '"),
    ([{"relation": "of"}], "one of the 'links' is {'relation'"),
    ([{"title": "a", "relation": 1}], "one of the 'links'"),
    ([{"title": "a", "start": 1}], "together, \"start\" and \"limit\""),
    ([{"title": "a", "start": 2, "limit": 2}], "one of the 'links'"),
    ([{"title": "a", "start": 2, "limit": 5}], "characters of the text"),
    ([{"title": "a", "start": True, "limit": 2}], "one of the 'links'"),
    (["\ud800"], "half of a surrogate"),
  ],
)  # fmt: skip
def test_links_that_are_none_are_refused(links, message):
  line = json.dumps({"title": "t", "text": "text", "links": links}).encode()
  with pytest.raises(InputError, match=message):
    RowReader().read(line)
  assert RowReader(reads_links=False).read(line).links == []


def test_a_corpus_without_links_is_what_it_was(build, update):
  corpus = build(ROWS, block_length=16)
  assert not corpus.has_links
  assert corpus.relations == ("",)
  found = manifest.read(corpus.source)
  (shard,) = found["shards"]
  assert shard["files"].keys() == {f"{name}.npy" for name in ARRAYS}
  identity = {
    "format_version": 4,
    "block_length": 16,
    "vocabulary": found["vocabulary"]["sha256"],
    "files": [{**shard["files"], "span_kinds": shard["span_kinds"]}],
  }
  text = json.dumps(identity, sort_keys=True).encode()
  assert corpus.fingerprint == hashlib.sha256(text).hexdigest()
  linked = [{**one, "links": ["Velt d1"]} for one in ROWS]
  without = build(linked, folder="none", block_length=16, links="none")
  assert without.fingerprint == corpus.fingerprint
  assert followed(corpus, [0, NULL_ROW]) == [[], []]
  linked = build(linked, folder="linked", block_length=16)
  assert linked.fingerprint != corpus.fingerprint


def test_an_update_links_what_comes_and_unlinks_what_goes(build, update):
  rows = [
    row("a", TEXT, ["b", "new", {"title": "c", "relation": "of"}]),
    row("b", "Velt.", ["a"]),
    row("c", "Stone."),
  ]
  corpus = build(rows, block_length=11)
  assert followed(corpus) == [["b:0", "c:0/of"], [], [], ["a:0"], []]
  other = {"title": "c", "relation": "near"}
  changes = [
    rows[0],
    row("new", "Ada.", ["B", other, "gone"]),
    {"id": "b", "remove": True},
    row("c", "Stone.", ["a"]),
  ]
  summary = update(changes)
  # Only the links of c have changed.
  assert (summary.unchanged, summary.replaced, summary.added) == (1, 1, 1)
  assert summary.new.links_to_unknown == 1
  updated = corpus.newest()
  names = [updated.block(i).id for i in range(updated.num_blocks)]
  assert dict(zip(names, followed(updated), strict=True)) == {
    "a:0": ["new:0", "c:0/of"],
    "a:1": [],
    "a:2": [],
    "new:0": ["c:0/near"],
    "c:0": ["a:0"],
  }
  assert followed(corpus)[0] == ["b:0", "c:0/of"]
  # A corpus whose lines had none gets them with an update.
  plain = build(ROWS[:2], folder="corpus", overwrite=True)
  update([row("late", "Velt.", ["Velt d1"])])
  assert followed(plain.newest())[-1] == ["d1:0"]


def test_removed_duplicates_leave_rows_and_not_positions(build):
  same, more = "Ada was in Velt.", "Ada was in Velt. The river was by Stone."
  link = {"title": "y", "start": 21, "limit": 26}
  rows = [
    row("x", same),
    {**row("x", more, [link]), "id": "x2"},
    row("y", "Stone.", ["x", "z"]),
    {**row("y", "Stone.", ["z"]), "id": "y2"},
    row("z", "Velt.", ["y"]),
  ]
  corpus = build(rows, block_length=11, remove_duplicates=True, shard_bytes=1)
  ids = [corpus.block(i).id for i in range(corpus.num_blocks)]
  assert ids == ["x:0", "x2:1", "y:0", "z:0"]
  assert followed(corpus) == [[], ["y:0"], ["x:0", "z:0"], ["y:0"]]
  assert corpus.siblings(np.arange(4)).offsets.tolist() == [0] * 5


@pytest.mark.parametrize("seed", range(3))
def test_edges_are_those_of_a_loop(build, update, seed):
  rng = np.random.default_rng(seed)
  names = [f"T{i % 25}" for i in range(30)]
  words = "ada was by the river of velt".split()

  def document(number: int) -> dict:
    text = ". ".join(
      " ".join(rng.choice(words, rng.integers(2, 6)))
      for _ in range(rng.integers(1, 6))
    )
    links = [
      {"title": names[target], "relation": str(rng.choice(["", "r", "s"]))}
      for target in rng.integers(0, 30, rng.integers(0, 5))
    ]
    return {"id": str(number), "title": names[number], "text": text} | (
      {"links": links}
    )

  documents = {i: document(i) for i in range(30)}
  corpus = build(documents.values(), block_length=11, shard_bytes=600)
  changed = [document(i) for i in (3, 4, 29)]
  update([*changed, *({"id": str(i), "remove": True} for i in (0, 7, 9))])
  documents |= {int(one["id"]): one for one in changed}
  corpus = corpus.newest()
  blocks = [corpus.block(i) for i in range(corpus.num_blocks)]
  first_rows: dict[str, int] = {}
  for block in blocks:
    first_rows.setdefault(block.title, block.row)
  rows = rng.permutation(np.append(np.arange(-1, len(blocks)), [2, 2]))
  edges, siblings = corpus.edges(rows), corpus.siblings(rows)
  for i, number in enumerate(rows.tolist()):
    own = slice(*edges.offsets[i : i + 2].tolist())
    found = [*zip(edges.targets[own], edges.relations[own], strict=True)]
    near = siblings.targets[slice(*siblings.offsets[i : i + 2].tolist())]
    if number == NULL_ROW:
      assert not found
      assert not near.size
      continue
    block = blocks[number]
    links = documents[int(block.document_id)]["links"]
    expected = dict.fromkeys(
      (first_rows[link["title"]], corpus.relations.index(link["relation"]))
      for link in links
      # They are nowhere in the text.
      if block.ordinal == 0 and link["title"] in first_rows
      if link["title"] != block.title
    )
    assert found == [*expected]
    assert near.tolist() == [
      other.row
      for other in blocks
      if other.document_id == block.document_id and other.row != number
    ]


# --- Links that do not come with documents ------------------------------


def test_mentions_are_titles_in_the_text(build, update):
  text = "Ada was by the river Velt. The Velt cafe of ada stone. Velts in 1987."
  names = ["Ada", "River Velt", "Velt", "Ada stone", "1987", "Stone", "Cafe"]
  rows = [
    row("Own", f"{text} Own Velt."),
    row("Linked", "By the river Velt.", ["Stone"]),
    *(row(name, "The river was.") for name in names),
  ]
  corpus = build(rows, links="mentions")
  # The longest, without a word in small letters; years are no links.
  assert followed(corpus)[:2] == [
    ["Ada:0", "River Velt:0", "Velt:0", "Ada stone:0"],
    ["Stone:0"],
  ]
  assert linked_texts(corpus)[0] == ["Ada", "river Velt", "Velt", "ada stone"]
  assert corpus.summary["links_to_unknown"] == 0
  update([row("Late", "Was the cafe in Velt by Late or Own?")])
  newest = corpus.newest()
  assert followed(newest)[-1] == ["Velt:0", "Own:0"]
  assert followed(newest)[0] == followed(corpus)[0]


def test_a_title_that_many_texts_mention_is_no_link(build):
  rows = [row(f"d{i}", "The Velt was by Stone." * (i > 20)) for i in range(60)]
  rows += [row("The Velt", "Ada."), row("Stone", "Ada.")]
  rows += [row("late", "In Ada Stone."), row("Ada Stone", "Velt.")]
  corpus = build(rows[:21] + rows[60:], links="mentions")
  assert corpus.has_links
  corpus = build(rows, folder="more", links="mentions")
  assert corpus.summary["links"] == 1
  assert followed(corpus)[-2] == ["Ada Stone:0"]


def test_a_table_adds_links_by_title(build, update, tmp_path):
  lines = ["Velt\tStone", "other\tVelt", "Velt\tAda_Stone", "stone\tVelt"]
  lines += ["velt\tRiver", "velt\tlate", "Late\tStone"]
  table = tmp_path / "links.tsv.gz"
  table.write_bytes(gzip.compress("\n".join(lines).encode()))
  rows = [
    row("Velt", TEXT, ["Cafe"]),
    {**row("Velt", "By Ada Stone."), "id": "again"},
    *(row(name, "Ada.") for name in ("Stone", "Ada Stone", "river", "Cafe")),
  ]
  corpus = build(rows, block_length=11, link_table=str(table))
  assert followed(corpus)[:5] == [
    *([], ["river:0", "Cafe:0"], ["Ada Stone:0", "Stone:0"]),
    # A text that mentions no river.
    *(["Ada Stone:0", "Stone:0", "river:0"], ["Velt:0"]),
  ]
  assert corpus.summary["links_to_unknown"] == 2
  update([row("Late", "Velt.")], link_table=str(table))
  found = followed(corpus.newest())
  assert (found[0], found[-1]) == (["Late:0"], ["Stone:0"])
  table = tmp_path / "links.tsv"
  table.write_text("Velt\tStone\nVelt Stone\n")
  for settings, error, message in (
    ({"link_table": str(table)}, InputError, "links.tsv:2 is no line of a tab"),
    ({"links": "all"}, CorpusError, "--links=all; give given, mentions or no"),
    (
      {"runner": "DirectRunner", "link_table": "x"},
      CorpusError,
      "give --workers instead",
    ),
  ):
    with pytest.raises(error, match=message):
      build(rows, folder="bad", **settings)
