"""The house rules: what holds for every test, and what the source keeps so that one can live in it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import grimp
import networkx
import pytest

from tests.conftest import ENDING_S
from tests.helpers.checkout import CHECKOUT, PRODUCT_AND_TESTS
from tests.helpers.processes import MARK
from tests.helpers.ranks import RankSet
from tests.helpers.source_files import (
    iter_docstrings,
    iter_nodes,
    iter_prose,
    list_definitions,
    list_sources,
    read_text,
    relative_name,
)

PARSES_BY_ITSELF = (
    "base/parsing.py",
    "launch/guard.py",
    "launch/control_server.py",
    "launch/peers.py",
    "launch/event_relay.py",
    "launch/streams.py",
    "launch/guard_launcher.py",
    "launch/forked_ranks.py",
    "observer/writer.py",
    "observer/stacks.py",
    "data/bpe.py",
    "config/presets.py",
)


# None that is only installed: importing them all takes longer than what is looked at here.
_NO_OTHER_PLUGIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _pytest_with_our_conftest(folder: Path, body: str, ending_s: float) -> subprocess.CompletedProcess[str]:
    """The shared conftest, used by another pytest on a test of this body, whose processes may take so long
    to end.
    """
    folder.mkdir()
    (folder / "test_inner.py").write_text(body)
    environment = {
        name: value for name, value in os.environ.items() if name != MARK
    }  # no test of ours is above it
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            "-q",
            "test_inner.py",
        ],
        cwd=folder,
        env={**environment, **_NO_OTHER_PLUGIN, "PYTHONPATH": PRODUCT_AND_TESTS, ENDING_S: str(ending_s)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_test_has_a_home_of_its_own(tmp_path: Path) -> None:
    assert Path(os.environ["RANKDECK_HOME"]).is_relative_to(tmp_path)
    assert Path(os.environ["RANKDECK_RUNS"]).is_relative_to(tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="leftovers are found through /proc")
def test_a_process_left_behind_fails_its_test_and_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    orphan = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    body = f"""
import shlex, subprocess, sys

def test_leaves_an_orphan():
    # A shell that starts it in a new session and ends: the tree of children no longer leads to it.
    # It waits until the orphan runs: while a program is being loaded, nobody can read its environment.
    orphan = shlex.join([sys.executable, "-S", "-c", {orphan!r}])
    waiting = "while [ ! -s {pid_file} ]; do sleep 0.01; done"
    subprocess.run(["sh", "-c", f"setsid {{orphan}} >/dev/null 2>&1 & {{waiting}}"], check=True)

def test_waits_for_its_child():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
"""
    done = _pytest_with_our_conftest(tmp_path / "inner", body, ending_s=0.5)
    assert "test_leaves_an_orphan left processes behind" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_a_copy_of_the_tree_tests_itself(tmp_path: Path) -> None:
    """Not what is installed: in pytest's own process, in what a test starts, and in a set of ranks."""
    copy = tmp_path / "copy"
    for folder in ("engine", "app", "tests/helpers"):
        shutil.copytree(CHECKOUT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(CHECKOUT / file, copy / file)
    (copy / "tests/test_inner.py").write_text("""
import subprocess, sys
import rankdeck, rankdeck_app
from tests.helpers.ranks import RankSet

def place(): return rankdeck.__file__

def test_places(tmp_path):
    code = "import rankdeck; print(rankdeck.__file__)"
    started = subprocess.check_output([sys.executable, "-P", "-c", code], text=True).strip()
    ranks = RankSet(1, tmp_path)
    (in_rank,) = ranks.call("tests.test_inner:place")
    ranks.close()
    for found in (__file__, rankdeck.__file__, rankdeck_app.__file__, started, in_rank):
        print("found", found)
""")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *("-p", "pytest_timeout", "-p", "pytestqt.plugin"),  # pyproject.toml has options of theirs
            *("-p", "no:cacheprovider", "-q", "-s", "tests/test_inner.py"),
        ],
        cwd=copy,
        env=os.environ | _NO_OTHER_PLUGIN,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    paths = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("found")]
    assert len(paths) == 5, done.stdout + done.stderr
    assert [path for path in paths if not Path(path).is_relative_to(copy)] == []


def cut_off_at_first(mark: str) -> str:
    """Fail once as gloo does where it cuts off a rank that is there."""
    if not Path(mark).exists():
        Path(mark).touch()
        raise RuntimeError("Gloo connectFullMesh failed with Connection closed by peer [127.0.0.1]:45267.")
    return "alive"


def die_at_first(mark: str, times: int) -> str:
    """What a rank is asked below."""
    with Path(mark).open("a") as file:
        file.write("x")
    if Path(mark).stat().st_size <= times:
        os.abort()
    return "alive"


