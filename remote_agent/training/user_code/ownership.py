"""Whose code it is: the user's own, or that of a library.

By this it is decided which lines an error shows, which objects are looked into for what a job changes, what a job's
file has replaced in libraries, and which of the modules beside the job are sent with it.

Libraries lie in Python's own folders and in those of a known name. A folder that is installed in place
(``pip install --editable``) is the user's, who can edit it, even if it is a clone of somebody else's library.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

import torch

import remote_agent

_LIBRARIES = tuple(
    dict.fromkeys(
        os.path.realpath(path) + os.sep
        for path in (
            *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
            *(str(Path(str(module.__file__)).parent) for module in (remote_agent, torch)),
        )
    )
)
_SITES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of libraries wherever they are: a user's own (pip --user), a distribution's, those that a .pth file adds."""


@functools.lru_cache(maxsize=4096)  # resolving a path asks the file system once for each of its folders
def is_users_own(file: str) -> bool:
    """Whether a file of code is neither ours nor Python's nor an installed library's."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    try:
        folder, name = os.path.split(os.path.abspath(file))  # noqa: PTH100 - Path.absolute leaves ".." in
        # The file itself may be a link from a library's folder to where an installer keeps all that it has downloaded.
        path = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
    except FileNotFoundError:  # a relative name, as a job's own file may have, and this process's folder was deleted
        return True
    return not (path.startswith(_LIBRARIES) or any(site in path for site in _SITES))


def is_of_users(module: str | None) -> bool:
    """The same of the code of a module. A script's own comes to workers by value; there ``__main__`` is Ray's."""
    if module == "__main__":
        return True
    if module in sys.builtin_module_names:
        return False
    name = module or ""
    # A library may write modules of its own while it runs, and import them from a temporary folder.
    files = (getattr(sys.modules.get(each), "__file__", None) for each in (name.partition(".")[0], name))
    return all(file is None or is_users_own(file) for file in files)
