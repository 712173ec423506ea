"""Runs a module of the agent on a host that has none: its sources come over stdin, and no file is left behind.

Sent by itself, as an argument of Python's ``-c``, with the module and its arguments; on stdin come a line with a number
of bytes, and in these, compressed, a JSON object of paths and sources. What is read from stdin after them is the
module's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import runpy
import signal
import sys
import zlib
from collections.abc import Mapping, Sequence
from types import ModuleType

SILENCE = 60
"""So long the sources may take: a laptop that has lost its power would be waited for two hours."""


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules from text."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """``texts`` by path: ``remote_agent/probe.py``."""
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        place = self._place(fullname)
        if place is None:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=place, is_package=self.is_package(fullname))
        assert spec is not None, "a loader was given"
        spec.has_location = True  # modules may ask for their __file__
        return spec

    def is_package(self, fullname: str) -> bool:
        return (self._place(fullname) or "").endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        return self._texts[self._place(fullname) or ""]

    def _place(self, name: str) -> str | None:
        path = name.replace(".", "/")
        return next((place for place in (f"{path}/__init__.py", f"{path}.py") if place in self._texts), None)


def main() -> None:
    """Read the sources, then run the module that the command line names."""
    signal.alarm(SILENCE)
    size = int(sys.stdin.buffer.readline())
    sys.meta_path.insert(0, Sources(json.loads(zlib.decompress(sys.stdin.buffer.read(size)))))
    signal.alarm(0)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
