"""What is done to a run's files and folders, as data: a failure prints it, and it is done again from there.

Places are numbers, taken modulo what there is: the same damage fits every run, and less of it is still some.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from hypothesis import strategies as st

from rankdeck.base import files
from rankdeck.checkpoint_files import Progress, file_checksum, write_commit
from rankdeck.run import row_index
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.race import Race
from rankdeck.run_dir.directory import ExitRecord
from tests.fuzz import values

CANARY = "outside"
"""Beside the runs: nothing in there may change."""
PICKLE = b'cposix\nsystem\n(Vecho x >> "$RANKDECK_CANARY"\ntR.'
KINDS = (
    "pipe",
    "socket",
    "device",
    "loop",
    "canary",
    "canary folder",
    "folder",
    "unreadable",
    "huge",
    "gone",
    "empty",
    "long",
    "pickle",
)
NAMES = (
    b"config.7.toml",
    b"environment.3.json",
    b"events/rank-99999999.0.jsonl",
    b"events/rank-0.99999999999999999999.jsonl",
    b"events/supervisor.7.jsonl",
    b"events/rank-\xff.0.jsonl",
    b"events/\xff\xfe.jsonl",
    b"events/sampler.0.jsonl",
    "events/rank-0.\u0663.jsonl".encode(),
    "checkpoints/\u00b2/COMMIT".encode(),
    "checkpoints/\u0663/COMMIT".encode(),
    b"checkpoints/" + b"9" * 200 + b"/COMMIT",
    b"checkpoints/13/COMMIT",
    b"checkpoints/12/x.safetensors",
    b"logs/rank-0.0.err",
    b"logs/supervisor.0.err",
    b"ways-out.0.jsonl",
    b"labels.json",
    b"race.json",
    b"stop.request",
    b"requests/save.request",
    b"canary.py",
)
DOCUMENTS: dict[str, Any] = {
    "end.json": ExitRecord,
    "plan.json": PlanLine,
    "ways-out.0.jsonl": PlanLine,
    "race.json": Race,
    "checkpoints/12/progress.json": Progress,
}


def _files(run: Path) -> list[Path]:
    paths = (path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in paths if path.stat().st_size < 1 << 24)


def _named(run: Path, name: bytes) -> Path:
    return run / os.fsdecode(name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Bytes:
    """`length` bytes of the `file`th file from `at` (thousandths of it) on become `other`."""

    file: int
    at: int
    length: int
    other: bytes
    times: int = 1

    def do(self, run: Path) -> None:
        if paths := _files(run):
            path = paths[self.file % len(paths)]
            data = path.read_bytes()
            start = len(data) * self.at // 1000
            path.write_bytes(data[:start] + self.other * self.times + data[start + self.length :])


@dataclass(frozen=True)
class Tree:
    """Of a line of JSON, or of a TOML file, what `way` leads to becomes `value`; or it goes, becomes longer,
    or is called otherwise."""

    file: int
    line: int
    way: tuple[int, ...]
    what: str
    value: Any

    def do(self, run: Path) -> None:
        paths = [
            path
            for path in _files(run)
            if path.suffix in (".json", ".jsonl", ".toml") or path.name == "COMMIT"
        ]
        if not paths:
            return
        path = paths[self.file % len(paths)]
        text = path.read_text("utf-8", "surrogateescape")
        try:
            if path.suffix == ".toml":
                path.write_text(tomlkit.dumps(self._changed(tomllib.loads(text))), "utf-8", "replace")
                return
            lines = text.splitlines(keepends=True) if path.suffix == ".jsonl" else [text]
            at = self.line % max(1, len(lines))
            changed = as_json(self._changed(json.loads(lines[at])))
            lines[at] = changed + "\n"
            path.write_text("".join(lines), "utf-8", "surrogatepass")
        except (ValueError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
            pass  # damaged before, or no value of TOML

    def _changed(self, tree: Any) -> Any:
        above: list[tuple[Any, Any]] = []
        here = tree
        for step in self.way:
            keys = (
                list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else []
            )
            if not len(keys):
                break
            key = keys[step % len(keys)]
            above.append((here, key))
            here = here[key]
        if not above:
            return self.value
        holder, key = above[-1]
        if self.what == "gone":
            del holder[key]
        elif self.what == "longer" and isinstance(here, list):
            holder[key] = here * 3
        elif self.what == "key" and isinstance(holder, dict):
            holder[str(self.value)[:100]] = holder.pop(key)
        else:
            holder[key] = self.value
        return tree


@dataclass(frozen=True)
class Line:
    """One more event at the end of a file."""

    name: bytes
    event: dict[str, Any]

    def do(self, run: Path) -> None:
        path = _named(run, self.name)
        if path.parent.is_dir() and not path.is_symlink() and (path.is_file() or not path.exists()):
            with path.open("a", encoding="utf-8", errors="surrogatepass") as file:
                file.write(as_json(self.event) + "\n")


@dataclass(frozen=True)
class Document:
    """A file with other words of the right types."""

    name: str
    value: Any

    def do(self, run: Path) -> None:
        path = run / self.name
        if path.parent.is_dir():
            _remove(path)
            path.write_text(as_json(self.value), "utf-8", "surrogatepass")


@dataclass(frozen=True)
class Instead:
    """Something else in a file's place, or under a name that no run has."""

    name: bytes | int
    kind: str

    def do(self, run: Path) -> None:
        if isinstance(self.name, bytes):
            path = _named(run, self.name)
        else:
            every = sorted(run.rglob("*"))
            path = every[self.name % len(every)] if every else run / "x"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove(path)
            put(path, self.kind)
        except OSError:
            pass  # damaged before


