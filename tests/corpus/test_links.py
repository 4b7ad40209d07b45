"""Links: which block has them, where they lead, and what an update changes."""

import gzip
import hashlib
import itertools
import json

import numpy as np
import pytest

from realm_jax.corpus import CorpusError, InputError, manifest
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import RowReader
from realm_jax.corpus.shard import ARRAYS
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.inputs.question_files import Question, read_question
from tests.corpus.conftest import ROWS

# Three blocks of at most 11 wordpieces.
TEXT = "Ada was in Velt. The river was by the cafe. Built by Ada Stone."


def row(name: str, text: str, links: list | None = None, **fields) -> dict:
  return {"id": name, "title": name, "text": text, "links": links} | fields


def at(words: str, text: str = TEXT, **fields) -> dict:
  start = text.index(words)
  return {"start": start, "limit": start + len(words), **fields}


def followed(corpus: Corpus) -> list[list[str]]:
  """The ids of the blocks that each links to, with relations after a slash."""
  edges = corpus.edges(np.arange(corpus.num_blocks))
  names = [corpus.relations[number] for number in edges.relations]
  links = [
    "/".join(filter(None, (corpus.block(target).id, name)))
    for target, name in zip(edges.targets.tolist(), names, strict=True)
  ]
  bounds = itertools.pairwise(edges.offsets.tolist())
  return [links[start:limit] for start, limit in bounds]


def linked_texts(corpus: Corpus, number: int) -> list[str]:
  """The words of a block that are links; "" of one that is anywhere."""
  block = corpus.block(number)
  ranges = block.shard.item("link_ranges", block.position, of="links")
  body = block.text.encode()
  return [body[s:t].decode() if s >= 0 else "" for s, t in ranges.tolist()]


def test_a_link_belongs_to_the_block_that_has_it(build):
  links = [
    at("Ada Stone", title="ada  stone", relation="built by"),
    at("river", title="River"),
    at("cafe. Built", title="Stone"),
    # At its first whole word, in which a longer word does not count.
    "by",
    {"title": "of", "relation": "part of"},
    # A second one to a title, and one to its own.
    *("river", at("Ada", title="VELT"), "velt"),
  ]
  others = [row(n, "Stone.") for n in ("Ada stone", "river", "stone", "By")]
  others.append(row("Of", "Velt.", ["Nowhere", "nobody", "River"]))
  corpus = build([row("Velt", TEXT, links), *others], block_length=11)
  assert followed(corpus) == [
    ["Of:0/part of"],
    ["river:0", "By:0", "stone:0"],
    ["Ada stone:0/built by"],
    *([[]] * 4),
    ["river:0"],
  ]
  assert linked_texts(corpus, 0) == ["Ada", ""]
  # A link ends with its block.
  assert linked_texts(corpus, 1) == ["river", "by", "cafe."]
  assert corpus.relations == ("", "part of", "built by")
  assert corpus.summary["links_to_unknown"] == 3
  assert corpus.summary["unknown_titles"] == ["VELT", "Nowhere", "nobody"]


def test_offsets_are_of_the_text_as_it_is_given(build):
  text = "É&amp;&#233; &lt;b&gt; by &Eacute;velt. Ada &amp was."
  links = [
    at(words, text, title=f"River &amp; {i}")
    for i, words in enumerate(("&#233;", "velt", "Ada &amp was"))
  ]
  corpus = build([row("Velt", text, links), row("River & 1", "Ada.")])
  assert linked_texts(corpus, 0) == ["é", "velt", "Ada & was"]
  assert followed(corpus) == [["River & 1:0"], []]


@pytest.mark.parametrize(
  ("links", "message"),
  [
    ("Velt", r"'links' is 'Velt' and no list; want a title"),
    ([7], r"one of the 'links' is 7; want a title, or \{\"title\""),
    ([" "], "one of the 'links' is ' '"),
    ([{"title": "a", "relation": 1}], "one of the 'links'"),
    ([{"title": "a", "start": 1}], 'together, "start" and "limit"'),
    ([{"title": "a", "start": 2, "limit": 5}], "characters of the text"),
    (["\ud800"], "half of a surrogate"),
  ],
)
def test_links_that_are_none_are_refused(links, message):
  line = json.dumps({"title": "t", "text": "text", "links": links}).encode()
  with pytest.raises(InputError, match=message):
    RowReader().read(line)
  assert RowReader(reads_links=False).read(line).links == []


def test_a_link_to_a_title_without_words_leads_nowhere(build, tmp_path):
  table = tmp_path / "links.tsv"
  table.write_text("Velt\t_\n")
  linked = row("Velt", "Ada.", ["&nbsp;", {"title": "_"}, "Ada"])
  rows = [linked, {"title": "", "text": "Ada."}, row("Ada", "Velt.")]
  corpus = build(rows, link_table=str(table))
  assert followed(corpus) == [["Ada:0"], [], []]


