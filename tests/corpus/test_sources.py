"""Reading JSON Lines, and what is said of lines that are not."""

import bz2
import codecs
import csv
import datetime
import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from realm_jax.corpus import InputError
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import Document, RowReader
from realm_jax.corpus.sources import DocumentSource
from realm_jax.corpus.store import Corpus
from realm_jax.storage.paths import upload_directory
from tests.json_lines import write_lines


def read(*paths, **arguments) -> list[Document]:
  source = DocumentSource([*map(str, paths)], RowReader(**arguments))
  return list(source.documents())


def test_documents_by_hand(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(
    '{"title": "Velt", "text": "A caf\\u00e9.", "id": "v", "url": "u:v"}\n'
    '{"title": "Ada", "text": "Stone &amp; river", "id": 7}\n'
    '{"title": "a", "text": "b"}\n'
  )
  velt, ada, third = read(path)
  assert velt[:4] == ("v", "Velt", "A café.", "u:v")
  assert ada[:4] == ("7", "Ada", "Stone & river", "")
  assert read(path, unescape_html=False)[1].text == "Stone &amp; river"
  # An id of the contents is stable: `printf 'a\\0b' | b2sum -l 96` prints it.
  assert third.id == "5f9bf221bb2f0e9f33d31a72"
  assert RowReader().read(b'{"title": "ab", "text": ""}').id != third.id


def test_lines_of_json_are_read_as_such_under_any_name(tmp_path):
  for name in ("a.txt", "a", "a.data"):
    path = tmp_path / name
    path.write_text('{"title": "Velt", "text": "Ada."}\n')
    (document,) = read(path)
    assert (document.title, document.text) == ("Velt", "Ada.")


def test_pieces_are_the_rows_in_order(tmp_path):
  path = tmp_path / "a.jsonl"
  rows = [json.dumps({"title": f"é{i}", "text": "x" * i}) for i in range(9)]
  # A byte order mark, ends of lines as on Windows, and none at the end.
  path.write_bytes(codecs.BOM_UTF8 + "\r\n".join(rows).encode())
  source = DocumentSource([str(path)], RowReader())
  assert [d.title for d in source.documents()] == [f"é{i}" for i in range(9)]
  assert source.num_bytes == path.stat().st_size
  for piece_bytes, most in ((1, 1), (70, 2), (1 << 20, 9)):
    pieces = list(source.pieces(piece_bytes))
    assert [piece.number for piece in pieces] == [*range(len(pieces))]
    assert max(len(piece.documents) for piece in pieces) == most
    assert [d for p in pieces for d in p.documents] == [*source.documents()]


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b'{"title": "a", "paragraph": "b"}', "no 'text' among 'title', 'para"),
    (b'{"title": "a", "text": "caf\xe9"}', r"byte 28 .* not UTF-8 \(0xe9\)"),
    (rb'{"title": "a", "text": "b\ud800c"}', "half of a surrogate .* 2"),
    (b'{"a":' * 100_000, "too many lists or objects"),
    (b'{"title": "a", "text": "b", "n": %s}' % (b"3" * 5000), "4,300 digits"),
    (b'{"title": 7, "text": "b"}', "'title' is int"),
    (b"", "an empty line"),
    (b"[", "begins a JSON array; write JSON Lines"),
  ],
)  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, line, message):
  path = tmp_path / "a.jsonl"
  good = b'{"title": "a", "text": "b"}\n'
  path.write_bytes(good + line + b"\n" + good.replace(b"a", b"c"))
  with pytest.raises(InputError, match=f"a.jsonl:2: .*{message}") as caught:
    read(path)
  assert "--skip_bad_lines" in str(caught.value)

  source = DocumentSource([str(path)], RowReader(), skip_bad_lines=True)
  assert len(list(source.documents())) == 2
  assert source.summary.skipped == {"malformed lines": 1}
  assert f"{path}:2" in source.summary.first_errors[0]


def test_what_stands_for_nothing_is_nothing(tmp_path):
  path = tmp_path / "a.jsonl"
  lines = ['{"title": null, "text": "b"}', '{"text": "c"}', " ", ""]
  path.write_text("\n".join(lines))
  assert [(one.title, one.text) for one in read(path)] == [("", "b"), ("", "c")]


def test_patterns(tmp_path):
  for name in ("b.jsonl", "a.jsonl", "deep/d.jsonl"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f'{{"title": "{name}", "text": "x"}}\n')

  def titles(*patterns):
    documents = read(*(tmp_path / pattern for pattern in patterns))
    return [document.title for document in documents]

  assert titles("**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/d.jsonl"]
  assert titles("*.jsonl", "a.*") == ["a.jsonl", "b.jsonl"]
  # A file may be called like a pattern.
  (tmp_path / "a [b].jsonl").write_text('{"title": "own", "text": "x"}\n')
  assert titles("a [b].jsonl") == ["own"]
  with pytest.raises(InputError, match=r"no file matches --input=.*nothing"):
    titles("a.jsonl", "nothing*.jsonl")


