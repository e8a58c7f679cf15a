"""Lists the Python environments of this machine, with their Python and torch versions.

Everything is read from files (pyvenv.cfg, conda-meta, patchlevel.h, names of *.dist-info). No code is
executed, so this is safe in a folder that is not trusted yet. Values that the files do not contain are None.
The home folder is taken from the environment variables. Read interpreters.py for the interpreter that a run
uses.
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
# Bounds, because an untrusted folder may have any number of files of any size.
_MAX_ENTRIES = 500
"""Maximum number of entries to read from a folder."""
_MAX_FILE_BYTES = 64 << 10
_CONDA_ROOTS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "miniconda", "anaconda")


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, described by the files around it.

    `python` is the path to execute; an environment's symlink is not resolved. `kind`: venv | conda | pyenv |
    uv | path. `name` is its short name: ".venv", "base", "3.12.4", "/usr/bin/python3".
    """

    python: Path
    kind: str
    name: str
    python_version: str | None = None
    torch_version: str | None = None

    @property
    def folder(self) -> Path:
        """The environment's folder, or the installation prefix of a bare interpreter."""
        return self.python.parent.parent

    @property
    def is_rankdeck(self) -> bool:
        """Whether this is the environment in which Rankdeck itself is running."""
        return is_rankdeck_environment(self.folder)

    def format_versions(self) -> str:
        """Return text such as 'Python 3.11.7, torch 2.13.0'."""
        python = f"Python {self.python_version}" if self.python_version else "Python of unknown version"
        return f"{python}, torch {self.torch_version}" if self.torch_version else f"{python}, no torch found"


def is_rankdeck_environment(folder: Path) -> bool:
    """Return whether this is the folder of the environment in which Rankdeck itself is running."""
    return _is_same_path(folder, Path(sys.prefix))


def rankdeck_python() -> Path:
    """Return the path of the interpreter in which Rankdeck itself is running."""
    return Path(sys.executable)


def find_python(folder: Path) -> Path | None:
    """Return the path of the executable interpreter in an environment's folder, or None."""
    for name in ("python", "python3"):
        python = folder / "bin" / name
        if is_executable(python):
            return python
    return None


def is_executable(path: Path) -> bool:
    return files.is_regular(path) and os.access(path, os.X_OK)


def describe_interpreter(python: Path, environ: Mapping[str, str]) -> Interpreter:
    """Describe an interpreter from the files around it."""
    prefix = python.parent.parent
    settings = _read_pyvenv_cfg(prefix)
    if settings is not None:
        kind, name = "venv", prefix.name
        # venv writes `version`; uv and virtualenv write `version_info`.
        version = settings.get("version") or _release_version(settings.get("version_info"))
        folders = _venv_site_folders(python, prefix, settings, _minor_version(version, prefix), environ)
    elif (prefix / "conda-meta").is_dir():
        # Only conda's root installation has a condabin folder.
        kind, name = "conda", "base" if (prefix / "condabin").is_dir() else prefix.name
        version = _conda_version(prefix)
        folders = _site_folders(prefix, _minor_version(version, prefix))
    else:
        kind, name = _bare_kind(python, environ)
        version, folders = _bare_version_and_folders(python, environ)
    return Interpreter(python, kind, name, version, _torch_version(folders))


def find_interpreters(folder: Path, environ: Mapping[str, str]) -> list[Interpreter]:
    """Return all interpreters without duplicates.

    Interpreters in `folder` come first. Rankdeck's own interpreter comes last, unless the search finds it
    earlier.
    """
    interpreters: dict[object, Interpreter] = {}
    for python in _candidates(folder, environ):
        key = _identity(python)
        if key not in interpreters:
            interpreters[key] = describe_interpreter(python, environ)
    return list(interpreters.values())