def test_a_corpus_without_links_is_what_it_was(build):
  corpus = build(ROWS, block_length=16)
  record = manifest.read(corpus.source)
  (shard,) = record["shards"]
  assert shard["files"].keys() == {f"{name}.npy" for name in ARRAYS}
  identity = {
    "format_version": 4,
    "block_length": 16,
    "vocabulary": record["vocabulary"]["sha256"],
    "files": [{**shard["files"], "span_kinds": shard["span_kinds"]}],
  }
  text = json.dumps(identity, sort_keys=True).encode()
  assert corpus.fingerprint == hashlib.sha256(text).hexdigest()
  assert (corpus.has_links, corpus.relations) == (False, ("",))
  assert corpus.edges(np.array([0, NULL_ROW])).offsets.tolist() == [0, 0, 0]
  linked = [{**one, "links": ["Velt d1"]} for one in ROWS]
  for links in ("none", "given"):
    other = build(linked, folder=links, block_length=16, links=links)
    assert other.has_links == (links == "given")
    assert (other.fingerprint == corpus.fingerprint) == (links == "none")


def test_an_update_links_what_comes_and_unlinks_what_goes(build, update):
  rows = [
    row("a", TEXT, ["b", "new", {"title": "c", "relation": "of"}]),
    row("b", "Velt.", ["a"]),
    row("c", "Stone."),
  ]
  corpus = build(rows, block_length=11)
  before = [["b:0", "c:0/of"], [], [], ["a:0"], []]
  assert followed(corpus) == before
  new = row("new", "Ada.", ["B", {"title": "c", "relation": "near"}, "gone"])
  removed = {"id": "b", "remove": True}
  summary = update([rows[0], new, removed, row("c", "Stone.", ["a"])])
  # Only the links of c have changed.
  assert (summary.unchanged, summary.replaced, summary.added) == (1, 1, 1)
  assert summary.new.links_to_unknown == 1
  after = followed(corpus.newest())
  assert after == [["new:0", "c:0/of"], [], [], ["c:0/near"], ["a:0"]]
  assert followed(corpus) == before
  # A corpus whose lines had none gets them with an update.
  plain = build(ROWS[:2], overwrite=True)
  update([row("late", "Velt.", ["Velt d1"])])
  assert followed(plain.newest())[-1] == ["d1:0"]