@pytest.mark.slow
def test_a_rank_that_dies_is_asked_once_more_and_only_once(tmp_path: Path) -> None:
    with closing(RankSet(1, tmp_path)) as ranks:
        function_path = f"{__name__}:die_at_first"
        with pytest.warns(UserWarning, match="a rank died"):
            assert ranks.call(function_path, mark=str(tmp_path / "once"), times=1) == ["alive"]
        with pytest.warns(UserWarning), pytest.raises(AssertionError, match="it died"):
            ranks.call(function_path, mark=str(tmp_path / "always"), times=9)
        with pytest.warns(UserWarning, match="after the last answer"):
            assert ranks.call(function_path, mark=str(tmp_path / "never"), times=0) == ["alive"]


def test_a_set_that_is_started_anew_in_a_test_outlives_it(tmp_path: Path) -> None:
    """The session's set, in the test in which one of its ranks died; a test's own set has to end with it."""
    body = f"""
import pytest
from tests.helpers.ranks import RankSet

ASKED = "tests.test_house:die_at_first"
MARK = {{"mark": {str(tmp_path / "died")!r}, "times": 1}}

@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    made = RankSet(1, tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()

def test_dies(ranks):
    with pytest.warns(UserWarning, match="a rank died"):
        assert ranks.call(ASKED, **MARK) == ["alive"]

def test_goes_on(ranks):
    assert ranks.call(ASKED, **MARK) == ["alive"]

def test_is_cut_off(ranks):
    with pytest.warns(UserWarning, match="connectFullMesh"):
        assert ranks.call("tests.test_house:cut_off_at_first", mark={str(tmp_path / "cut")!r}) == ["alive"]

def test_forgets_its_own(tmp_path):
    RankSet(1, tmp_path)
"""
    done = _pytest_with_our_conftest(tmp_path / "inner", body, ending_s=0.5)
    summary = done.stdout.splitlines()[-1]
    assert "4 passed" in summary and "1 error" in summary and "failed" not in summary, (
        done.stdout + done.stderr
    )
    assert "test_forgets_its_own left processes behind" in done.stdout, done.stdout


@pytest.mark.xvfb
def test_a_virtual_display_takes_a_real_window(x_display: str) -> None:
    script = (
        "from PySide6.QtWidgets import QApplication, QWidget\n"
        "app = QApplication([]); w = QWidget(); w.show(); app.processEvents()\n"
        "print(app.platformName(), w.isVisible())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DISPLAY": x_display, "QT_QPA_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "xcb True", done.stderr


@pytest.mark.parametrize("bench", sorted(path.stem for path in (CHECKOUT / "tests/bench").glob("[!_]*.py")))
def test_a_bench_finds_what_it_measures(bench: str) -> None:
    assert callable(importlib.import_module(f"tests.bench.{bench}").main)


# What the source itself has to keep.

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

LONG_FILES = {
    "engine/rankdeck/config/catalog.py": "a table of data: one row per strategy, model, data set and loss",
    "engine/rankdeck/diagnose/failure_rules.py": "a table of data: one rule per cause of an error",
    "engine/rankdeck/events.py": "a table of data: one class per kind of event in a run's files",
}
# What a person calls files of their own, in examples.
EXAMPLE_FILES = {
    "my_model.py",
    "my_data.py",
    "my_loss.py",
    "my_optimizer.py",
    "path/to/file.py",
    "file.py",
    "queue.py",
    "datasets.py",
    "engine.py",
}

# What a command writes where there is what it needs.
WRITTEN_LATER = {"docs/gpu.md"}

# An event is called after its tag on disk; the code around them reads `events.Sample`.
NAMED_BY_THEIR_TAG = {"engine/rankdeck/events.py", "engine/rankdeck/remote/wire.py"}

_REFERENCE = re.compile(r"(?<![\w*.<>{/-])((?:\.\./|\./)*(?:[\w.-]+/)*[\w-]+\.(?:py|md))\b")


def test_no_file_is_longer_than_one_sits_through() -> None:
    lengths = {
        relative_name(file): len(read_text(file).splitlines()) for file in list_sources("engine", "app")
    }
    long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert long.keys() == LONG_FILES.keys(), long


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{relative_name(file)}:{definition.name}": definition.num_lines
        for file in list_sources("engine", "app")
        for definition in list_definitions(file)
        if not definition.is_class and definition.num_lines > MAX_FUNCTION_LINES
    }
    assert not long


