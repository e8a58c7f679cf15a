"""Python environments of this machine, and which Python and torch each of them holds.

Everything is read from files (pyvenv.cfg, conda-meta, patchlevel.h, names of *.dist-info): listing executes
nothing, so it is safe in a folder that nobody trusts yet. What the files do not say is None. The person's
home is the one that the environment variables name. Read interpreters.py for which one a run takes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.phrases import tr_noop

OWN_PYTHON_TEXT = tr_noop("Rankdeck's own")
_MAX_ENTRIES = 500
"""Of one folder; nobody has more environments beside each other."""
_MAX_FILE_BYTES = 64 << 10
_CONDA_ROOTS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "miniconda", "anaconda")


@dataclass(frozen=True)
class Interpreter:
    """A Python by what its files say.

    `python` is the path that is started; a link of an environment stays one. `kind`: venv | conda | pyenv |
    uv | path. `name` is what a person calls it: ".venv", "base", "3.12.4", "/usr/bin/python3".
    """

    python: Path
    kind: str
    name: str
    python_version: str | None = None
    torch_version: str | None = None

    @property
    def folder(self) -> Path:
        """Of the environment, or where a bare interpreter is installed."""
        return self.python.parent.parent

    @property
    def is_rankdeck(self) -> bool:
        """Whether Rankdeck runs in this environment."""
        return is_rankdeck_environment(self.folder)

    def format_versions(self) -> str:
        """'Python 3.11.7, torch 2.13.0'."""
        python = f"Python {self.python_version}" if self.python_version else "Python of unknown version"
        return f"{python}, torch {self.torch_version}" if self.torch_version else f"{python}, no torch found"


def is_rankdeck_environment(folder: Path) -> bool:
    """Whether this is the folder of the environment that Rankdeck runs in."""
    return _is_same_path(folder, Path(sys.prefix))


def rankdeck_python() -> Path:
    """The Python that Rankdeck runs with."""
    return Path(sys.executable)


def find_python(folder: Path) -> Path | None:
    """The interpreter of an environment's folder; None where there is none that can be started."""
    for name in ("python", "python3"):
        found = folder / "bin" / name
        if is_executable(found):
            return found
    return None


def is_executable(path: Path) -> bool:
    return files.is_regular(path) and os.access(path, os.X_OK)


def describe_interpreter(python: Path, environ: Mapping[str, str]) -> Interpreter:
    """What the files around an interpreter say about it."""
    prefix = python.parent.parent
    settings = _read_pyvenv_cfg(prefix)
    if settings is not None:
        kind, name = "venv", prefix.name
        version = settings.get("version") or _release_version(settings.get("version_info"))
        folders = _venv_site_folders(python, prefix, settings, _minor_version(version, prefix), environ)
    elif (prefix / "conda-meta").is_dir():
        kind, name = "conda", "base" if (prefix / "condabin").is_dir() else prefix.name
        version = _conda_version(prefix)
        folders = _site_folders(prefix, _minor_version(version, prefix))
    else:
        kind, name = _bare_kind(python, environ)
        version, folders = _bare_version_and_folders(python, environ)
    return Interpreter(python, kind, name, version, _torch_version(folders))


def find_interpreters(folder: Path, environ: Mapping[str, str]) -> list[Interpreter]:
    """Every interpreter that is found, each once: those in the folder first, Rankdeck's own last if no other
    place has it.
    """
    found: dict[object, Interpreter] = {}
    for python in _candidates(folder, environ):
        key = _identity(python)
        if key not in found:
            found[key] = describe_interpreter(python, environ)
    return list(found.values())


