"""`rankdeck adopt`: from a run of a person's own script to a configuration of the same training."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.home import expanded
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, check_file, find_run


def adopt(
    name: RunName,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; train.toml for train.py."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write a configuration of what a script was seen to do; what nobody can see is yours to fill in."""
    from rankdeck.adopt.adopt import adopt as adopted_from
    from rankdeck.adopt.adopt import default_file
    from rankdeck.run.export import write_whole

    run = find_run(name)
    file = default_file(run, Path()) if file is None else expanded(file)
    check_file(file)
    adopted = adopted_from(run, file.absolute().parent)
    if file.exists() and not force:
        raise ConfigError(
            phrase("{file} is there already.", file=file),
            code="exists",
            path=str(file),
            advice=phrase("Name another file with -o, or replace it with --force."),
        )
    write_whole(file, lambda target: target.write_text(adopted.text, encoding="utf-8"))
    if run.outcome() == "running":
        console.err().print(f"{run.name} is running: this is what it has done so far.", style="yellow")
    if as_json:
        keys = ("code", "path", "line", "message", "advice")
        problems = [{key: getattr(problem, key) for key in keys} for problem in adopted.problems]
        console.as_json({"path": str(file.absolute()), "problems": problems})
        return 0
    quoted = shlex.quote(str(file))
    for problem in adopted.problems:
        console.err().print(problem.headline(str(file)), soft_wrap=True)
    if adopted.problems:
        console.err().print(f"The comments there say more. Then: rankdeck validate {quoted}")
    else:
        console.err().print(f"Nothing is left to fill in. Train it with: rankdeck train {quoted}")
    typer.echo(file)
    return 0