@pytest.mark.parametrize(
  "run",
  [
    *("ឃ្លាវែង" * 300, "ປະໂຫຍກ" * 300, "ประโยคยาว" * 300, "ဝါကျရှည်" * 300),
    *("ཚིག་གྲུབ་" * 300, "अगला।" * 300, "جملة،" * 300),
  ],
)
def test_a_text_without_spaces_is_no_long_word(run):
  reader = RowReader()
  document = reader.read(json.dumps({"text": f"{run} a"}).encode())
  assert (document.text, document.long_words) == (f"{run} a", 0)
  document = reader.read(
    json.dumps({"text": f"{run} a {'QUJD' * 300}"}).encode()
  )
  assert (document.text, document.long_words) == (f"{run} a ", 1)


# --- Other files than JSON Lines ----------------------------------------

# A quotation, a tab, an end of a line and é; JSON Lines have them as they are.
_ROWS = [
  {
    "id": "a/velt.md",
    "title": "Velt",
    "text": '# Velt\n\nA "café" of Ada & B.',
  },
  {"id": "b.md", "title": "b", "text": "Stone by the river.\n"},
]


def _json_of_contents(folder, rows):
  """As pyserini and FlashRAG write it, the title in quotes or not."""
  contents = ('"Velt"\n{text}', "b\n{text}")
  return write_lines(
    folder / "a.jsonl",
    [
      {"id": row["id"], "contents": form.format(**row)}
      for row, form in zip(rows, contents, strict=True)
    ],
  )


def _dpr(folder, rows):
  path = folder / "a.tsv.gz"
  with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, ("id", "text", "title"), delimiter="\t")
    writer.writeheader()
    writer.writerows(rows)
  return path


def _parquet(folder, rows):
  table = pa.Table.from_pylist([{**row, "n": 1} for row in rows])
  pq.write_table(table, folder / "a.parquet", row_group_size=1)
  return folder / "a.parquet"


def _dataset(folder, rows):
  """As `save_to_disk` of `datasets` 4.4 writes it, with a cache beside it."""
  names = [f"data-{i:05d}-of-00002.arrow" for i in range(2)]
  for name, part in zip(names, (rows[:1], rows[1:]), strict=True):
    table = pa.Table.from_pylist(part)
    with pa.ipc.new_stream(folder / name, table.schema) as writer:
      writer.write_table(table)
  (folder / "cache-4d4c.arrow").write_bytes(b"")
  (folder / "dataset_info.json").write_text("{}")
  state = {"_data_files": [{"filename": name} for name in names]}
  (folder / "state.json").write_text(json.dumps(state))
  return folder


def _markdown(folder, rows):
  for row in rows:
    path = folder / row["id"]
    path.parent.mkdir(exist_ok=True)
    path.write_text(row["text"], encoding="utf-8")
  (folder / ".git").mkdir()
  (folder / ".git/ada.md").write_text("Ada.")
  (folder / "stone.png").write_bytes(b"\x89PNG")
  return folder


def _without_ending(folder, rows):
  return _parquet(folder, rows).rename(folder / "download")


def _in_memory(folder, rows):
  del folder
  return rows


def test_each_format_gives_the_corpus_of_its_json_lines(tmp_path, vocab_file):
  def fingerprint(source, target):
    inputs = source if isinstance(source, list) else [str(source)]
    build_corpus(inputs, target, vocab=vocab_file, name="corpus", shard_bytes=1)
    return Corpus.open(target).fingerprint

  lines = write_lines(tmp_path / "a.jsonl", _ROWS)
  expected = fingerprint(lines, tmp_path / "lines")
  for write in (
    *(_in_memory, _json_of_contents, _dpr, _parquet, _dataset, _markdown),
    _without_ending,
  ):
    (folder := tmp_path / write.__name__).mkdir()
    source = write(folder, _ROWS)
    target = tmp_path / f"corpus{write.__name__}"
    assert fingerprint(source, target) == expected, write


def test_folders_on_an_object_store(object_store, tmp_path):
  for write in (_dataset, _markdown):
    (folder := tmp_path / write.__name__).mkdir()
    write(folder, _ROWS)
    target = object_store.path(f"{tmp_path.name}/{write.__name__}")
    upload_directory(folder, target)
    documents = read(target)
    assert [document.id for document in documents] == ["a/velt.md", "b.md"]
    # An update takes the same files.
    assert read(target, of_update=True) == documents


