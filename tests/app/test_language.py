"""Texts in the window's language: what is looked up, what is filled in, and what is never trusted."""

from __future__ import annotations

import ast
import json
import string
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PySide6.QtWidgets import QApplication

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import PhraseSource, TranslatableStruct, phrase
from rankdeck_app import language
from rankdeck_app.language import (
    PSEUDO,
    language_names,
    remove_translators,
    tr,
    translate,
    translate_problem,
    use_language,
)

ROOT = Path(__file__).parents[2]
TRANSLATED_CALLS = {"tr": 3, "phrase": 1, "tr_noop": 1}
"""How many arguments without a name each of them takes."""

TS_FILE = """<?xml version="1.0" encoding="utf-8"?><!DOCTYPE TS>
<TS version="2.1" language="de"><context><name></name>
<message><source>Stop {what}</source><translation>{what} anhalten</translation></message>
<message><source>Bad {what}</source><translation>Falsch {other}</translation></message>
<message><source>Rank {rank} broke.</source><translation>Rang {rank} ist gestorben.</translation></message>
<message><source>It took {s:.1f} s.</source><translation>Nach {s:.1f} s.</translation></message>
<message numerus="yes"><source>{n} runs</source><comment>{n} run</comment>
<translation><numerusform>{n} Lauf</numerusform><numerusform>{n} Läufe</numerusform></translation></message>
</context></TS>"""


