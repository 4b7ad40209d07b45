"""Reads a pickled numpy array of byte strings, and runs nothing in it.

A pickle is a program that may call anything. Here the opcodes that numpy
writes for an array of byte strings (protocols 2 to 5) are admitted, and the
names in them, of which none is called.
"""

import pickletools
from array import array
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.forward_file import ForwardFile
from realm_jax.conversion.google.pickle_stack import (
  Bytes,
  PickleStack,
  Symbol,
  Text,
)

WANTED = (
  "want what np.save writes of an array of dtype object that holds byte "
  "strings and nothing else"
)

# Around the records there are about ten objects, with short names.
_MAX_KEPT = 64
_MAX_NAME_BYTES = 64
# Places in what the memo keeps.
_FORGOTTEN, _EMPTY = 0, 1


class BytesPickle:
  """One pickle of the allowed kind, in one pass.

  Where an object stands in the array twice, the pickle refers back to the
  first time. To keep memory flat, only the place of each record is remembered,
  and a record referred to is read again.

  Args:
    file: open for binary reading, and seekable.
    where: what errors call it.
    start: the pickle's first byte.
    count: how many records it must hold.
  """

  def __init__(self, file: IO[bytes], *, where: str, start: int, count: int):
    self._file = ForwardFile(file, where=where, start=start)
    self._where = where
    self._start = start
    self._count = count
    self._offset = start  # Of the opcode being run.
    self._stack = PickleStack(self._refuse)
    # By index: the place of a record's opcode, or −1 − a place in `_kept`.
    self._memo = array("q")
    self._kept: list[Any] = [Symbol.FORGOTTEN, Bytes(b"", -1)]
    # The record given out last, while it may still be memoized.
    self._given: Bytes | None = None
    self._seen = 0

  def records(self) -> Iterator[bytes]:
    """The byte strings in order.

    Raises:
      ConversionError: the pickle is anything else, or cut.
    """
    while True:
      if self._stack.in_batch:
        yield from self._plain_records()
      self._offset = self._file.position
      opcode = self._file.take(1)[0]
      if opcode == _STOP:
        return self._require_end()
      if opcode not in _BETWEEN:
        self._given = None
      if opcode == _APPEND:
        record = self._stack.append()
      elif step := _STEPS.get(opcode):
        step(self)
        record = self._given = self._given or self._stack.take_batched_record()
      else:
        self._refuse(f"the pickle opcode {_name_of(opcode)}")
      if record and opcode not in _BETWEEN:
        self._seen += 1
        if self._seen > self._count:
          self._refuse("more records than its header says")
        yield record.value

  def _require_end(self) -> None:
    self._stack.require_array()
    length = self._stack.array_length
    if not self._seen == self._count == length:
      self._refuse(f"{self._seen} records for an array of {length}")
    if after := self._file.size - self._file.position:
      self._offset += 1
      self._refuse(f"{after} bytes more behind the array")

  def _refuse(self, found: str) -> NoReturn:
    raise ConversionError(
      f"{self._where} holds {found} at byte {self._offset}, after {self._seen} "
      f"of {self._count} records; {WANTED}. Nothing of it was run"
    )

  # --- The fast path ----------------------------------------------------

  def _plain_records(self) -> Iterator[bytes]:
    """Records as protocols 3 to 5 write nearly all: bytes, then a memo.

    It takes what it knows, and leaves the rest to the opcodes as it found it.
    """
    while self._given is None:
      self._file.look_ahead()
      before = self._file.position
      yield from self._plain_records_of_buffer()
      if self._file.position == before:
        return

  def _plain_records_of_buffer(self) -> Iterator[bytes]:
    memo, number = self._memo, int.from_bytes
    buffer, base, at = self._file.buffer, self._file.base, self._file.at
    seen = self._seen
    # Behind a record: an opcode with an index of four bytes, and one more.
    limit = len(buffer) - 6
    while seen < self._count and at < limit:
      opcode = buffer[at]
      if opcode == _BINBYTES:
        start = at + 5
        end = start + number(buffer[at + 1 : start], "little")
      elif opcode == _SHORT_BINBYTES:
        start = at + 2
        end = start + buffer[at + 1]
      else:
        break
      if end > limit:
        break
      if buffer[end] == _MEMOIZE:
        following = end + 1
      elif buffer[end] == _LONG_BINPUT:
        following = end + 5
        if number(buffer[end + 1 : following], "little") != len(memo):
          break
      else:
        break
      memo.append(base + at)
      at = following
      seen += 1
      yield buffer[start:end]
    self._file.at, self._seen = at, seen

  # --- What opcodes read ------------------------------------------------

  def _protocol(self) -> None:
    version = self._file.number(1)
    if self._offset != self._start or not 2 <= version <= 5:
      self._refuse(f"a pickle of protocol {version}")

  def _skip_frame(self) -> None:
    self._file.take(8)  # Its length, which serves those who read ahead by it.

  def _bytes(self, size: int) -> bytes:
    """So many bytes; outside of the array there are few at a time."""
    if size > _MAX_NAME_BYTES and not self._stack.in_list:
      self._refuse(f"{size} bytes outside of the array")
    return self._file.take(size)

  def _string(self, size: int) -> str:
    try:
      return self._bytes(size).decode("utf-8")
    except UnicodeDecodeError as error:
      self._refuse(f"text that is not UTF-8 ({error.reason})")

  def _line(self) -> str:
    """Up to the end of the line."""
    line = bytearray()
    while (byte := self._file.take(1)) != b"\n":
      line += byte
      if len(line) > _MAX_NAME_BYTES:
        self._refuse(f"the name {line.decode('latin1')}…")
    return line.decode("latin1")

  def _push_bytes(self, length_bytes: int) -> None:
    value = self._bytes(self._file.number(length_bytes))
    self._stack.push(Bytes(value, self._offset))

  def _push_text(self, length_bytes: int) -> None:
    value = self._string(self._file.number(length_bytes))
    self._stack.push(Text(value, self._offset))

  def _push_global(self) -> None:
    module = self._line()
    self._stack.push_name(module, self._line())

  # --- The memo ---------------------------------------------------------

  def _memoize(self, index: int | None = None) -> None:
    """Remembers the latest value, the record just given out included."""
    if index is not None and index != len(self._memo):
      self._refuse(f"memo {index} where {len(self._memo)} is due")
    value = self._given or self._stack.top
    self._given = None
    if isinstance(value, Bytes) and value.offset >= 0:
      self._memo.append(value.offset)
      return
    if isinstance(value, Bytes):
      place = _EMPTY
    elif self._stack.in_list and not isinstance(value, Symbol):
      place = _FORGOTTEN
    else:
      place = len(self._kept)
      self._kept.append(value)
      if place > _MAX_KEPT:
        self._refuse("more objects than an array needs")
    self._memo.append(-1 - place)

  def _recall(self, index: int) -> None:
    """Pushes what was memoized."""
    if index >= len(self._memo):
      self._refuse(f"a reference to memo {index}, which is empty")
    place = self._memo[index]
    value = self._read_again(place) if place >= 0 else self._kept[-1 - place]
    if value is Symbol.FORGOTTEN:
      self._refuse("a reference to text within a record")
    self._stack.push(value)

  def _read_again(self, offset: int) -> Bytes:
    """The record whose opcode is there."""
    with self._file.elsewhere(offset):
      opcode = self._file.take(1)[0]
      size = self._file.number(_LENGTH_BYTES[opcode])
      if opcode in (_BINUNICODE, _SHORT_BINUNICODE):
        value = self._stack.encoded(self._string(size))
      else:
        value = self._bytes(size)
    return Bytes(value, offset)


