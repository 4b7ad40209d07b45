"""Byte strings come out of a numpy pickle, and nothing else does."""

import contextlib
import os
import pickle
import pickletools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.block_records import BlockRecords

pytestmark = pytest.mark.slow

PROTOCOLS = (2, 3, 4, 5)


def as_array(records):
  array = np.empty(len(records), object)
  array[:] = records
  return array


def npy(pickled: bytes, shape: tuple[int, ...]) -> bytes:
  """A .npy file of objects, written from the format's description."""
  header = repr({"descr": "|O", "fortran_order": False, "shape": shape})
  header = header.ljust(118 - 1) + "\n"
  return (
    b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + pickled
  )


def write(path, pickled: bytes, count: int) -> BlockRecords:
  path.write_bytes(npy(pickled, (count,)))
  return BlockRecords(path)


def opcode_offset(pickled: bytes, name: str) -> int:
  """Where in the .npy file the opcode is, by Python's own disassembler."""
  found = [at for op, _, at in pickletools.genops(pickled) if op.name == name]
  return 128 + found[0]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
  return tmp_path_factory.mktemp("records") / "block_records.npy"


@st.composite
def arrays_of_bytes(draw):
  """Records of every length class, some of them the same object twice."""
  distinct = draw(
    st.lists(
      st.binary(max_size=6)
      | st.integers(250, 260).map(lambda size: b"\xc3" * size)
      | st.sampled_from([b"", b"b", b"|", b"latin1", b"O8", b"." * 70_000]),
      min_size=1,
      max_size=12,
    )
  )
  places = draw(st.lists(st.integers(0, len(distinct) - 1), max_size=30))
  return distinct + [distinct[place] for place in places]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(records=arrays_of_bytes())
def test_every_protocol_gives_back_what_was_put_in(scratch, protocol, records):
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  read = write(scratch, pickled, len(records))
  assert len(read) == len(records)
  assert list(read) == records
  assert list(read) == records  # Each pass reads anew.


@given(records=st.lists(st.binary(max_size=300), max_size=40))
def test_what_np_save_writes(scratch, records):
  np.save(scratch, as_array(records), allow_pickle=True)
  assert list(BlockRecords(scratch)) == records


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_names_its_module_otherwise(tmp_path, protocol):
  records = [b"Ada was born in Velt.", b"", b"Bela"]
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  for new, old in (
    (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
    (b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray"),
  ):
    pickled = pickled.replace(new, old)
  assert b"_core" not in pickled
  assert list(write(tmp_path / "a.npy", pickled, 3)) == records


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2001])
def test_every_size_of_the_last_batch(tmp_path, protocol, count):
  # The pickler writes 1,000 items at a time, and a last one by itself.
  records = [b"block %d" % i for i in range(count)]
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  assert list(write(tmp_path / "a.npy", pickled, count)) == records


