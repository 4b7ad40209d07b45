"""Byte strings of a pickled numpy array, read without running the pickle.

A pickle is a program that may call anything. `pickletools.genops` of the
standard library splits it into opcodes and runs none of them. The filter in
this file admits those that numpy writes for an array of byte strings (protocols
2 to 5), keeps plain data alone on its stack, and compares names and calls with
the few that such an array needs. It imports and calls nothing for the pickle.
"""

import enum
from array import array
from collections.abc import Iterator
from typing import IO, NamedTuple, TypeAlias

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.opcode_reader import Argument, OpcodeReader

WANTED = (
  "want what np.save writes of an array of dtype object that holds byte "
  "strings and nothing else"
)

# A record that is referred to again is read by itself.
_SMALL_CHUNK_BYTES = 1 << 12
# An array takes about 40 values besides its records, and a record at most 5.
# The limit bounds the stack, the depth of tuples and what the memo keeps.
_MAX_PUSHED = 100


class Constant(NamedTuple):
  """A string of the pickle, and the position of its opcode in the file."""

  value: bytes | str
  offset: int

  def __repr__(self) -> str:
    kind = "text (str)" if isinstance(self.value, str) else "a byte string"
    return f"{kind} {self.value[:40]!r}"


class Symbol(enum.Enum):
  """An object that the pickle would make; the value names it in errors."""

  MARK = "a mark"
  LIST = "a list"
  NEW_ARRAY = "an array without contents"
  ARRAY = "an array"
  NEW_DTYPE = "a dtype without a state"
  OBJECT_DTYPE = "a dtype"
  RECONSTRUCT = "numpy's _reconstruct"
  NDARRAY = "numpy.ndarray"
  DTYPE = "numpy.dtype"
  ENCODE = "_codecs.encode"
  BYTES = "bytes"
  NOT_KEPT = "a value that is not kept"

  def __repr__(self) -> str:
    return self.value


class Values(tuple["Value", ...]):
  """A tuple of the pickle."""


Value: TypeAlias = Constant | Symbol | int | Values | None

