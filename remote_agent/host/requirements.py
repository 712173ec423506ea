"""Says which requirements of a job this Python does not meet; nothing is imported or installed.

One file, sent on the command line and run by the Python that would train: ``python -I -c ... einops 'timm>=1'`` prints
one line of JSON, ``{"lacks": ["einops"]}``.
"""

from __future__ import annotations

import json
import re
import site
import sys
from importlib import metadata


def is_met(requirement: str) -> bool:
    """Whether a package of that name is there, in a version that fits."""
    name = re.match(r"\s*[\w.-]+", requirement)
    try:
        version = metadata.version(name[0].strip() if name else requirement)
    except metadata.PackageNotFoundError:
        return False
    try:
        from packaging.requirements import Requirement  # Ray brings it
    except ImportError:
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)


if __name__ == "__main__":
    if sys.prefix == sys.base_prefix:  # -I leaves a user's own packages out, which training finds
        sys.path.append(site.getusersitepackages())
    print(json.dumps({"lacks": [one for one in sys.argv[1:] if not is_met(one)]}), flush=True)
