"""Compiling kernels: the decorator, the cache on disk, and the line that says so.

Law: a stale kernel can never run. Numba decides by the time stamp of *one* source file whether a
compiled function in its cache is fresh, so it misses an edit in a function that was inlined from
another file, or in a table; and if a process dies after the index was written but before the
machine code was, an older file under the same name is taken for the new one. Both need an older
file in the same directory. Here every state of the sources has a directory of its own, named by
their digest, so there is none.

Nor can a damaged one: a power cut may leave a file cut off, or full of zeros. Numba would fail at
it in every process until somebody deletes it, and run what it can still decode. Here a digest in
front of the content is compared first, and what is damaged is said, compiled and written anew.
It is no defence against somebody who can write to the directory, where all is there to be run.

A directory that another user can write to would let them run code here, so there is no fall-back to
a shared temporary directory: where the user's cache directory cannot be written, nothing is cached,
and that is said.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import llvmlite
import numba
import numpy as np
import platformdirs
from llvmlite import binding as llvm
from numba.core import event, types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
)
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import CPUDispatcher
from numba.core.types.containers import BaseTuple
from numba.core.typing.typeof import Purpose, typeof
from numba.np import numpy_support

_PACKAGE = Path(__file__).resolve().parent.parent
_logger = logging.getLogger("bpe")


def sources() -> list[Path]:
    """The files whose content decides what the kernels do, in a fixed order: code and tables."""
    return [*sorted((_PACKAGE / "kernels").glob("*.py")), *sorted(_PACKAGE.glob("unicode_*"))]


def source_digest() -> str:
    """Hexadecimal digest of all kernel sources and tables, and of the compiler's version."""
    digest = hashlib.sha256(f"numba {numba.__version__} llvmlite {llvmlite.__version__}".encode())
    for path in sources():
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:32]


def _writable_cache_directory() -> str | None:
    base = os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_dir("tokenbin", False)
    directory = Path(base, f"kernels-{source_digest()}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        _logger.warning(
            "kernels are compiled anew in every process, because their cache %s cannot be written"
            " (%s); set NUMBA_CACHE_DIR to a directory of yours",
            directory,
            error.strerror,
        )
        return None
    return str(directory)


# With compilation switched off there is nothing to cache.
CACHE_DIRECTORY = None if numba.config.DISABLE_JIT else _writable_cache_directory()


class _CacheFile(IndexDataCacheFile):
    """Numba's files of one function, with a digest in front of what numba writes.

    Its index begins with numba's version, which is written apart from that.
    """

    said: ClassVar[set[str]] = set()

    # With the machine code goes what it is for: after a damaged index, numbers of files are given
    # once more, and what two processes write at the same moment can get the number of the other.

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        of, data = super().load(key) or (None, None)
        return data if of == key else None

    def _dump(self, content: Any) -> bytes:
        data: bytes = super()._dump(content)
        return hashlib.sha256(data).digest() + data

    def _load_index(self) -> Any:
        header = pickle.dumps(self._version, protocol=-1)
        stamp, overloads = self._loaded(self._index_path, header) or (None, {})
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        return self._loaded(self._data_path(name), b"")

    def _loaded(self, path: str, header: bytes) -> Any:
        """What a file holds, or None: there is none, or it is damaged, and will be overwritten."""
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say_damaged(path, error.strerror)
            return None
        data_at = len(header) + hashlib.sha256().digest_size
        data = content[data_at:]
        if content[:data_at] != header + hashlib.sha256(data).digest():
            self._say_damaged(path, "its content is not what was written")
            return None
        return pickle.loads(data)

    @classmethod
    def _say_damaged(cls, path: str, why: str | None) -> None:
        cls.say(
            "kernels are compiled anew where their cache is damaged; the first such file is %s"
            " (%s)",
            path,
            why,
        )

    @staticmethod
    def say(message: str, *details: object) -> None:
        """Say what is wrong, each thing once per process: after a power cut it may be all files."""
        if message not in _CacheFile.said:
            _CacheFile.said.add(message)
            _logger.warning(message, *details)


# Numba's method that gives the code of one kernel to what is linked with it.
_LLVM_CODE = "_get_module_for_linking"


class _CompiledKernel(CompileResultCacheImpl):
    """What is kept of a compiled kernel: numba's, with its LLVM code apart.

    That is for other kernels that are compiled later and call this one; a process that only runs
    kernels needs none of it, and to parse it took half of the time of loading them. From it numba
    takes which functions there are, too: for that, functions of the same names that trap take its
    place, so that nothing can go on with them. A numba without the method that is replaced here
    gets the code at once.
    """

    def reduce(self, cres: Any) -> Any:
        reduced = super().reduce(cres)
        if not hasattr(cres.library, _LLVM_CODE):
            return reduced, None
        (name, kind, (machine_code, llvm_code)), *others = reduced
        functions = llvm.parse_bitcode(llvm_code).functions
        stand_in = 'define void @"{}"() {{ call void @llvm.trap() ret void }}'
        symbols = [stand_in.format(each.name) for each in functions if not each.is_declaration]
        symbols.append("declare void @llvm.trap()")
        stand_ins = llvm.parse_assembly("\n".join(symbols)).as_bitcode()
        return ((name, kind, (machine_code, stand_ins)), *others), llvm_code

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        reduced, llvm_code = payload
        result = super().rebuild(target_context, reduced)
        if llvm_code is not None:
            parsed = functools.cache(lambda: llvm.parse_bitcode(llvm_code))
            setattr(result.library, _LLVM_CODE, parsed)
        return result


