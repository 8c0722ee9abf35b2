"""Object code to code in memory without LLVM: a process whose kernels are all cached need not load it.

Reads relocatable ELF files for x86-64 as our own compiles make them (small code model, position independent). For
anything else `load` answers None, and LLVM's linker does the work.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import Any
from weakref import WeakSet

from polyopt.classes import dataclass


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Machine code in memory.

    addresses: of the symbols that were asked for
    owner:     frees the code when it goes, so whoever holds an address holds this value
    """

    addresses: Mapping[str, int]
    owner: Any


class _Unfit(Exception):
    """The object needs what this linker does not do."""


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_MAGIC = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _UNWIND = 2, 4, 8, 0x70000001
_WRITE, _ALLOCATED, _EXECUTABLE = 1, 2, 4
_UNDEFINED, _SPECIAL = 0, 0xFF00
_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24
_TABLE_RELATIVE = (9, 41, 42)
_JUMP = b"\xff\x25"
"""jmp [rip + 32-bit distance]"""
_JUMP_BYTES, _POINTER_BYTES = 8, 8


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


_IMAGES: WeakSet[_Image] = WeakSet()


@atexit.register
def _keep_code_at_exit() -> None:
    """Leave code where it is while the interpreter ends: threads that nobody stops may still run it."""
    for image in list(_IMAGES):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(image))


def load(object_code: bytes, symbols: Iterable[str], imports: Mapping[str, int]) -> LoadedCode | None:
    """The code in memory, and the addresses of `symbols`; None where LLVM's linker is needed."""
    if not _is_supported():
        return None
    try:
        return _link(object_code, tuple(symbols), imports)
    except (_Unfit, struct.error, IndexError, UnicodeDecodeError, OSError, ValueError):
        return None


def _is_supported() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _link(data: bytes, wanted: tuple[str, ...], imports: Mapping[str, int]) -> LoadedCode:
    sections = _sections(data)
    symbols = _symbols(data, sections)
    image = _Image(sections, symbols, imports)
    image.fill(data)
    for section in sections:
        if section.kind == _RELOCATIONS and image.holds(section.info):
            for offset, symbol, kind, addend in _relocations(data, section):
                image.relocate(section.info, offset, symbol, kind, addend)
    image.protect()
    defined = {s.name: image.address(s) for s in symbols if image.holds(s.section)}
    if any(name not in defined for name in wanted):
        raise _Unfit("a symbol is missing")
    return LoadedCode({name: defined[name] for name in wanted}, image)


# --- reading ----------------------------------------------------------------------------------------------------


def _sections(data: bytes) -> list[_Section]:
    ident, kind, machine, _, _, _, start, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
    if not ident.startswith(_MAGIC) or kind != _RELOCATABLE or machine != _X86_64 or size != _SECTION.size:
        raise _Unfit("not an object for this machine")
    raw = [_SECTION.unpack_from(data, start + n * size) for n in range(count)]
    table = raw[names][4]
    sections = [_Section(_string(data, table + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(1, r[8])) for r in raw]
    if any(s.kind != _NO_BITS and s.offset + s.size > len(data) for s in sections):
        raise _Unfit("cut short")
    return sections


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    for section in sections:
        if section.kind == _SYMBOLS:
            names = sections[section.link].offset
            raw = (_SYMBOL.unpack_from(data, section.offset + n) for n in range(0, section.size, _SYMBOL.size))
            return [_Symbol(_string(data, names + r[0]), r[3], r[4]) for r in raw]
    raise _Unfit("no symbols")


def _relocations(data: bytes, section: _Section) -> Iterator[tuple[int, int, int, int]]:
    for n in range(0, section.size, _RELOCATION.size):
        offset, info, addend = _RELOCATION.unpack_from(data, section.offset + n)
        yield offset, info >> 32, info & 0xFFFFFFFF, addend


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(0, start)].decode("ascii")


# --- the image in memory ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Region:
    """Pages of one protection: sections, and behind them room for jumps or pointers. start, size: in the image."""

    protection: int
    start: int = 0
    size: int = 0
    sections: list[int] = field(default_factory=list)


