"""Of a traceback the person's own lines are known, and what others wrote between them is one line."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from rankdeck.diagnose.exceptions import describe_exception, last_lines
from rankdeck.diagnose.user_code import CodeLine, code_owner, fold_frames, short_traceback, user_lines

_TORCH = "/env/lib/python3.12/site-packages/torch/nn"
_TEXT = f"""Traceback (most recent call last):
  File "/p/train.py", line 9, in <module>
    main()
  File "{_TORCH}/modules/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{_TORCH}/modules/module.py", line 1789, in _call_impl
    return forward_call(*args, **kwargs)
  [Previous line repeated 3 more times]
  File "/p/bad_model.py", line 12, in forward
    return self.inner(x[:, :30])
           ^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.12/contextlib.py", line 120, in inner
    return func(*args, **kwds)
  File "{_TORCH}/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


def test_library_frames_are_folded_into_one_line() -> None:
    assert fold_frames(_TEXT.splitlines()) == [
        "Traceback (most recent call last):",
        '  File "/p/train.py", line 9, in <module>',
        "    main()",
        "  ... 2 frames of torch",
        '  File "/p/bad_model.py", line 12, in forward',
        "    return self.inner(x[:, :30])",
        "           ^^^^^^^^^^^^^^^^^^^^^",
        "  ... 2 frames of Python and torch",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ]
    assert fold_frames(fold_frames(_TEXT.splitlines())) == fold_frames(_TEXT.splitlines())


def test_a_short_traceback_has_five_user_lines_at_most() -> None:
    assert short_traceback(_TEXT.splitlines()) == [
        "/p/train.py, line 9, in <module>: main()",
        "/p/bad_model.py, line 12, in forward: return self.inner(x[:, :30])",
    ]
    deep = [f'  File "/p/a.py", line {number}, in f' for number in range(40)]
    assert short_traceback(deep) == [f"/p/a.py, line {number}, in f" for number in range(35, 40)]
    others = [f'  File "{_TORCH}/a.py", line 1, in f', "ValueError: no"]
    assert short_traceback(others) == [] and short_traceback([str(number) for number in range(9)]) == list(
        "45678"
    )


def test_a_traceback_without_user_lines_is_not_folded() -> None:
    lines = [line for line in _TEXT.splitlines() if "/p/" not in line]
    assert fold_frames(lines) == lines
    assert user_lines(lines) == []


def test_the_innermost_user_line_comes_first() -> None:
    expected = [
        CodeLine("/p/bad_model.py", 12, "forward", "return self.inner(x[:, :30])"),
        CodeLine("/p/train.py", 9, "<module>", "main()"),
    ]
    assert user_lines(_TEXT.splitlines()) == user_lines(fold_frames(_TEXT.splitlines())) == expected


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/p/train.py", None),
        ("observer/train.py", None),
        (f"{_TORCH}/functional.py", "torch"),
        ("/env/lib/python3.9/dist-packages/six.py", "six"),
        ("/usr/lib/python3.13t/threading.py", "Python"),
        (traceback.__file__, "Python"),
        ("<frozen importlib._bootstrap>", "Python"),
        ("/elsewhere/rankdeck/observer/steps.py", "Rankdeck"),
        (str(Path(describe_exception.__code__.co_filename)), "Rankdeck"),
    ],
)
def test_every_file_has_an_owner(file: str, owner: str | None) -> None:
    assert code_owner(file) == owner


def test_last_lines_keep_user_lines_of_deep_tracebacks() -> None:
    deep = _TEXT.replace(
        "RuntimeError", f'  File "{_TORCH}/f.py", line 1, in f\n    f()\n' * 40 + "RuntimeError"
    )
    assert '  File "/p/bad_model.py", line 12, in forward' in last_lines(deep)


def test_a_problem_has_path_and_line_of_user_code(tmp_path: Path) -> None:
    file = tmp_path / "bad_model.py"
    file.write_text("import json\n\ndef model():\n    return json.loads('{')\n")
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    with pytest.raises(ValueError) as caught:
        namespace["model"]()
    problem = describe_exception(caught.value, 0).problem
    assert (problem.path, problem.line) == (str(file), 4)
    assert problem.headline().endswith(f"({file}, line 4)")