def test_every_package_says_in_one_sentence_what_it_is_for() -> None:
    silent = []
    for file in list_sources("engine", "app", suffix="__init__.py"):
        first = list_definitions(file)[0].docstring.split("\n\n")[0]
        sentence = re.match(r"[A-Z`].*?[.](?=\s|$)", first, re.DOTALL)
        if sentence is None or len(sentence[0].split()) < 5:
            silent.append(relative_name(file))
    assert not silent


def test_no_docstring_is_cut_in_the_middle_of_a_sentence() -> None:
    cut = []
    for file in list_sources("engine", "app"):
        for line, text in iter_docstrings(file):
            first, _, remainder = text.partition("\n\n")
            continues = first.endswith(":") and re.match(r"[a-z(]", remainder) is not None
            if continues or first.endswith((";", ",")):
                cut.append(f"{relative_name(file)}:{line}: {first}")
    assert not cut


def test_every_file_that_is_named_exists() -> None:
    pages = [*list_sources("docs", "engine", suffix=".md"), *sorted(CHECKOUT.glob("*.md"))]
    files = list_sources("engine", "app", "tests") + pages
    names = {file.name for file in files}
    torch = Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    bases = [
        CHECKOUT,
        torch.parent,
        *(CHECKOUT / folder for folder in ("engine", "app", "engine/rankdeck", "app/rankdeck_app")),
    ]

    def missing(file: Path, text: str) -> list[str]:
        lines = "\n".join(line for line in text.split("\n") if ".py" in line or ".md" in line)
        named = {match[1] for match in _REFERENCE.finditer(lines)} - names - EXAMPLE_FILES - WRITTEN_LATER
        folders = [file.parent, *bases]
        return sorted(name for name in named if not any((folder / name).is_file() for folder in folders))

    # What a file names anywhere is looked for first: only where something is missing is it taken apart.
    wrong = [
        f"{relative_name(file)}: {name}"
        for file in files
        if missing(file, read_text(file))
        for text in iter_prose(file)
        for name in missing(file, text)
    ]
    assert not wrong


def test_no_two_public_classes_have_one_name() -> None:
    locations_by_name: dict[str, list[str]] = {}
    for file in list_sources("engine", "app"):
        for definition in list_definitions(file):
            if (
                definition.is_class
                and definition.name[0] != "_"
                and relative_name(file) not in NAMED_BY_THEIR_TAG
            ):
                locations_by_name.setdefault(definition.name, []).append(
                    f"{relative_name(file)}:{definition.line}"
                )
    shared = {name: locations for name, locations in locations_by_name.items() if len(locations) > 1}
    assert not shared


@pytest.mark.parametrize(
    ("called", "files"),
    [
        # Where it is measured too; an icon is a letter of its font in a square of its own.
        (
            ("drawText", "drawStaticText"),
            ("app/rankdeck_app/widgets/painting.py", "app/rankdeck_app/theme/icons.py"),
        ),
        # It raises where nobody has that home.
        (("expanduser",), ("base/home.py",)),
    ],
)
def test_what_is_done_in_one_place_is_done_nowhere_else(
    called: tuple[str, ...], files: tuple[str, ...]
) -> None:
    calls = {
        f"{relative_name(file)}:{node.lineno}"
        for package in ("app", "engine")
        for file in list_sources(package)
        if not relative_name(file).endswith(files)
        for node in iter_nodes(file, called)
        if isinstance(node, ast.Attribute) and node.attr in called
    }
    assert not calls


def test_what_may_come_from_anywhere_is_parsed_in_one_place() -> None:
    """Elsewhere only what another process of ours has just written into a pipe, and what the guard and a
    person's own interpreter read, which import nothing."""
    loose = {
        f"{relative_name(file)}:{node.lineno}"
        for file in list_sources("engine")
        if not relative_name(file).endswith(PARSES_BY_ITSELF)
        for node in iter_nodes(file, ("json", "tomllib"))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func)
        in ("json.loads", "json.load", "tomllib.loads", "tomllib.load", "msgspec.json.decode")
    }
    assert not loose


def _circles(package: str) -> list[tuple[str, ...]]:
    """Modules that import each other, also for types only or inside functions."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    imports = networkx.DiGraph(
        (module, other)
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    )
    components = networkx.strongly_connected_components(imports)
    return sorted(tuple(sorted(component)) for component in components if len(component) > 1)


@pytest.mark.parametrize("package", ["rankdeck", "rankdeck_app"])
def test_no_modules_import_each_other(package: str) -> None:
    assert _circles(package) == []


def test_modules_that_import_each_other_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "going_round"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "one.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    import going_round.two\n")
    (folder / "two.py").write_text("def later():\n    from going_round import one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _circles("going_round") == [("going_round.one", "going_round.two")]