def test_removed_duplicates_leave_rows_and_not_positions(build):
  same, more = "Ada was in Velt.", "Ada was in Velt. The river was by Stone."
  rows = [
    row("x", same),
    row("x", more, [at("river", more, title="y")], id="x2"),
    row("y", "Stone.", ["x", "z"]),
    row("y", "Stone.", ["z"], id="y2"),
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
  words = "ada was by the river of velt. stone.".split()

  def document(number: int) -> dict:
    links = [
      {"title": names[target], "relation": str(rng.choice(["", "r", "s"]))}
      for target in rng.integers(0, 30, rng.integers(0, 5))
    ]
    text = " ".join(rng.choice(words, rng.integers(2, 30)))
    return row(names[number], f"Ada {text}", links, id=str(number))

  documents = {str(i): document(i) for i in range(30)}
  corpus = build(documents.values(), block_length=11, shard_bytes=600)
  changed = [document(i) for i in (3, 4, 29)]
  update([*changed, *({"id": str(i), "remove": True} for i in (0, 7, 9))])
  documents |= {one["id"]: one for one in changed}
  corpus = corpus.newest()
  blocks = [corpus.block(i) for i in range(corpus.num_blocks)]
  first_rows = {block.title: block.row for block in blocks[::-1]}
  rows = rng.permutation(np.append(np.arange(-1, len(blocks)), [2, 2]))
  edges, siblings = corpus.edges(rows), corpus.siblings(rows)
  for i, number in enumerate(rows.tolist()):
    places = slice(*edges.offsets[i : i + 2].tolist())
    links_of_block = [
      *zip(edges.targets[places], edges.relations[places], strict=True)
    ]
    near = siblings.targets[slice(*siblings.offsets[i : i + 2].tolist())]
    if number == NULL_ROW:
      assert (links_of_block, near.tolist()) == ([], [])
      continue
    block = blocks[number]
    links = documents[block.document_id]["links"]
    # They are nowhere in the text.
    expected = dict.fromkeys(
      (first_rows[link["title"]], corpus.relations.index(link["relation"]))
      for link in (() if block.ordinal else links)
      if link["title"] in first_rows and link["title"] != block.title
    )
    assert links_of_block == [*expected]
    same = [b.row for b in blocks if b.document_id == block.document_id]
    assert near.tolist() == [one for one in same if one != number]


# --- Links that do not come with documents ------------------------------


def test_mentions_are_titles_in_the_text(build, update):
  text = "Ada was by the river Velt. The Velt cafe of ada stone. Velts in 1987."
  names = ["Ada", "River Velt", "Velt", "Ada stone", "1987", "Stone", "Cafe"]
  rows = [row("Own", f"{text} Own Velt."), row("Linked", "By Velt.", ["Stone"])]
  rows += [row(name, "The river was.") for name in names]
  corpus = build(rows, links="mentions")
  # The longest, without a word in small letters; years are no links.
  expected = ["Ada:0", "River Velt:0", "Velt:0", "Ada stone:0"]
  assert followed(corpus)[:2] == [expected, ["Stone:0"]]
  assert linked_texts(corpus, 0) == ["Ada", "river Velt", "Velt", "ada stone"]
  assert corpus.summary["links_to_unknown"] == 0
  update([row("Late", "Was the cafe in Velt by Late or Own?")])
  links = followed(corpus.newest())
  assert (links[0], links[-1]) == (expected, ["Velt:0", "Own:0"])


def test_a_title_that_many_texts_mention_is_no_link(build):
  rows = [row(f"d{i}", "The Velt was by Stone." * (i > 20)) for i in range(60)]
  rows += [row("The Velt", "Ada."), row("Stone", "Ada.")]
  rows += [row("late", "In Ada Stone."), row("Ada Stone", "Velt.")]
  corpus = build(rows, links="mentions")
  assert corpus.summary["links"] == 1
  assert followed(corpus)[-2] == ["Ada Stone:0"]


def test_a_table_adds_links_by_title(build, update, tmp_path):
  lines = ["Velt\tStone", "other\tVelt", "Velt\tAda_Stone", "stone\tVelt"]
  lines += ["velt\tRiver", "velt\tlate", "Late\tStone"]
  table = tmp_path / "links.tsv.gz"
  table.write_bytes(gzip.compress("\n".join(lines).encode()))
  rows = [row("Velt", TEXT, ["Cafe"]), row("Velt", "By Ada Stone.", id="again")]
  rows += [
    row(name, "Ada.") for name in ("Stone", "Ada Stone", "river", "Cafe")
  ]
  corpus = build(rows, block_length=11, link_table=str(table))
  assert followed(corpus)[:5] == [
    *([], ["river:0", "Cafe:0"], ["Ada Stone:0", "Stone:0"]),
    # A text that mentions no river.
    *(["Ada Stone:0", "Stone:0", "river:0"], ["Velt:0"]),
  ]
  assert corpus.summary["unknown_titles"] == ["Late"]
  update([row("Late", "Velt.")], link_table=str(table))
  links = followed(corpus.newest())
  assert (links[0], links[-1]) == (["Late:0"], ["Stone:0"])
  table = tmp_path / "links.tsv"
  table.write_text("Velt\tStone\nVelt Stone\n")
  beam = {"runner": "DirectRunner", "link_table": "x"}
  for settings, error, message in (
    ({"link_table": str(table)}, InputError, "links.tsv:2 is no line of a tab"),
    ({"links": "all"}, CorpusError, "--links=all; give given, mentions or no"),
    (beam, CorpusError, "give --workers instead"),
  ):
    with pytest.raises(error, match=message):
      build(rows, folder="bad", **settings)


# --- HotpotQA -----------------------------------------------------------


def test_the_paragraphs_of_hotpotqa_are_documents(tmp_path, vocab_file):
  velt = ["Velt", ["Velt was built by Ada Stone.", " It was by a river. "]]
  ada = ["Ada Stone", ["Ada Stone was in a cafe of Velt."]]
  facts = [["Velt", 0], ["Ada Stone", 0], ["Velt", 1]]
  example = {
    "_id": "q",
    "question": "Who was in a cafe?",
    "answer": "Ada Stone",
  }
  example |= {"supporting_facts": facts, "type": "bridge", "level": "easy"}
  contexts = [[velt, ada], [ada, ["Cafe", ["Velt. "]]]]
  inputs = [str(tmp_path / name) for name in ("dev.json", "more.json")]
  for path in inputs:
    with open(path, "w") as file:
      json.dump([{**example, "context": one} for one in contexts], file)
  build_corpus(inputs, tmp_path / "c", vocab=vocab_file, links="mentions")
  corpus = Corpus.open(tmp_path / "c")
  blocks = [corpus.block(i) for i in range(corpus.num_blocks)]
  assert [(block.title, block.text) for block in blocks] == [
    ("Velt", "Velt was built by Ada Stone. It was by a river."),
    ("Ada Stone", "Ada Stone was in a cafe of Velt."),
    ("Cafe", "Velt."),
  ]
  assert corpus.edges(np.arange(3)).targets.tolist() == [1, 0, 0]
  assert read_question(example) == Question(
    example["question"],
    ["Ada Stone"],
    "q",
    gold_titles=("Velt", "Ada Stone"),
  )
  with pytest.raises(ValueError, match=r"want a list of \[title, sentence\]"):
    read_question({**example, "supporting_facts": ["Velt"]})
  (tmp_path / "dev.json").write_text('[{"context": [["Velt"]]}]')
  with pytest.raises(InputError, match="the file is not HotpotQA's"):
    build_corpus(inputs, tmp_path / "bad", vocab=vocab_file)


def test_anchors_of_hotpotqas_wikipedia_are_links():
  first = 'Velt &amp; the <a href="Caf%C3%A9%20Stone">café</a>'
  line = {"title": "Velt", "text": [], "text_with_links": [first, " was."]}
  document = RowReader().read(json.dumps(line).encode())
  assert document.text == "Velt & the café was."
  assert document.links == [("Café Stone", "", 11, 15)]
  with pytest.raises(InputError, match="others than sentences"):
    RowReader().read(b'{"text": "", "text_with_links": null}')