class _Image:
    """An object's sections in one block of memory: code, constants and pointers, data, each on pages of its own."""

    def __init__(self, sections: list[_Section], symbols: list[_Symbol], imports: Mapping[str, int]) -> None:
        self._sections = sections
        self._symbols = symbols
        self._imports = imports
        self._starts: dict[int, int] = {}
        self._jumps: dict[int, int] = {}
        self._pointers: dict[int, int] = {}
        self._regions = [_Region(mmap.PROT_READ | p) for p in (mmap.PROT_EXEC, 0, mmap.PROT_WRITE)]
        size = self._lay_out()
        # Private: by default Python maps shared memory, and a forked child would share the pool's counters.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._handle = ctypes.c_char.from_buffer(self._memory)
        self._base = ctypes.addressof(self._handle)
        _IMAGES.add(self)

    def _lay_out(self) -> int:
        """Give each section its place; how many bytes that takes."""
        for number, section in enumerate(self._sections):
            if section.flags & _ALLOCATED and section.kind != _UNWIND and section.name != ".eh_frame":
                self._regions[_region(section.flags)].sections.append(number)
        externals = sum(symbol.section == _UNDEFINED for symbol in self._symbols)
        spare = (externals * _JUMP_BYTES, len(self._symbols) * _POINTER_BYTES, 0)
        end = 0
        for region, extra in zip(self._regions, spare):
            region.start = end = _aligned(end, mmap.PAGESIZE)
            for number in region.sections:
                if self._sections[number].alignment > mmap.PAGESIZE:
                    raise _Unfit("an alignment above a page")
                self._starts[number] = end = _aligned(end, self._sections[number].alignment)
                end += self._sections[number].size
            region.size = _aligned(end, 16) - region.start
            end = region.start + region.size + extra
        return max(1, end)

    def holds(self, section: int) -> bool:
        return section in self._starts

    def fill(self, data: bytes) -> None:
        """Copy the sections' contents in."""
        for number, start in self._starts.items():
            section = self._sections[number]
            if section.kind != _NO_BITS:
                self._memory[start : start + section.size] = data[section.offset : section.offset + section.size]

    def address(self, symbol: _Symbol) -> int:
        """Where a symbol is: in this image, or in the process. Raises `_Unfit`."""
        if symbol.section in self._starts:
            return self._base + self._starts[symbol.section] + symbol.value
        if symbol.section != _UNDEFINED:
            raise _Unfit("a symbol of a kind that is not linked here")
        return self._imports.get(symbol.name) or _process_symbol(symbol.name)

    def relocate(self, section: int, offset: int, number: int, kind: int, addend: int) -> None:
        """Write one address or distance. Raises `_Unfit` for a kind that our compiles do not make."""
        place = self._starts[section] + offset
        symbol = self._symbols[number]
        if kind in _TABLE_RELATIVE:
            self._write(place, "<i", self._pointer(number) + addend - self._base - place)
        elif kind == _CALL_32 and symbol.section == _UNDEFINED:
            self._write(place, "<i", self._jump(number) + addend - self._base - place)
        elif kind in (_RELATIVE_32, _CALL_32):
            self._write(place, "<i", self.address(symbol) + addend - self._base - place)
        elif kind == _RELATIVE_64:
            self._write(place, "<q", self.address(symbol) + addend - self._base - place)
        elif kind == _ABSOLUTE_64:
            self._write(place, "<Q", self.address(symbol) + addend)
        else:
            raise _Unfit(f"relocation {kind}")

    def _write(self, place: int, form: str, value: int) -> None:
        struct.pack_into(form, self._memory, place, value)

    def _pointer(self, number: int) -> int:
        """The address of a word that holds the symbol's address."""
        if number not in self._pointers:
            constants = self._regions[1]
            place = constants.start + constants.size
            constants.size += _POINTER_BYTES
            self._write(place, "<Q", self.address(self._symbols[number]))
            self._pointers[number] = self._base + place
        return self._pointers[number]

    def _jump(self, number: int) -> int:
        """The address of a jump to a function that may be further away than 32 bits reach."""
        if number not in self._jumps:
            code = self._regions[0]
            place = code.start + code.size
            code.size += _JUMP_BYTES
            distance = self._pointer(number) - (self._base + place + len(_JUMP) + 4)
            self._memory[place : place + len(_JUMP)] = _JUMP
            self._write(place + len(_JUMP), "<i", distance)
            self._jumps[number] = self._base + place
        return self._jumps[number]

    def protect(self) -> None:
        """Make code executable and constants read-only; nothing is both writable and executable."""
        for region in self._regions:
            if region.size:
                _set_protection(self._base + region.start, region.size, region.protection)


def _region(flags: int) -> int:
    if flags & _EXECUTABLE and flags & _WRITE:
        raise _Unfit("code that writes itself")
    return 0 if flags & _EXECUTABLE else 2 if flags & _WRITE else 1


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _process_symbol(name: str) -> int:
    try:
        address = ctypes.cast(_process()[name], ctypes.c_void_p).value
    except AttributeError:
        address = None
    if not address:
        raise _Unfit(f"no symbol {name} in this process")
    return address


def _set_protection(address: int, size: int, protection: int) -> None:
    protect = _process().mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, size, protection):
        raise _Unfit("the system refuses executable memory")
