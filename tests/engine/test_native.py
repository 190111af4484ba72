"""The loader of compiled kernels: what it refuses, and that nothing stands in the way where there is no compiler."""

import fcntl
import re
import time
from functools import cache, partial
from pathlib import Path
from threading import Barrier, Thread, current_thread, main_thread

import pytest
import torch

from tiebreak.engine import native, prebuilt
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import threads
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import DType

needs_compiler = pytest.mark.skipif(native._compiler() is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("TIEBREAK_CACHE", str(cache))
    monkeypatch.delenv("CC", raising=False)
    return cache


def kernel(folder: Path, value: int, name: str = "one.c") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "value.h").write_text(f"#define VALUE {value}\n")
    source = folder / name
    source.write_text('#include "value.h"\nint value(void) { return VALUE; }\n')
    return source


def refusal(source: Path) -> str:
    """The reason why there is no library."""
    built = native.load(source)
    assert built.library is None
    return built.reason


def test_kernel_threads_do_not_flush_subnormals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the thread does that makes them; and so does a step."""
    met, b, small = Barrier(2), Builder(), torch.tensor([2.0**-140])
    monkeypatch.setattr(threads, "_pool", cache(threads._pool.__wrapped__))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always keeps them")

    def keeps() -> tuple[bool, bool]:
        met.wait()
        return current_thread() is main_thread(), bool(small * 1 != 0)

    try:
        assert sorted(threads.together(keeps, 2)) == [(False, True), (True, False)]
        halved = b.scale(b.state("x", DType.F32, (1,)), 0.5)
        machine = Interpreter(b.finish({"x": halved}, b.sum(halved)), Arithmetic())
        assert machine.step(1, {"x": small}, {}).state["x"].view(torch.int32).item() == 1 << 8
    finally:
        torch.set_flush_denormal(False)


def test_an_interrupted_thread_waits_for_its_kernels() -> None:
    met, done = Barrier(2), list[bool]()

    def work() -> None:
        met.wait()
        if current_thread() is main_thread():
            raise KeyboardInterrupt
        time.sleep(0.1)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        threads.together(work, 2)
    assert done


@needs_compiler
def test_a_compiled_kernel_is_cached_by_content(tmp_path: Path, own_cache: Path) -> None:
    for value in (1, 2, 1):  # a header counts as content
        built = native.load(kernel(tmp_path / str(value), value))
        assert built.library is not None
        assert built.library.value() == value
    assert len(list((own_cache / "native").glob("one-*.so"))) == 2
    assert (own_cache / "native").stat().st_mode & 0o077 == 0


def test_compiled_kernels_can_be_disabled_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    assert native.load(kernel(tmp_path, 3)) == native.Build(None, "switched off by TIEBREAK_NATIVE=0")


def test_a_missing_c_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "nothing"))
    assert "no C compiler" in refusal(kernel(tmp_path, 4))


@needs_compiler
def test_a_kernel_that_does_not_compile_is_reported_with_the_error(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int value(void) { return nothing; }\n")
    assert re.search("broken.c: .*nothing", refusal(source))


@needs_compiler
@pytest.mark.parametrize("shared", ["parent", "folder", "library", "link"])
def test_a_kernel_below_a_world_writable_path_is_refused(tmp_path: Path, own_cache: Path, shared: str) -> None:
    """Whoever can write there could have us load any code."""
    source = kernel(tmp_path, 7)
    assert native.load(source).library is not None
    native._load.cache_clear()
    (library,) = (own_cache / "native").glob("*.so")
    match shared:
        case "parent":
            own_cache.chmod(0o777)
        case "folder":
            library.parent.chmod(0o777)
        case "library":
            library.chmod(0o666)
        case _:
            library.rename(tmp_path / "elsewhere")
            library.symlink_to(tmp_path / "elsewhere")
    assert ("symbolic links" if shared == "link" else "writable by this user alone") in refusal(source)
    native._load.cache_clear()
    own_cache.chmod(0o1777)  # as /tmp is
    library.parent.chmod(0o700)
    library.unlink()
    assert native.load(source).library is not None


@needs_compiler
def test_kernels_are_compiled_with_wrapping_signed_integers(tmp_path: Path) -> None:
    source = tmp_path / "wraps.c"
    source.write_text("int value(int x) { return x + 1 > x; }\n")
    built = native.load(source)
    assert built.library is not None
    assert built.library.value(2**31 - 1) == 0


@needs_compiler
def test_a_kernel_cache_that_cannot_be_created_is_reported(tmp_path: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    assert str(own_cache) in refusal(kernel(tmp_path, 6))


def test_the_cache_directory_follows_environment_variables(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, tmp_path: Path
) -> None:
    assert native.cache_directory() == own_cache
    monkeypatch.delenv("TIEBREAK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_directory() == tmp_path / "tiebreak"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert native.cache_directory() == Path.home() / ".cache" / "tiebreak"


def test_kernels_compile_in_parallel_despite_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails spoils nothing else. A user who waits is told why, once."""
    monkeypatch.setattr(native, "PATIENCE_S", 0)
    jobs = [(tmp_path / str(number)).touch for number in range(5)]
    native.compile_in_parallel([partial(int, "x"), *jobs, partial(time.sleep, 0.3)], tmp_path / "cache")
    assert all((tmp_path / str(number)).exists() for number in range(5))
    assert capsys.readouterr().err == "compiling 7 GPU kernels once\n"


def test_only_one_process_at_a_time_compiles_kernels(tmp_path: Path) -> None:
    with (tmp_path / ".tiebreak").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = Thread(target=native.compile_in_parallel, args=([(tmp_path / "compiled").touch], tmp_path))
        other.start()
        other.join(0.2)
        assert not (tmp_path / "compiled").exists()
    other.join()
    assert (tmp_path / "compiled").exists()


@needs_compiler
def test_a_kernel_of_the_wheel_is_loaded_only_if_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its processor, by its source, and by what this system can load; a compiler that `CC` names is preferred."""
    source, machine = kernel(tmp_path / "package", 8), native.platform.machine()
    better, plain = (
        prebuilt.InstructionSet("better", ("-O2",), frozenset({"no such feature"})),
        prebuilt.InstructionSet("plain", (), frozenset()),
    )
    monkeypatch.setitem(prebuilt.LEVELS, machine, (better, plain))
    prebuilt.folder(source).mkdir()
    prebuilt.library(source, better).write_bytes(b"of another processor")
    prebuilt.library(source, plain).write_bytes(b"of another system")

    def loaded() -> tuple[int, str]:
        native._load.cache_clear()
        built = native.load(source)
        assert built.library is not None
        return built.library.value(), built.reason

    assert loaded()[0] == 8
    compiler = native._compiler()
    assert compiler is not None
    native._build(kernel(tmp_path / "other", 9), compiler, prebuilt.library(source, plain))
    assert loaded() == (9, "compiled for plain (wheel)")
    monkeypatch.setenv("CC", compiler[0])
    assert loaded()[0] == 8
    monkeypatch.delenv("CC")
    kernel(tmp_path / "package", 10)  # no library is of this source
    assert loaded()[0] == 10