@pytest.fixture
def german(qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A translation as translators make it, in the folder where the app looks."""
    source = tmp_path / "rankdeck_de.ts"
    source.write_text(TS_FILE, "utf-8")
    release = Path(sys.executable).with_name("pyside6-lrelease")
    subprocess.run([release, "-silent", source], check=True, timeout=60)
    monkeypatch.setattr(language, "FOLDER", tmp_path)
    translators = use_language("Deutsch")
    assert translators
    yield tmp_path / "rankdeck_de.qm"
    remove_translators(translators)


def test_english_needs_no_translation_file(qapp: QApplication) -> None:
    assert tr("Stop {what}", what="DDP") == "Stop DDP"
    assert [tr("{n} runs", "{n} run", n) for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert tr("code -g {file}:{line}") == "code -g {file}:{line}", "nothing to fill in"


def test_a_translation_is_used(german: Path) -> None:
    assert tr("Stop {what}", what="DDP") == "DDP anhalten"
    assert [tr("{n} runs", "{n} run", n) for n in (0, 1, 2)] == ["0 Läufe", "1 Lauf", "2 Läufe"]
    assert tr("Not translated {n}", n=2) == "Not translated 2"
    assert tr("Bad {what}", what="x") == "Bad x", "a translation that asks for what there is not"


def test_a_translation_is_found_by_name_and_by_path(german: Path) -> None:
    assert language_names() == ("System", "English", "Deutsch", "Pseudo")
    remove_translators(again := use_language(str(german)))
    assert again
    assert use_language(str(german.with_name("none.qm"))) == []
    german.with_name("broken.qm").write_bytes(b"\x00\xff not a translation")
    assert use_language(str(german.with_name("broken.qm"))) == []


def test_a_problem_is_translated(german: Path) -> None:
    problem = ConfigError(
        phrase("Rank {rank} broke.", rank=2), advice=phrase("Stop {what}", what="it")
    ).problem
    assert (problem.message, problem.advice) == ("Rank 2 broke.", "Stop it")
    read = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    assert read == problem and json.loads(msgspec.json.encode(problem))["arguments"]["message"] == {"rank": 2}
    translation = translate_problem(read)
    assert (translation.message, translation.advice) == ("Rang 2 ist gestorben.", "it anhalten")


def test_phrases_of_the_engine_are_translated(german: Path) -> None:
    assert translate(phrase("Stop {what}", what="DDP")) == "DDP anhalten"
    assert translate("Stop {what}") == "Stop {what}", "a plain text is what it is"


class TranslatableLine(TranslatableStruct):
    reason: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)


def test_a_json_line_keeps_templates_and_arguments(german: Path) -> None:
    inner = phrase("Stop {what}", what="it")
    line = TranslatableLine(
        reason=phrase("Rank {rank} broke.", rank=2), notes=["plain", phrase("Stop {what}", what=inner)]
    )
    read = msgspec.json.decode(msgspec.json.encode(line), type=TranslatableLine)
    assert read == line and (read.reason, read.notes) == ("Rank 2 broke.", ["plain", "Stop Stop it"])
    assert translate(read.reason, read.phrases) == "Rang 2 ist gestorben."
    assert [translate(note, read.phrases) for note in read.notes] == ["plain", "it anhalten anhalten"]
    assert translate(phrase("Stop {what}", what=inner)) == "it anhalten anhalten", "a phrase in a phrase"
    assert msgspec.json.decode(b'{"reason": "x"}', type=TranslatableLine).phrases == {}
    assert translate("Stop it", read.phrases) == "it anhalten", (
        "what is within others is known by itself, too"
    )


def test_recursive_phrases_of_a_file_terminate(german: Path) -> None:
    wild = {"a": PhraseSource("Stop {what}", {"what": "b"}), "b": PhraseSource("Stop {what}", {"what": "a"})}
    assert translate("a", wild) == "a anhalten anhalten"
    assert translate("c", {"c": PhraseSource("{what:>999999999}", {"what": "c"})}) == "c"


def test_phrase_arguments_can_be_encoded() -> None:
    problem = Problem("x", phrase("{a:.1f} {b} {c} {d}", a=np.float64(1.25), b=Path("/x"), c=True, d=None))
    assert msgspec.json.decode(msgspec.json.encode(problem), type=Problem) == problem
    assert problem.message == "1.2 /x True None" and problem.arguments["message"]["a"] == 1.25


def test_nested_phrases_of_a_problem_are_translated(german: Path) -> None:
    inner = phrase("Stop {what}", what="it")
    problem = Problem(
        "x", phrase("Rank {rank} broke.", rank=inner), advice=phrase("{a}: {b}", a=inner, b="b")
    )
    translation = translate_problem(msgspec.json.decode(msgspec.json.encode(problem), type=Problem))
    assert (translation.message, translation.advice) == ("Rang it anhalten ist gestorben.", "it anhalten: b")
    plain = Problem("x", phrase("Unknown {a}", a=inner))
    assert translate_problem(plain) == plain, "a sentence that the language does not know stays whole"


def test_a_replaced_message_drops_its_old_template(german: Path) -> None:
    problem = Problem("x", phrase("Rank {rank} broke.", rank=2), advice=phrase("Stop {what}", what="it"))
    assert translate_problem(problem.replace_fields(message="Another thing.")).message == "Another thing."
    assert translate_problem(problem.replace_fields(message="Another thing.")).advice == "it anhalten"
    assert (
        translate_problem(problem.replace_fields(message=phrase("Stop {what}", what="all"))).message
        == "all anhalten"
    )


def test_unknown_templates_of_a_run_are_not_formatted(german: Path) -> None:
    wild = Problem(
        "x",
        "As it was.",
        templates={"message": "{rank:>999999999}", "code": "{x}"},
        arguments={"message": {"rank": 1}},
    )
    assert translate_problem(wild) == wild
    odd = Problem(
        "x", "As it was.", templates={"message": "Rank {rank} broke."}, arguments={"message": {"other": 1}}
    )
    assert translate_problem(odd).message == "As it was."
    assert (
        translate("It took 3 s.", {"It took 3 s.": PhraseSource("It took {s:.1f} s.", {"s": None})})
        == "It took 3 s."
    )


def test_pseudo_is_longer_and_accented(qapp: QApplication) -> None:
    made_up = use_language(PSEUDO)
    text = tr("Stop {what}", what="DDP")
    remove_translators(made_up)
    assert text == "Šťööþ DDP" and tr("Stop {what}", what="DDP") == "Stop DDP"


# Every call in the code


def _find_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """Calls that say a text, and whether they happen when the module is imported."""
    for node, function in _within(tree, (ast.FunctionDef, ast.Lambda)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in TRANSLATED_CALLS
        ):
            yield node, function is None


def _within(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Every node with the innermost function in whose body it is."""
    left: list[tuple[ast.AST, ast.AST | None]] = [(tree, None)]
    while left:
        node, function = left.pop()
        yield node, function
        body = getattr(node, "body", None) if isinstance(node, kinds) else None
        inner = body if isinstance(body, list) else [body]
        left += [(child, node if child in inner else function) for child in ast.iter_child_nodes(node)]


def _find_mistake(call: ast.Call, at_import: bool) -> str | None:
    assert isinstance(call.func, ast.Name)
    name, text = call.func.id, call.args[0]
    if at_import and name == "tr":
        return "is asked for before the language is known: mark it, and say it where it is shown"
    if isinstance(text, ast.JoinedStr | ast.BinOp):
        return "is put together before it can be translated: name what is filled in"
    if not isinstance(text, ast.Constant):
        return None
    values = {keyword.arg for keyword in call.keywords}
    if len(call.args) > 2:
        values.add("n")
    fields = (
        {field for _, field, _, _ in string.Formatter().parse(text.value) if field is not None}
        if values
        else set()
    )
    if None not in values and fields - values:
        return f"has nothing for {sorted(fields - values)}"
    if None not in values and values - fields - {"n"}:
        return f"leaves out {sorted(str(keyword) for keyword in values - fields)}"
    return None


def test_translated_texts_are_constants_with_named_placeholders() -> None:
    wrong, count = list[str](), 0
    for file in [*ROOT.glob("app/rankdeck_app/**/*.py"), *ROOT.glob("engine/rankdeck/**/*.py")]:
        text = file.read_text("utf-8")
        if not any(f"{name}(" in text for name in TRANSLATED_CALLS):
            continue
        for call, at_import in _find_calls(ast.parse(text)):
            count += isinstance(call.args[0], ast.Constant)
            if problem := _find_mistake(call, at_import):
                wrong.append(f"{file.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:80]} {problem}")
    assert not wrong, "\n".join(wrong)
    assert count > 0


@pytest.mark.parametrize(
    "code",
    ['x = tr("now")', 'def f(a):\n tr(f"{a}")', 'def f(a):\n tr("{b}", a=a)', 'def f(a):\n phrase("x", a=a)'],
)
def test_untranslatable_texts_are_detected(code: str) -> None:
    assert [_find_mistake(call, at_import) for call, at_import in _find_calls(ast.parse(code))] != [None]


# Every error in the engine


def _error_classes(trees: Iterable[ast.AST]) -> set[str]:
    """`RankdeckError` and what derives from it."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    kinds, before = {"RankdeckError"}, 0
    while len(kinds) > before:
        before = len(kinds)
        kinds |= {
            subclass.name
            for subclass in classes
            if any(ast.unparse(base) in kinds for base in subclass.bases)
        }
    return kinds


def _texts_of_call(call: ast.Call, errors: set[str]) -> list[ast.expr]:
    """The message and the advice of a problem, of a guard's, of an error, or of a problem that is said
    otherwise."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if name not in {"Problem", "tell_problem", "but", *errors}:
        return []
    positions = {"Problem": (1, 4), "tell_problem": (1, 2), "but": ()}.get(name, (0,))
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("message", "advice")]
    return [*(call.args[position] for position in positions if position < len(call.args)), *named]


