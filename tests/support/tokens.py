"""How many tokens a text is to a model. Skips where Node or its package is absent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.requirements import need_node, need_tool


def tokens(text: str, directory: Path) -> int:
    node, package = need_node(), need_tool("gpt-tokenizer")
    script = directory / "count.cjs"
    script.write_text(
        f"const {{ encode }} = require({json.dumps(str(package / 'cjs' / 'encoding' / 'o200k_base.js'))});"
        "console.log(encode(require('fs').readFileSync(0, 'utf8')).length);"
    )
    counted = subprocess.run([node, str(script)], input=text, capture_output=True, text=True, check=True, timeout=60)
    return int(counted.stdout)