def _candidates(folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    home = home_of(environ)
    local_prefixes = [
        folder / ".venv",
        folder / "venv",
        *_subfolders(folder),
        *_subfolders(folder / ".pixi" / "envs"),
    ]
    active = [Path(environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)]
    managers = [
        *(inner for parent in _tool_environment_folders(home, environ) for inner in _subfolders(parent)),
        *_conda_prefixes(home, environ),
        *_subfolders(_pyenv_root(home, environ) / "versions"),
        *_subfolders(_uv_folder(home, environ)),
    ]
    for prefix in [*local_prefixes, *active, *managers]:
        if (python := find_python(prefix)) is not None and (
            prefix not in local_prefixes
            or is_environment(prefix)  # a folder with a bin/python may be anything
        ):
            yield python
    yield from _path_interpreters(environ)
    yield rankdeck_python()


def is_environment(prefix: Path) -> bool:
    return files.is_regular(prefix / "pyvenv.cfg") or (prefix / "conda-meta").is_dir()


def home_of(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _subfolders(folder: Path) -> list[Path]:
    """Return the direct subfolders, sorted; empty if the folder cannot be read."""
    try:
        entries = list(islice(folder.iterdir(), _MAX_ENTRIES))
    except OSError:
        return []
    return sorted(entry for entry in entries if entry.is_dir())


def _tool_environment_folders(home: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which virtualenvwrapper, pipenv and poetry create environments."""
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
    # Usual locations in container images.
    roots += [Path("/opt/conda"), Path("/opt/miniconda3")]
    # conda lists every environment that it creates in this file, wherever it is.
    listed = [Path(line) for line in _lines(home / ".conda" / "environments.txt") if line.startswith("/")]
    envs = [root / "envs" for root in roots] + [home / ".conda" / "envs"]
    return [*listed, *roots, *(inner for parent in envs for inner in _subfolders(parent))]


def _path_interpreters(environ: Mapping[str, str]) -> Iterator[Path]:
    for entry in filter(None, environ.get("PATH", "").split(os.pathsep)):
        folder = Path(entry)
        if not folder.is_absolute():
            continue  # it depends on the working directory
        try:
            names = sorted(islice(folder.glob("python3*"), _MAX_ENTRIES))
        except OSError:
            continue
        # The pattern excludes python3-config and similar tools.
        for path in [folder / "python", *names]:
            if re.fullmatch(r"python(3(\.\d+)?)?", path.name) and is_executable(path) and _is_binary(path):
                yield path


def _is_binary(path: Path) -> bool:
    """Return whether the file is not a script; scripts such as pyenv's shims choose an interpreter when they
    run."""
    try:
        return files.read_at(path, 0, 2) != b"#!"
    except OSError:
        return False


def _identity(python: Path) -> object:
    """Return a key that is equal for paths that start the same Python in the same environment."""
    prefix = python.parent.parent
    # Environments are compared by folder: their python is often a symlink to a shared interpreter.
    return _resolved(prefix) if is_environment(prefix) else _resolved(python)


def _is_same_path(path: Path, other: Path) -> bool:
    return _resolved(path) == _resolved(other)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a cycle of symlinks
        return path.absolute()


# Versions and package folders of an installation prefix, read from its files.


def _lines(path: Path) -> list[str]:
    try:
        return files.read_text(path, _MAX_FILE_BYTES).splitlines()
    except OSError:
        return []


def _read_pyvenv_cfg(prefix: Path) -> dict[str, str] | None:
    """Return the settings of pyvenv.cfg; None if `prefix` is not a virtual environment."""
    if not files.is_regular(prefix / "pyvenv.cfg"):
        return None
    pairs = (line.partition("=") for line in _lines(prefix / "pyvenv.cfg"))
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _release_version(version: str | None) -> str | None:
    """Return '3.11.7' for '3.11.7.final.0', which virtualenv writes."""
    return ".".join(version.split(".")[:3]) if version else None


def _minor_version(version: str | None, prefix: Path) -> str | None:
    """Return '3.11' from `version`, or from the name of lib/python3.11 if that is the only such folder."""
    if version and re.match(r"\d+\.\d+", version):
        return ".".join(version.split(".")[:2])
    libs = [path.name for path in _subfolders(prefix / "lib") if re.fullmatch(r"python\d+\.\d+", path.name)]
    return libs[0].removeprefix("python") if len(libs) == 1 else None


def _conda_version(prefix: Path) -> str | None:
    """Return Python's version from the name of its conda record: python-3.11.7-h955ad1f_0.json."""
    for record in islice((prefix / "conda-meta").glob("python-*.json"), _MAX_ENTRIES):
        if match := re.fullmatch(r"python-(\d+\.\d+\.\d+\w*)-[^-]+\.json", record.name):
            return match[1]
    return None


def _bare_kind(python: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    home = home_of(environ)
    prefix = python.parent.parent
    for kind, folder in (
        ("pyenv", _pyenv_root(home, environ) / "versions"),
        ("uv", _uv_folder(home, environ)),
    ):
        if _is_same_path(prefix.parent, folder):
            return kind, prefix.name
    return "path", str(python)


def _bare_version_and_folders(python: Path, environ: Mapping[str, str]) -> tuple[str | None, list[Path]]:
    """Return (version, package folders) of an interpreter outside any environment."""
    # The version is in the name of the symlink's target: python3 -> python3.11.
    real = _resolved(python)
    prefix = real.parent.parent
    named = re.fullmatch(r"python(\d+\.\d+)?[a-z0-9]*", real.name)
    minor = named and (named[1] or _minor_version(None, prefix))
    if minor is None:
        return None, []
    # The user's own folder is first, as in sys.path.
    return _read_patchlevel(prefix, minor) or minor, [
        _user_site_folder(minor, environ),
        *_site_folders(prefix, minor),
    ]


def _read_patchlevel(prefix: Path, minor: str) -> str | None:
    for folder in (f"python{minor}", f"python{minor}m"):
        header = "\n".join(_lines(prefix / "include" / folder / "patchlevel.h"))
        if match := re.search(r'#define\s+PY_VERSION\s+"([^"]+)"', header):
            return match[1]
    return None


def _user_site_folder(minor: str, environ: Mapping[str, str]) -> Path:
    base = Path(environ.get("PYTHONUSERBASE") or home_of(environ) / ".local")
    return base / "lib" / f"python{minor}" / "site-packages"


def _site_folders(prefix: Path, minor: str | None) -> list[Path]:
    """Return the package folders of a prefix, including the ones that Debian's Python uses."""
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
    folders = _site_folders(prefix, minor)
    if settings.get("include-system-site-packages", "").lower() == "true" and minor is not None:
        home = settings.get("home")
        # `home` in pyvenv.cfg is the bin folder of the base interpreter.
        base = Path(home).parent if home else _resolved(python).parent.parent
        if not (base / "lib" / f"python{minor}").is_dir():
            base = _resolved(python).parent.parent  # `home` may be a folder of symlinks
        folders += [_user_site_folder(minor, environ), *_site_folders(base, minor)]
    return folders


def _torch_version(folders: list[Path]) -> str | None:
    """Return torch's version from the first torch-*.dist-info or .egg-info in Python's search order."""
    for folder in folders:
        for search_folder in [folder, *_pth_folders(folder)]:
            for pattern in ("torch-*.dist-info", "torch-*.egg-info"):
                names = sorted(path.name for path in islice(search_folder.glob(pattern), _MAX_ENTRIES))
                if names:
                    # The name of an egg-info may continue with the Python version:
                    # torch-1.13.0-py3.8.egg-info.
                    return names[-1].removeprefix("torch-").rpartition(".")[0].split("-")[0]
    return None


def _pth_folders(folder: Path) -> list[Path]:
    """Return the folders that the .pth files in a package folder add to the search path."""
    try:
        pth_files = sorted(islice(folder.glob("*.pth"), _MAX_ENTRIES))
    except OSError:
        return []
    lines = (line.strip() for file in pth_files for line in _lines(file)[:50])
    # Python executes the lines that start with import; nothing is executed here.
    return [folder / line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