def _candidates(folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    home = home_of(environ)
    beside = [
        folder / ".venv",
        folder / "venv",
        *_subfolders(folder),
        *_subfolders(folder / ".pixi" / "envs"),
    ]
    active = [Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    managers = [
        *(inner for place in _tool_environment_folders(home, environ) for inner in _subfolders(place)),
        *_conda_prefixes(home, environ),
        *_subfolders(_pyenv_root(home, environ) / "versions"),
        *_subfolders(_uv_folder(home, environ)),
    ]
    for prefix in [*beside, *active, *managers]:
        if (python := find_python(prefix)) is not None and (
            prefix not in beside or is_environment(prefix)  # a folder with a bin/python may be anything
        ):
            yield python
    yield from _path_interpreters(environ)
    yield rankdeck_python()


def is_environment(prefix: Path) -> bool:
    return files.is_regular(prefix / "pyvenv.cfg") or (prefix / "conda-meta").is_dir()


def home_of(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _subfolders(place: Path) -> list[Path]:
    """Folders directly inside, by name; empty where it cannot be read."""
    try:
        entries = list(islice(place.iterdir(), _MAX_ENTRIES))
    except OSError:
        return []
    return sorted(entry for entry in entries if entry.is_dir())


def _tool_environment_folders(home: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where virtualenvwrapper, pipenv and poetry keep environments."""
    return [
        Path(environ.get("WORKON_HOME") or home / ".virtualenvs"),
        home / ".local" / "share" / "virtualenvs",
        home / ".cache" / "pypoetry" / "virtualenvs",
    ]


def _pyenv_root(home: Path, environ: Mapping[str, str]) -> Path:
    return Path(environ.get("PYENV_ROOT") or home / ".pyenv")


def _uv_folder(home: Path, environ: Mapping[str, str]) -> Path:
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _conda_prefixes(home: Path, environ: Mapping[str, str]) -> list[Path]:
    roots = [Path(environ[name]) for name in ("MAMBA_ROOT_PREFIX",) if environ.get(name)]
    if environ.get("CONDA_EXE"):
        roots.append(Path(environ["CONDA_EXE"]).parent.parent)
    roots += [home / name for name in _CONDA_ROOTS]
    roots += [Path("/opt/conda"), Path("/opt/miniconda3")]
    listed = [Path(line) for line in _lines(home / ".conda" / "environments.txt") if line.startswith("/")]
    envs = [root / "envs" for root in roots] + [home / ".conda" / "envs"]
    return [*listed, *roots, *(inner for place in envs for inner in _subfolders(place))]


def _path_interpreters(environ: Mapping[str, str]) -> Iterator[Path]:
    for place in filter(None, environ.get("PATH", "").split(os.pathsep)):
        folder = Path(place)
        if not folder.is_absolute():
            continue  # a relative entry means another folder for everybody
        try:
            names = sorted(islice(folder.glob("python3*"), _MAX_ENTRIES))
        except OSError:
            continue
        for path in [folder / "python", *names]:
            if re.fullmatch(r"python(3(\.\d+)?)?", path.name) and is_executable(path) and _is_binary(path):
                yield path


def _is_binary(path: Path) -> bool:
    """Not a script that chooses an interpreter once it is run (pyenv's shims)."""
    try:
        return files.read_at(path, 0, 2) != b"#!"
    except OSError:
        return False


def _identity(python: Path) -> object:
    """Equal for two paths that start the same Python in the same environment."""
    prefix = python.parent.parent
    return _resolved(prefix) if is_environment(prefix) else _resolved(python)


def _is_same_path(one: Path, other: Path) -> bool:
    return _resolved(one) == _resolved(other)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links that lead in a circle
        return path.absolute()


# What a prefix says about itself.


def _lines(path: Path) -> list[str]:
    try:
        return files.read_text(path, _MAX_FILE_BYTES).splitlines()
    except OSError:
        return []


def _read_pyvenv_cfg(prefix: Path) -> dict[str, str] | None:
    """pyvenv.cfg's settings; None where this is no virtual environment."""
    if not files.is_regular(prefix / "pyvenv.cfg"):
        return None
    pairs = (line.partition("=") for line in _lines(prefix / "pyvenv.cfg"))
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _release_version(version: str | None) -> str | None:
    """'3.11.7' of '3.11.7.final.0', as virtualenv writes it."""
    return ".".join(version.split(".")[:3]) if version else None


def _minor_version(version: str | None, prefix: Path) -> str | None:
    """'3.11', from the version or from the one lib/python3.11 that is there."""
    if version and re.match(r"\d+\.\d+", version):
        return ".".join(version.split(".")[:2])
    libs = [path.name for path in _subfolders(prefix / "lib") if re.fullmatch(r"python\d+\.\d+", path.name)]
    return libs[0].removeprefix("python") if len(libs) == 1 else None


def _conda_version(prefix: Path) -> str | None:
    """From the name of Python's own record: python-3.11.7-h955ad1f_0.json."""
    for record in islice((prefix / "conda-meta").glob("python-*.json"), _MAX_ENTRIES):
        if found := re.fullmatch(r"python-(\d+\.\d+\.\d+\w*)-[^-]+\.json", record.name):
            return found[1]
    return None


def _bare_kind(python: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    home = home_of(environ)
    prefix = python.parent.parent
    for kind, place in (
        ("pyenv", _pyenv_root(home, environ) / "versions"),
        ("uv", _uv_folder(home, environ)),
    ):
        if _is_same_path(prefix.parent, place):
            return kind, prefix.name
    return "path", str(python)


def _bare_version_and_folders(python: Path, environ: Mapping[str, str]) -> tuple[str | None, list[Path]]:
    """Of an interpreter that is no environment: (version, folders of packages)."""
    real = _resolved(python)
    prefix = real.parent.parent
    named = re.fullmatch(r"python(\d+\.\d+)?[a-z0-9]*", real.name)
    minor = named and (named[1] or _minor_version(None, prefix))
    if minor is None:
        return None, []
    return _read_patchlevel(prefix, minor) or minor, [
        _user_site_folder(minor, environ),
        *_site_folders(prefix, minor),
    ]


def _read_patchlevel(prefix: Path, minor: str) -> str | None:
    for folder in (f"python{minor}", f"python{minor}m"):
        header = "\n".join(_lines(prefix / "include" / folder / "patchlevel.h"))
        if found := re.search(r'#define\s+PY_VERSION\s+"([^"]+)"', header):
            return found[1]
    return None


def _user_site_folder(minor: str, environ: Mapping[str, str]) -> Path:
    base = Path(environ.get("PYTHONUSERBASE") or home_of(environ) / ".local")
    return base / "lib" / f"python{minor}" / "site-packages"


def _site_folders(prefix: Path, minor: str | None) -> list[Path]:
    """Where packages are; Debian's own Python has names of its own for them."""
    if minor is None:
        return []
    return [
        prefix / "lib" / f"python{minor}" / "site-packages",
        prefix / "lib64" / f"python{minor}" / "site-packages",
        prefix / "local" / "lib" / f"python{minor}" / "dist-packages",
        prefix / "lib" / "python3" / "dist-packages",
    ]


def _venv_site_folders(
    python: Path, prefix: Path, settings: Mapping[str, str], minor: str | None, environ: Mapping[str, str]
) -> list[Path]:
    found = _site_folders(prefix, minor)
    if settings.get("include-system-site-packages", "").lower() == "true" and minor is not None:
        home = settings.get("home")
        base = Path(home).parent if home else _resolved(python).parent.parent
        if not (base / "lib" / f"python{minor}").is_dir():
            base = _resolved(python).parent.parent  # `home` names a folder of links
        found += [_user_site_folder(minor, environ), *_site_folders(base, minor)]
    return found


def _torch_version(folders: list[Path]) -> str | None:
    """As the name of the first torch-*.dist-info says that Python would come upon."""
    for folder in folders:
        for place in [folder, *_pth_folders(folder)]:
            for pattern in ("torch-*.dist-info", "torch-*.egg-info"):
                names = sorted(path.name for path in islice(place.glob(pattern), _MAX_ENTRIES))
                if names:
                    return names[-1].removeprefix("torch-").rpartition(".")[0].split("-")[0]
    return None


def _pth_folders(folder: Path) -> list[Path]:
    """Folders that the .pth files of a folder of packages add."""
    try:
        pth_files = sorted(islice(folder.glob("*.pth"), _MAX_ENTRIES))
    except OSError:
        return []
    lines = (line.strip() for file in pth_files for line in _lines(file)[:50])
    return [folder / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