def put(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            folder = os.open(path.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as unix_socket:
                unix_socket.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case "canary" | "canary folder":
            path.symlink_to(_outside(path) / ("canary" if kind == "canary" else "folder"))
        case "folder":
            (path / "a" / "b").mkdir(parents=True)
        case "closed":
            path.mkdir(0)
        case "unreadable":
            path.write_bytes(b"{}")
            path.chmod(0)
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << (24 if path.suffix == ".safetensors" else 36))  # weights may be large
        case "long":
            path.write_bytes(b"a=[" * (path.suffix == ".toml") + b"[" + b"{}," * 10**7 + b"{}]")
        case "empty":
            path.touch()
        case "pickle":
            path.write_bytes(PICKLE)


def _outside(path: Path) -> Path:
    """Beside the folder of runs that the path is in."""
    depth = len(path.parts) - 1 - path.parts[::-1].index("runs")
    return Path(*path.parts[:depth]) / CANARY


@dataclass(frozen=True)
class Many:
    """A folder with very many entries, or a very deep one."""

    name: str
    count: int
    is_deep: bool

    def do(self, run: Path) -> None:
        folder, _, file = self.name.rpartition("/")
        target = run / folder
        try:
            target.mkdir(exist_ok=True)
            if not self.is_deep:
                for number in range(self.count):
                    (target / file.replace("#", str(number))).touch()
                return
            folder_handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
            for _ in range(self.count // 10):
                os.mkdir("d" * 50, dir_fd=folder_handle)
                inner = os.open("d" * 50, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder_handle)
                os.close(folder_handle)
                folder_handle = inner
            os.close(folder_handle)
        except OSError:
            pass


@dataclass(frozen=True)
class Commit:
    """Every checkpoint is committed as it is by now: its checksums fit."""

    def do(self, run: Path) -> None:
        for step in (run / "checkpoints").glob("*"):
            try:
                candidates = [
                    file for file in step.iterdir() if file.is_file() and file.stat().st_size < 1 << 24
                ]
                listed = {
                    file.name: (file.stat().st_size, file_checksum(file))
                    for file in candidates
                    if file.name != "COMMIT"
                }
                write_commit(step, listed)
            except (OSError, UnicodeEncodeError):
                pass


@dataclass(frozen=True)
class Foreign:
    """The configuration names code that tells when it runs."""

    section: str
    use: str

    def do(self, run: Path) -> None:
        try:
            tables = tomllib.loads(files.read_text(run / "config.toml"))
            tables[self.section] = {"use": self.use}
            (run / "config.toml").write_text(tomlkit.dumps(tables), "utf-8")
        except (OSError, ValueError):
            pass  # damaged before


@dataclass(frozen=True)
class KeptRow:
    """What the cache of rows says of the run, which it takes for true; else bytes of that file."""

    row: dict[str, Any] | bytes

    def do(self, run: Path) -> None:
        if isinstance(self.row, bytes):
            files.write_atomic(row_index.index_file(run.parent), self.row)
            return
        stamp, _ = row_index.read_stamp(run)
        try:
            row = msgspec.msgpack.encode({**self.row, "path": str(run)})
        except (UnicodeEncodeError, OverflowError):
            return
        row_index._write_index(run.parent, {run.name: (stamp, row)})


Damage = Foreign | KeptRow | Bytes | Tree | Line | Document | Instead | Many | Commit

PLACES = st.integers(0, 99)
LINES: st.SearchStrategy[Damage] = st.builds(
    Line,
    st.sampled_from(
        [
            b"events/rank-0.0.jsonl",
            b"events/rank-1.0.jsonl",
            b"events/supervisor.0.jsonl",
            b"events/supervisor.1.jsonl",
            b"events/sampler.0.jsonl",
            b"events/rank-0.1.jsonl",
        ]
    ),
    values.event(),
)
DAMAGE: st.SearchStrategy[Damage] = st.one_of(
    st.builds(
        Bytes,
        PLACES,
        st.integers(0, 1000),
        st.sampled_from([0, 0, 1, 2, 8, 1000, 10**6]),
        st.binary(max_size=8)
        | st.sampled_from([b"\n", b"\0", b"\xff", b"[", b'{"', b"9" * 20, b"\xef\xbb\xbf", b"-", b"1e999"]),
        st.sampled_from([1, 1, 1, 2, 500, 100_000]),
    ),
    st.builds(
        Tree,
        PLACES,
        PLACES,
        st.lists(PLACES, min_size=1, max_size=5).map(tuple),
        st.sampled_from(["other", "other", "other", "gone", "longer", "key"]),
        values.ANYTHING,
    ),
    st.one_of(*(st.builds(Document, st.just(name), values.of(kind)) for name, kind in DOCUMENTS.items())),
    st.builds(
        Document,
        st.sampled_from(
            ["labels.json", "environment.json", "end.json", "checkpoints/12/COMMIT", "config.toml"]
        ),
        values.ANYTHING,
    ),
    st.builds(Instead, st.integers(0, 99) | st.sampled_from(NAMES), st.sampled_from(KINDS)),
    st.just(Commit()),
    st.builds(
        Foreign,
        st.sampled_from(["model", "data", "loss", "script"]),
        st.sampled_from(["canary:x", "canary.py:x", "../../outside/canary.py:x", "os:system"]),
    ),
    st.builds(KeptRow, st.binary(max_size=40) | values.of(row_index.RunInfo)),
)
MANY: st.SearchStrategy[Damage] = st.builds(
    Many,
    st.sampled_from(
        [
            "events/rank-#.0.jsonl",
            "events/rank-0.#.jsonl",
            "events/supervisor.#.jsonl",
            "checkpoints/#",
            "logs/rank-#.0.err",
            "config.#.toml",
            "x/#",
            "#",
        ]
    ),
    st.sampled_from([100, 2000]),
    st.booleans(),
)


def as_json(value: Any) -> str:
    """As `json.dumps`, and what stands for a deep nesting is one."""
    return json.dumps(value, ensure_ascii=False).replace(json.dumps(values.DEEP), "[" * 500 + "]" * 500)


def damages() -> st.SearchStrategy[list[Damage]]:
    """First the lines: they have to be there when files are broken."""
    many = st.one_of(*[st.just([])] * 60, st.lists(MANY, max_size=1))
    strategies = st.tuples(st.lists(LINES, max_size=12), st.lists(DAMAGE, max_size=4), many)
    return strategies.map(lambda lists: [damage for group in lists for damage in group])