def _is_untranslatable(text: ast.expr, values: dict[str, list[ast.expr]]) -> bool:
    """Whether it is put together, or a sentence that is no phrase; `values` are those of names."""
    match text:
        case ast.JoinedStr():
            return True
        case ast.Constant(value=str(literal)):
            return " " in literal
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            return any(isinstance(operand, ast.JoinedStr | ast.Constant) for operand in (left, right))
        case ast.IfExp(body=body, orelse=other):
            return _is_untranslatable(body, values) or _is_untranslatable(other, values)
        case ast.BoolOp(values=operands):
            return any(_is_untranslatable(operand, values) for operand in operands)
        case ast.Name(id=name):
            return any(_is_untranslatable(value, {}) for value in values.get(name, []))
    return False


def _assigned_values(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """What is assigned to each name."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AugAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name_node, value in pairs:
                if isinstance(name_node, ast.Name):
                    assigned.setdefault(name_node.id, []).append(value)
    return assigned


def _untranslatable_problems(tree: ast.Module, errors: set[str]) -> Iterator[ast.expr]:
    constants = _assigned_values(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []))
    for call, function in _within(tree, (ast.FunctionDef,)):
        if isinstance(call, ast.Call) and (texts := _texts_of_call(call, errors)):
            values = {**constants, **(_assigned_values(function) if function is not None else {})}
            yield from (text for text in texts if _is_untranslatable(text, values))


def test_problems_of_the_engine_can_be_translated() -> None:
    trees = {
        file: ast.parse(file.read_text("utf-8")) for file in sorted(ROOT.glob("engine/rankdeck/**/*.py"))
    }
    errors = _error_classes(trees.values())
    assert {"ConfigError", "NotResumableError", "CheckpointError"} <= errors
    wrong = [
        f"{file.relative_to(ROOT)}:{text.lineno}: {ast.unparse(text)[:90]}"
        for file, tree in trees.items()
        for text in _untranslatable_problems(tree, errors)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        'Problem("x", f"{a} broke.")',
        'Problem("x", phrase("It broke."), advice="Mend it.")',
        'Problem("x", phrase("It broke."), None, 3, "Mend it.")',
        'word.tell_problem("x", f"{a} broke.")',
        'word.tell_problem("x", phrase("It broke."), "Mend it.")',
        'raise ConfigError("It " + what)',
        'errors.OwnError("%s broke" % a, code="x")',
        'ConfigError(phrase("It broke.") if a else "It did not.")',
        'ConfigError(known(a) or "Nothing is known.")',
        'problem.but(message=f"{a} broke.")',
        'ADVICE = "Mend it."\ndef f(a):\n    raise ConfigError(a, advice=ADVICE)',
        'def f(a):\n    said = f"{a} broke."\n    raise ConfigError(said)',
        'def f(a):\n    said, more = f"{a} broke.", 1\n    raise ConfigError(said)',
        'def f(a):\n    said = phrase("It broke.")\n    said += " Badly."\n    raise ConfigError(said)',
    ],
)
def test_untranslatable_problems_are_detected(code: str) -> None:
    source = "class OwnError(ConfigError): ...\nclass ConfigError(RankdeckError): ...\n"
    errors = _error_classes([ast.parse(source)])
    assert len(list(_untranslatable_problems(ast.parse(code), errors))) == 1
    fine = 'def f(a):\n    said = phrase("{a} broke.", a=a)\n    raise OwnError(said, code="own")'
    assert not list(_untranslatable_problems(ast.parse(fine), errors))