def test_ms_marco(tmp_path):
  """No title, and quotes that are text; without an ending, by its tabs."""
  text = b'0\t"Ada" by\r\n1\t"Stone\n2\n3\tcaf\xe9\n4\t\xc3\xa9\tVelt'
  rows = [("0", "", '"Ada" by'), ("1", "", '"Stone'), ("4", "Velt", "é")]
  for name in ("a.tsv.zst", "collection.bz2"):
    path = tmp_path / name
    compress = zstandard.compress if name.endswith("zst") else bz2.compress
    path.write_bytes(compress(text))
    with pytest.raises(InputError, match=r":3: .*is 1; wanted id, text"):
      read(path)
    reader = RowReader()
    source = DocumentSource([str(path)], reader, skip_bad_lines=True)
    assert [(d.id, d.title, d.text) for d in source.documents()] == rows
    assert source.summary.skipped["malformed lines"] == 2
    assert "not UTF-8" in source.summary.first_errors[1]


def test_places_and_quotes_of_tsv(tmp_path):
  path = tmp_path / "a.tsv"
  rows = [
    '1\t"Ada\n\nby"\tVelt',
    '2\t"Ada" by\tVelt',
    "3",
    "4\tb\tc",
    "1\tb\tc",
  ]
  path.write_text("id\ttext\ttitle\n" + "\n".join(rows))
  source = DocumentSource([str(path)], RowReader(), skip_bad_lines=True)
  assert [d.place for d in source.documents()] == [f"{path}:2", f"{path}:7"]
  for message, wanted in zip(
    source.summary.first_errors,
    (r":5: .* expected after '\"'", ":6: .* is 1", ":8 has the same .*:2;"),
    strict=True,
  ):
    assert re.search(wanted, message)


_PAGE = """<!doctype html><title>Caf&eacute; &amp; Velt</title>
<script>if (a < b) "no";</script><style>p {}</style><nav><a>Home</a></nav>
<h1>Velt</h1><svg><title>no</title></svg>
<p>It was <b>b</b>uilt
 by Ada.<br>AT&T &amp;lt; 3<p>In<table><tr><td>1987</td><td>by</table>
<footer>no</footer>"""


def test_texts_of_pages_and_titles_of_files(tmp_path):
  for name, text in (
    ("a.html", _PAGE),
    ("b.MD", "```\n```\n## The *river* \n# Velt"),
    ("c.markdown", "River\n=====\n"),
    ("d.txt", "\ufeff# Ada"),
  ):
    (tmp_path / name).write_text(text, encoding="utf-8")
  documents = read(tmp_path)
  assert read(tmp_path / "*.*") == documents
  assert [(one.id, one.title) for one in documents] == [
    ("a.html", "Café & Velt"),
    ("b.MD", "The *river*"),
    ("c.markdown", "River"),
    ("d.txt", "d"),
  ]
  paragraphs = "Velt\n\nIt was built by Ada. AT&T &lt; 3\n\nIn\n\n1987 by"
  assert documents[0].text == paragraphs
  assert documents[3].text == "# Ada"


def test_dates_and_other_columns_of_parquet_are_kept(tmp_path):
  date = datetime.date(1987, 2, 1)
  row = {"text": "Ada.", "date": date, "tags": ["a"], "vector": [0.5]}
  pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
  (document,) = read(tmp_path / "a.parquet", fields=["date", "tags"])
  assert document.fields == '{"date": "1987-02-01", "tags": ["a"]}'


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.parquet", {"text": [1]}, r"a.parquet:1: 'text' is int and not a str"),
    ("a.parquet", {"body": ["b"]}, r"a.parquet:1: no 'text' among 'body'"),
    ("a.parquet", {"text": pa.array([], "string")}, "no document in .*a.parq"),
    ("a.parquet", b"", "a.parquet cannot be read after row 0 .*fetch or write"),
    ("a.arrow", b"ARROW", "a.arrow cannot be read after row 0"),
    ("a.html", b"<![velt[", "a.html:1: .*velt"),
    ("a.txt", b"caf\xe9", "a.txt:1: 'text' .* not UTF-8; write the whole"),
    ("folder/a.csv", b"", r"is a folder, and has no texts \(.txt .*/\*.jsonl'"),
    ("folder/a.tsv", b"", "is a folder, and has not only texts, but a.tsv"),
    ("folder/dataset_dict.json", b"", "splits; give one: .*folder/train"),
  ],
)
def test_files_that_give_nothing_are_explained(
  tmp_path, vocab_file, name, content, message
):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  if isinstance(content, dict):
    pq.write_table(pa.table(content), path)
  else:
    path.write_bytes(content)
  source = path if path.parent == tmp_path else path.parent
  with pytest.raises(InputError, match=message):
    build_corpus([str(source)], tmp_path / "corpus", vocab=vocab_file)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"body": "b"}, "<texts>:1: no 'text' among 'body'"),
    (Path("a.jsonl"), "Path.* is no input; give files as strings"),
    ({"text": " "}, "no document in the texts gave a block"),
  ],
)
def test_texts_that_give_nothing_are_explained(
  tmp_path, vocab_file, given, message
):
  with pytest.raises(InputError, match=message):
    build_corpus([given], tmp_path / "corpus", vocab=vocab_file)
