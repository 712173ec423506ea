"""What waits on a host for a laptop's first words ends by itself where the laptop has vanished before it said them."""

import signal
import subprocess
import sys

import pytest

WAITING = {
    "sources": "from remote_agent.host import unsent; unsent.SILENCE = 1; unsent.main()",
    "half of them": "from remote_agent.host import unsent; unsent.SILENCE = 1; unsent.main()",
    "a token": "from pathlib import Path; from remote_agent import deadlines, serve; "
    "deadlines.READER_SILENCE_SECONDS = 1; serve.serve(Path(), 0, '', 'newest')",
}


@pytest.mark.parametrize("waiting", WAITING)
def test_it_ends_by_itself(waiting: str) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITING[waiting]], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            if waiting == "half of them":
                process.stdin.write(b"1000\nx")
                process.stdin.flush()
            assert process.wait(20) == -signal.SIGALRM
        finally:
            process.kill()