_NAMES = {
  "numpy.core.multiarray _reconstruct": Symbol.RECONSTRUCT,
  "numpy._core.multiarray _reconstruct": Symbol.RECONSTRUCT,
  "numpy ndarray": Symbol.NDARRAY,
  "numpy dtype": Symbol.DTYPE,
  "_codecs encode": Symbol.ENCODE,
  "__builtin__ bytes": Symbol.BYTES,
  "builtins bytes": Symbol.BYTES,
}
# The top of the stack while APPENDS's records are read, ...
_BATCH = [Symbol.LIST, Symbol.MARK]
# ... and a value above it which is no record yet: protocol 2 calls these.
_BYTES_MAKERS = (Symbol.ENCODE, Symbol.BYTES)
# The memo's entry for a value to which nothing may refer.
_NOT_KEPT = -1
_SINGLETONS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class BytesPickle:
  """One pickle of an array of byte strings, read in one pass.

  Where an object is in the array twice, the pickle refers back to the first
  place. To keep memory flat, only the position of each record is remembered,
  and a record referred to is read again.

  Args:
    file: File open for binary reading, which can seek.
    where: Name of the file in errors.
    start: Position of the pickle's first byte.
    count: Number of records that the pickle must hold.
  """

  def __init__(self, file: IO[bytes], *, where: str, start: int, count: int):
    self._file = file
    self._where = where
    self._start = start
    self._count = count
    self._offset = start  # Position of the current opcode.
    self._seen = 0
    self._pushed = 0  # Values since the last record.
    self._stack: list[Value] = []
    # The value that a memo opcode names: the one pushed last.
    self._latest: Value = None
    self._has_list = self._in_list = False
    self._length: int | None = None
    # By memo index: the position of a record's opcode, or −1 − an index into
    # `_kept`.
    self._memo = array("q")
    self._kept: list[Value] = [Symbol.NOT_KEPT]

  def records(self) -> Iterator[bytes]:
    """Yields the byte strings in order.

    Raises:
      ConversionError: If the pickle is anything else, or cut short.
    """
    reader = OpcodeReader(self._file, where=self._where, start=self._start)
    try:
      for name, argument, self._offset in reader.opcodes():
        if name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
          self._memoize(argument)
          continue
        if isinstance(argument, bytes):
          self._push(Constant(argument, self._offset))
        else:
          self._follow(name, argument)
        record = self._take_record(name)
        if record is not None:
          yield record
    except ConversionError:
      raise
    except ValueError as error:  # Of `genops`, which knows no such opcode.
      self._offset = reader.tell()
      raise self._error(str(error)) from error
    self._require_array()
    if after := reader.size - reader.tell():
      self._offset = reader.tell()
      raise self._error(f"{after} bytes more behind the array")

  def _require_array(self) -> None:
    if self._stack != [Symbol.ARRAY]:
      raise self._error("an end before the array is complete")
    if not self._seen == self._count == self._length:
      raise self._error(f"{self._seen} records for an array of {self._length}")

  def _error(self, found: str) -> ConversionError:
    return ConversionError(
      f"{self._where} holds {found} at byte {self._offset}, after {self._seen} "
      f"of {self._count} records; {WANTED}. Nothing of it was run"
    )

  def _take_record(self, opcode: str) -> bytes | None:
    """Takes a record off the stack, if the opcode has completed one."""
    stack = self._stack
    if opcode == "APPEND":
      self._latest = None
      if stack[-2:-1] != [Symbol.LIST]:
        raise self._error("an append to something else than the array")
    elif stack[-3:-1] != _BATCH or stack[-1] in _BYTES_MAKERS:
      return None
    value = stack.pop()
    if not isinstance(value, Constant) or not isinstance(value.value, bytes):
      raise self._error(f"{value!r} as a record")
    self._pushed = 0
    self._seen += 1
    if self._seen > self._count:
      raise self._error("more records than its header says")
    return value.value

  def _push(self, value: Value) -> None:
    self._pushed += 1
    if self._pushed > _MAX_PUSHED:
      raise self._error("more values than an array needs")
    self._stack.append(value)
    self._latest = value

  def _pop(self) -> Value:
    if not self._stack:
      raise self._error("an operation on nothing")
    return self._stack.pop()

  # --- Opcodes ----------------------------------------------------------

  def _follow(self, name: str, argument: Argument) -> None:
    """Follows any opcode but those of byte strings and of the memo."""
    match name, argument:
      case "BINGET" | "LONG_BINGET", int():
        self._push(self._recall(argument))
      case "BINUNICODE" | "SHORT_BINUNICODE", str():
        self._push(Constant(argument, self._offset))
      case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3", _:
        self._push_tuple([self._pop() for _ in range(_TUPLE_SIZES[name])])
      case "TUPLE", _:
        self._push_tuple(list(iter(self._pop, Symbol.MARK)))
      case "REDUCE", _:
        self._push(self._called(arguments=self._pop(), function=self._pop()))
      case "BUILD", _:
        self._push(self._built(state=self._pop(), target=self._pop()))
      case "GLOBAL", str():
        self._push(self._named(argument))
      case "STACK_GLOBAL", _:
        attribute, module = self._pop(), self._pop()
        match module, attribute:
          case Constant(str() as one), Constant(str() as other):
            self._push(self._named(f"{one} {other}"))
          case _:
            raise self._error("a name that is not text")
      case "BININT1" | "BININT2" | "BININT", int():
        self._push(argument)
      case "NONE" | "NEWTRUE" | "NEWFALSE", _:
        self._push(_SINGLETONS[name])
      case "MARK", _:
        self._push(Symbol.MARK)
      case "EMPTY_LIST", _:
        if self._has_list:
          raise self._error("a second list")
        self._has_list = self._in_list = True
        self._push(Symbol.LIST)
      case "APPENDS", _ if self._stack[-2:] == _BATCH:
        self._latest = None
        self._pop()
      case "PROTO", 2 | 3 | 4 | 5 if self._offset == self._start:
        pass
      case (("FRAME" | "APPEND" | "STOP"), _):
        pass
      case _:
        said = "" if argument is None else f" {argument!r:.60}"
        raise self._error(f"the pickle opcode {name}{said}")

  def _push_tuple(self, items: list[Value]) -> None:
    """Pushes the tuple of values that were popped."""
    if Symbol.MARK in items:  # Its items were taken as records.
      raise self._error("a tuple as a record")
    if Symbol.LIST in items:
      self._in_list = False
    self._push(Values(reversed(items)))

  def _named(self, name: str) -> Symbol:
    if name not in _NAMES:
      raise self._error(f"the name {name.replace(' ', '.')}")
    return _NAMES[name]

  def _called(self, *, function: Value, arguments: Value) -> Value:
    """The result of a call, if it is one of the four that arrays need."""
    match function, arguments:
      case Symbol.ENCODE, (
        Constant(str() as text, offset),
        Constant("latin1"),
      ):
        return Constant(text.encode("latin1"), offset)
      case Symbol.BYTES, ():
        return Constant(b"", self._offset)
      case Symbol.RECONSTRUCT, (Symbol.NDARRAY, (0,), Constant(b"b")):
        return Symbol.NEW_ARRAY
      case Symbol.DTYPE, (Constant("O8"), 0, 1):
        return Symbol.NEW_DTYPE
      case _:
        raise self._error(f"a call of {function!r} with {arguments!r}")

  def _built(self, *, target: Value, state: Value) -> Value:
    """The object with its state, if it is the dtype's or the array's."""
    match target, state:
      case (
        Symbol.NEW_DTYPE,
        (3, Constant("|"), None, None, None, -1, -1, 63),
      ):
        return Symbol.OBJECT_DTYPE
      case (
        Symbol.NEW_ARRAY,
        (1, (int() as length,), Symbol.OBJECT_DTYPE, False, Symbol.LIST),
      ):
        self._length = length
        return Symbol.ARRAY
    raise self._error(f"a state for {target!r}: {state!r}")

  # --- The memo ---------------------------------------------------------

  def _memoize(self, index: Argument) -> None:
    """Remembers the value pushed last, even if it was taken as a record."""
    if index is not None and index != len(self._memo):
      raise self._error(f"memo {index} where {len(self._memo)} is due")
    value, self._latest = self._latest, None
    if value is None or len(self._kept) > _MAX_PUSHED:
      raise self._error("more references than an array needs")
    if isinstance(value, Constant) and self._in_list:
      is_record = isinstance(value.value, bytes)
      self._memo.append(value.offset if is_record else _NOT_KEPT)
    elif isinstance(value, Constant | Symbol):
      self._memo.append(-1 - len(self._kept))
      self._kept.append(value)
    else:  # Tuples, to which no array refers again.
      self._memo.append(_NOT_KEPT)

  def _recall(self, index: int) -> Value:
    """The value that was memoized."""
    if index >= len(self._memo):
      raise self._error(f"a reference to memo {index}, which is empty")
    place = self._memo[index]
    if place >= 0:
      return self._read_again(place)
    value = self._kept[-1 - place]
    if value is Symbol.NOT_KEPT:
      raise self._error(f"a reference to memo {index}, which no array has")
    return value

  def _read_again(self, offset: int) -> Constant:
    """The record at a position."""
    resume = self._file.tell()
    reader = OpcodeReader(
      self._file,
      where=self._where,
      start=offset,
      chunk_bytes=_SMALL_CHUNK_BYTES,
    )
    _, value, _ = next(reader.opcodes())
    self._file.seek(resume)
    match value:
      case bytes():
        return Constant(value, offset)
      case str():  # Protocol 2 writes bytes as text.
        return Constant(value.encode("latin1"), offset)
      case _:  # And the empty ones as a call without arguments.
        return Constant(b"", offset)
