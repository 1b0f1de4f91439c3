"""An engine without a model: it says what a table of rules tells it to, and keeps real books.

For tests of applications and for standard suites that need a model able to call tools.  Loads no
torch.
"""

from __future__ import annotations

from hypic_sdk.scripted.opening import open_scripted, scripted_path
from hypic_sdk.scripted.rules import Answer, Call, Rule, Script, read_script
from hypic_sdk.scripted.worker import ScriptedWorker

__all__ = [
    "Answer",
    "Call",
    "Rule",
    "Script",
    "ScriptedWorker",
    "open_scripted",
    "read_script",
    "scripted_path",
]
