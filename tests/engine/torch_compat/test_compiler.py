"""A plan of one device begins without torch's compiler; whoever wants more of it gets the real one."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from pathlib import Path
from rankdeck.planner.preload import preload
preload()
from rankdeck.config import from_text
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from rankdeck.torch_compat.compiler import compiler_left_out

text = 'model = { use = "mlp" }\\ndata = { use = "synthetic" }\\ntrain = { optimizer = { use = "adamw" } }'
found = [fake_pass(PassRequest(from_text(text, folder=Path.cwd()), 1)).devices[0].peak_bytes > 0]
found.append("torch._dynamo" in sys.modules)
import torch
with compiler_left_out():
    import torch._dynamo.config
    torch._dynamo.graph_break()
    settings = torch._dynamo.config
    import torch._dynamo.utils as part
found += [part is sys.modules["torch._dynamo.utils"] is torch._dynamo.utils, torch._dynamo.config is settings]
from torch._dynamo.source import GetItemSource
found.append(float(torch.compile(lambda one: one + 1, backend="eager")(torch.ones(()))))
print(json.dumps(found))
"""


def test_a_step_on_fake_tensors_leaves_the_compiler_out_until_it_is_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    followed, imported, is_one_part, old_settings, compiled = json.loads(done.stdout.splitlines()[-1])
    assert followed and not imported
    assert is_one_part and not old_settings and compiled == 2.0