@pytest.mark.parametrize("protocol", (3, 4))
def test_memory_stays_flat(tmp_path, protocol):
  size = 10_000
  records = [i.to_bytes(8, "big") * (size // 8) for i in range(1_500)]
  path = tmp_path / "a.npy"
  pickled = pickle.dumps(as_array(records), protocol=protocol)
  path.write_bytes(npy(pickled, (len(records),)))
  del pickled, records
  tracemalloc.start()
  for i, record in enumerate(BlockRecords(path)):
    assert record[:8] == i.to_bytes(8, "big")
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert path.stat().st_size > 15e6
  assert peak < 8e6


# --- What is refused ------------------------------------------------------


class Malicious:
  """Unpickled, it would leave a mark on the file system."""

  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return os.system, (f"touch {self._path}",)


class _Plain:
  def __repr__(self):
    return "an object"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", ["alone", "first", "last"])
def test_a_pickle_that_would_run_a_command_is_refused(
  tmp_path, protocol, place
):
  marked = tmp_path / "marked"
  attack = Malicious(marked)
  value = {
    "alone": attack,
    "first": as_array([attack, b"a"]),
    "last": as_array([b"a", b"b", attack]),
  }[place]
  pickled = pickle.dumps(value, protocol=protocol)
  with pytest.raises(ConversionError, match="posix") as error:
    list(write(tmp_path / "a.npy", pickled, 3))
  assert not marked.exists()
  # Where it is, as Python's own disassembler counts: the name, or before it
  # (protocol 4) the text of its module.
  places = [
    128 + at
    for op, argument, at in pickletools.genops(pickled)
    if op.name == "STACK_GLOBAL" or "posix" in str(argument)
  ]
  assert any(f"at byte {at}," in str(error.value) for at in places)
  pickle.loads(pickled)  # It does what was feared.
  assert marked.exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
  ("value", "found"),
  [
    ("text", "text"),
    (7, "7 as a record|opcode"),
    (None, "None as a record"),
    ([b"a"], "EMPTY_LIST.* as a record"),
    ((b"a",), "as a record"),
    ({"a": 1}, "opcode EMPTY_DICT"),
    (1.5, "opcode BINFLOAT"),
    (1 << 80, "opcode LONG1"),
    (bytearray(b"a"), r"builtin|opcode BYTEARRAY8"),
    (_Plain(), r"the name .*_Plain|test_block_recor"),
    (np.array([1]), "as a record"),
    (np.bytes_(b"a"), r"scalar|as a record"),
  ],
  ids=str,
)
def test_what_is_no_byte_string_is_refused(tmp_path, protocol, value, found):
  array = np.empty(3, object)
  array[0], array[2] = b"a", b"b"
  array[1] = value
  pickled = pickle.dumps(array, protocol=protocol)
  with pytest.raises(ConversionError, match=found) as error:
    list(write(tmp_path / "a.npy", pickled, 3))
  # Items of a tuple pass for records until the tuple is made of them.
  seen = 2 if value == (b"a",) else 1
  assert f"after {seen} of 3 records" in str(error.value)
  assert "Nothing of it was run" in str(error.value)


def test_text_as_the_only_record_is_refused(tmp_path):
  pickled = pickle.dumps(as_array(["text"]), protocol=4)
  at = opcode_offset(pickled, "APPEND")
  with pytest.raises(ConversionError, match=f"'text' as a record at byte {at}"):
    list(write(tmp_path / "a.npy", pickled, 1))


@pytest.mark.parametrize(
  "value",
  [b"a", [b"a"], "text", np.array([1.5]), np.array(b"a", object)],
  ids=str,
)
def test_what_is_no_array_of_objects_is_refused(tmp_path, value):
  pickled = pickle.dumps(value, protocol=4)
  with pytest.raises(ConversionError, match="byte strings and nothing else"):
    list(write(tmp_path / "a.npy", pickled, 1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [2, 4])
def test_a_header_that_counts_otherwise_is_refused(tmp_path, protocol, count):
  pickled = pickle.dumps(as_array([b"a", b"c", b"d"]), protocol=protocol)
  with pytest.raises(
    ConversionError,
    match=r"more records than its header|3 records for an array of 3",
  ):
    list(write(tmp_path / "a.npy", pickled, count))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_cut_anywhere_is_refused(tmp_path, protocol):
  records = [b"a", b"long " * 52, b"", b"c"]
  whole = pickle.dumps(as_array(records), protocol=protocol)
  for size in range(0, len(whole), 3):
    with pytest.raises(ConversionError, match="is cut short"):
      list(write(tmp_path / "a.npy", whole[:size], 4))


def test_a_length_of_exabytes_is_refused_before_memory_is_claimed(tmp_path):
  pickled = pickle.dumps(as_array([b"x" * 300]), protocol=4)
  at = pickled.index(b"B\x2c\x01\x00\x00")
  pickled = pickled[:at] + b"\x8e" + struct.pack("<Q", 1 << 60) + b"x"
  with pytest.raises(ConversionError, match="is cut short"):
    list(write(tmp_path / "a.npy", pickled, 1))


def test_bytes_behind_the_array_are_refused(tmp_path):
  pickled = pickle.dumps(as_array([b"a"]), protocol=4)
  with pytest.raises(ConversionError, match="3 bytes more behind the array"):
    list(write(tmp_path / "a.npy", pickled + b"cos", 1))


@given(
  at=st.integers(0, 10_000),
  byte=st.integers(0, 255),
  protocol=st.sampled_from(PROTOCOLS),
)
def test_a_changed_byte_gives_bytes_or_the_error(scratch, at, byte, protocol):
  records = [b"Ada", b"", b"x" * 300, b"Ada"]
  pickled = bytearray(pickle.dumps(as_array(records), protocol=protocol))
  pickled[at % len(pickled)] = byte
  try:
    read = list(write(scratch, bytes(pickled), 4))
  except ConversionError:
    return
  assert [type(record) for record in read] == [bytes] * 4


@given(program=st.binary(max_size=60), protocol=st.sampled_from(PROTOCOLS))
def test_any_bytes_at_all_give_the_error(scratch, program, protocol):
  for pickled in (program, bytes([0x80, protocol]) + program):
    with pytest.raises(ConversionError):
      list(write(scratch, pickled, 1))


@given(at=st.integers(0, 127), byte=st.integers(0, 255))
def test_a_changed_byte_of_the_header_gives_records_or_the_error(
  scratch, at, byte
):
  content = bytearray(npy(pickle.dumps(as_array([b"a"])), (1,)))
  content[at] = byte
  scratch.write_bytes(content)
  with contextlib.suppress(ConversionError):
    assert list(BlockRecords(scratch)) == [b"a"]


@pytest.mark.parametrize("header", ["{'descr': (", "{1: 2, 'a': 3}", "{[]: 1}"])
def test_a_damaged_header_is_refused(tmp_path, header):
  content = npy(pickle.dumps(as_array([b"a"])), (1,))
  (tmp_path / "a.npy").write_bytes(
    content[:10] + header.encode().ljust(118) + content[128:]
  )
  with pytest.raises(ConversionError, match=r"damaged \(.*copy"):
    BlockRecords(tmp_path / "a.npy")


def test_deep_nesting_is_refused(tmp_path):
  for deep in (b")" + b"\x85" * 100_000, b"(" * 100_000, b"N" * 100_000):
    pickled = b"\x80\x04" + deep + b"R."
    with pytest.raises(ConversionError, match=r"tuple|more values than"):
      list(write(tmp_path / "a.npy", pickled, 1))


@pytest.mark.parametrize("shape", [(), (2, 2), (-1,)], ids=str)
def test_a_shape_that_is_no_list_of_records_is_refused(tmp_path, shape):
  path = tmp_path / "a.npy"
  path.write_bytes(npy(pickle.dumps(as_array([b"a"])), shape))
  with pytest.raises(ConversionError, match="in one dimension"):
    BlockRecords(path)


def test_another_dtype_and_another_format_are_refused(tmp_path):
  path = tmp_path / "a.npy"
  np.save(path, np.zeros(3))
  with pytest.raises(ConversionError, match="array of float64"):
    BlockRecords(path)
  path.write_bytes(b"PK\x03\x04 and so on")
  with pytest.raises(ConversionError, match=r"no \.npy file"):
    BlockRecords(path)
  with pytest.raises(FileNotFoundError):
    BlockRecords(tmp_path / "missing.npy")