class _Cache(FunctionCache):
    """Numba's cache of one function, which does not get ready to compile.

    Numba's own loads all types that it knows before it looks for machine code, which needs none;
    where there is no machine code, the compiler loads them itself.
    """

    _impl_class = _CompiledKernel

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _CacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            # What was compiled can be used all the same.
            _CacheFile.say(
                "kernels are compiled anew in the next process, because %s cannot be written (%s)",
                error.filename or self.cache_path,
                error.strerror,
            )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        # NUMBA_BOUNDSCHECK makes other code, of which numba's own key says nothing. It is read anew
        # whenever something is compiled, so it cannot be said by the name of the directory. What a
        # kernel closes over is said by its name, which the name of its file has in it.
        code = hashlib.sha256(self._py_func.__code__.co_code).hexdigest()
        return sig, codegen.magic_tuple(), code, numba.config.BOUNDSCHECK


def _own_name(function: Callable[..., Any]) -> str:
    """The qualified name of a kernel; of one made inside a function with a digest of what it is.

    Machine code of several processes comes together in one, from the cache, and there names decide
    what calls what: two kernels of one name that close over different numbers, or that one function
    makes in two ways, must not meet. Numba puts a number behind the names, but each process counts
    for itself.

    Raises:
        TypeError: It closes over something else than numbers and kernels that are there already.
    """
    name = function.__qualname__
    if "<locals>" not in name:
        return name
    code = function.__code__
    constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
    what = [code.co_firstlineno, code.co_code.hex(), constants, function.__defaults__]
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # what Python says of one that is made further down
            value = None
        if isinstance(value, _Dispatcher):
            what.append(f"{value.py_func.__module__}.{value.py_func.__qualname__}")
        elif isinstance(value, int | np.generic):
            what.append(f"{type(value).__name__} {value!r}")
        else:
            raise TypeError(
                f"{name} closes over {variable}, {type(value).__name__}; kernels may close over"
                " numbers, and over kernels that are made before them"
            )
    return f"{name}_{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


# Numba has types only as long as somebody else has them. Its own dispatcher keeps those of a call
# until that ends, for all threads in one set, which whoever ends first empties.
_TYPES: set[Any] = set()


def _type_of(value: Any) -> Any:
    """What numba takes an argument for: its `typeof`, which imports numpy.ma for any array.

    Raises:
        ValueError: Numba has no type for it, or `NumbaError`, which says so, too.
    """
    if type(value) is np.ndarray:
        dtype, layout = numpy_support.from_dtype(value.dtype), numpy_support.map_layout(value)
        return types.Array(dtype, value.ndim, layout, readonly=not value.flags.writeable)
    if isinstance(value, tuple):
        return BaseTuple.from_types([_type_of(each) for each in value], type(value))
    return typeof(value, Purpose.argument)


class _Dispatcher(CPUDispatcher):
    """Numba's dispatcher, without what takes half a second at the first call of a process.

    Extensions of numba that other packages bring are loaded with the compiler or not at all: our
    kernels have arrays and integers. While they are, types must not be looked up: two workers
    whose first kernels came at the same moment could fail with "dictionary changed size during
    iteration". So that waits for the lock under which numba compiles.
    """

    def _compilation_chain_init_hook(self) -> None:
        pass

    def typeof_pyval(self, val: Any) -> Any:
        with global_compiler_lock:
            try:
                found = _type_of(val)
            except (NumbaError, ValueError):
                # Numba says in its way what is wrong with it.
                return super().typeof_pyval(val)
            _TYPES.add(found)
            return found

    _its_cache: Any

    @property
    def _cache(self) -> Any:
        """Of the kernels that are made, few are called: only those need a cache."""
        with global_compiler_lock:
            if isinstance(self._its_cache, NullCache) and CACHE_DIRECTORY is not None:
                # Numba chooses the place of a cache when that is made, so its setting is ours only
                # for that moment and other users of numba in the process are left alone.
                before = numba.config.CACHE_DIR
                numba.config.CACHE_DIR = CACHE_DIRECTORY
                try:
                    self._its_cache = _Cache(self.py_func)
                finally:
                    numba.config.CACHE_DIR = before
            return self._its_cache

    @_cache.setter
    def _cache(self, cache: Any) -> None:
        self._its_cache = cache


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` without the GIL at its first call, and keep the machine code.

    Kernels do without numba's reference counts (`_nrt=False`): these are atomic instructions,
    several for each array that is passed on, put under another name or taken out of a tuple, and
    were half of the time of splitting. A kernel can therefore allocate nothing; outputs and scratch
    come from the caller.
    """
    if numba.config.DISABLE_JIT:
        return function
    function.__qualname__ = _own_name(function)
    options = {"nopython": True, "nogil": True, "_nrt": False, "boundscheck": None}
    return _Dispatcher(function, targetoptions=options)


class _CompilationNotice(event.Listener):
    """Says once per process that kernels are being compiled, so that nobody takes it for a hang."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        if not self.said and module.startswith("bpe.kernels"):
            self.said = True
            _logger.warning(
                "compiling kernels for this machine; this happens once and takes up to a minute"
            )

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _CompilationNotice())
