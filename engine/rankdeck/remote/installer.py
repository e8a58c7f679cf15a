"""Install this version of Rankdeck on another host, from a wheel that is built locally and sent over ssh.

Rankdeck is installed into its own virtual environment in ~/.local/share/rankdeck, or into the environment of
the Python interpreter that the user chooses. The host's pip installs the dependencies from the package
index that it is configured to use, including the same version of torch as on the local host.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import rankdeck
from rankdeck.base import packages
from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.config import presets
from rankdeck.remote import ssh

_DIST_NAME = f"rankdeck-{rankdeck.__version__}"
_WHEEL_METADATA = "Wheel-Version: 1.0\nGenerator: rankdeck\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nrankdeck = rankdeck.__main__:main\n"
# pip leaves a package of the same version as it is, but its code may differ: the second call replaces it.
_INSTALL_SCRIPT = """\
set -e
own=$HOME/.local/share/rankdeck wheel=$1 torch=$2 python=$3
shift 3
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
cat > "$wheels/$wheel"
if [ -z "$python" ]; then
    for one in "$own/bin/python" python3 python3.13 python3.12 python3.11; do
        "$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        python=$one
        break
    done
    [ -n "$python" ] || { echo "No Python 3.11 or newer was found on this host." >&2; exit 3; }
    [ -x "$own/bin/python" ] || "$python" -m venv "$own" >&2
    python=$own/bin/python
fi
"$python" -m pip install --disable-pip-version-check "$wheels/$wheel" $torch "$@" >&2
"$python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall "$wheels/$wheel" >&2
program=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/rankdeck
if [ "$program" != "$own/bin/rankdeck" ] && [ -x "$program" ]; then
    mkdir -p "$own/bin"
    ln -sf "$program" "$own/bin/rankdeck"
fi
"""


def build_wheel() -> bytes:
    """Build a wheel of the running version of Rankdeck."""
    written, record = io.BytesIO(), list[str]()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in _wheel_files():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            packed.writestr(name, data)
        packed.writestr(
            f"{_DIST_NAME}.dist-info/RECORD", "".join([*record, f"{_DIST_NAME}.dist-info/RECORD,,\n"])
        )
    return written.getvalue()


def _wheel_files() -> Iterator[tuple[str, bytes]]:
    """Yield (path in the wheel, contents) for every file of the wheel except RECORD."""
    package = Path(rankdeck.__file__).parent
    for prefix, folder in (("rankdeck", package), ("rankdeck/_presets", presets.presets_folder())):
        for file in sorted(folder.rglob("*")):
            inside = file.relative_to(folder)
            is_ours = not {"__pycache__", "_presets"}.intersection(inside.parts)
            if is_ours and file.is_file():
                yield f"{prefix}/{inside.as_posix()}", file.read_bytes()
    metadata = importlib.metadata.distribution("rankdeck").read_text("METADATA") or ""
    headers, gap, body = metadata.partition("\n\n")
    # The license files are not in this wheel, so its metadata must not name them.
    lines = [line for line in headers.splitlines() if not line.startswith("License-File:")]
    yield f"{_DIST_NAME}.dist-info/METADATA", ("\n".join(lines) + "\n" + gap + body).encode()
    yield f"{_DIST_NAME}.dist-info/WHEEL", _WHEEL_METADATA.encode()
    yield f"{_DIST_NAME}.dist-info/entry_points.txt", _ENTRY_POINTS.encode()


def install_on_host(host: str, *, python: str = "", pip_args: Sequence[str] = ()) -> None:
    """Install Rankdeck on a host; pip's output appears on stderr.

    `python` names the environment's interpreter; `pip_args` are additional arguments for pip.

    Raises:
        MachineError: the installation failed.
    """
    # A multi-host run refuses hosts with different versions of torch.
    torch = packages.package_version("torch")
    command = ssh.shell_command(
        host, _INSTALL_SCRIPT, f"{_DIST_NAME}-py3-none-any.whl", f"torch=={torch}", python, *pip_args
    )
    try:
        code = subprocess.run(command, input=build_wheel(), check=False).returncode
    except OSError as error:
        raise ssh.connection_error(host, None, [f"{error.filename}: {error.strerror}"]) from None
    if code:
        raise MachineError(
            phrase("Rankdeck could not be installed on {host} (exit code {code}).", host=host, code=code),
            code="not-installed",
            advice=phrase(
                "See the output above. The host needs Python 3.11 or newer with venv and pip, "
                "and a package index that pip can reach; --python PYTHON uses an existing "
                "environment."
            ),
        )