def _name_of(opcode: int) -> str:
  names = {info.code: info.name for info in pickletools.opcodes}
  return names.get(chr(opcode), f"0x{opcode:02x}, which is none")


_STOP, _APPEND, _FRAME = ord("."), ord("a"), 0x95
_MEMOIZE, _BINPUT, _LONG_BINPUT = 0x94, ord("q"), ord("r")
_SHORT_BINBYTES, _BINBYTES, _BINBYTES8 = ord("C"), ord("B"), 0x8E
_SHORT_BINUNICODE, _BINUNICODE = 0x8C, ord("X")
# They may stand between a record and its end.
_BETWEEN = (_MEMOIZE, _BINPUT, _LONG_BINPUT, _FRAME)
_LENGTH_BYTES = {
  _SHORT_BINBYTES: 1,
  _BINBYTES: 4,
  _BINBYTES8: 8,
  _SHORT_BINUNICODE: 1,
  _BINUNICODE: 4,
}
_STEPS: dict[int, Callable[[BytesPickle], None]] = {
  0x80: BytesPickle._protocol,
  _FRAME: BytesPickle._skip_frame,
  ord("("): lambda p: p._stack.push(Symbol.MARK),
  ord("]"): lambda p: p._stack.begin_list(),
  ord(")"): lambda p: p._stack.push(()),
  ord("t"): lambda p: p._stack.make_tuple(),
  0x85: lambda p: p._stack.make_tuple(1),
  0x86: lambda p: p._stack.make_tuple(2),
  0x87: lambda p: p._stack.make_tuple(3),
  ord("N"): lambda p: p._stack.push(None),
  0x88: lambda p: p._stack.push(True),
  0x89: lambda p: p._stack.push(False),
  ord("K"): lambda p: p._stack.push(p._file.number(1)),
  ord("M"): lambda p: p._stack.push(p._file.number(2)),
  ord("J"): lambda p: p._stack.push(p._file.number(4, signed=True)),
  _SHORT_BINBYTES: lambda p: p._push_bytes(1),
  _BINBYTES: lambda p: p._push_bytes(4),
  _BINBYTES8: lambda p: p._push_bytes(8),
  _SHORT_BINUNICODE: lambda p: p._push_text(1),
  _BINUNICODE: lambda p: p._push_text(4),
  ord("c"): BytesPickle._push_global,
  0x93: lambda p: p._stack.name_from_texts(),
  ord("R"): lambda p: p._stack.call(),
  ord("b"): lambda p: p._stack.build(),
  ord("e"): lambda p: p._stack.end_batch(),
  _MEMOIZE: lambda p: p._memoize(),
  _BINPUT: lambda p: p._memoize(p._file.number(1)),
  _LONG_BINPUT: lambda p: p._memoize(p._file.number(4)),
  ord("h"): lambda p: p._recall(p._file.number(1)),
  ord("j"): lambda p: p._recall(p._file.number(4)),
}
