"""`python -I -m worker jobd worker`: a worker with the settings of the environment and of jobd.toml.

The two words are for people who look at `ps`.
"""

from __future__ import annotations

import os
import sys

from broker import places
from broker.wire.settings import ConfigurationError, WorkerSettings, load
from worker.run import broker_url, home_directory, main

EXIT_USAGE = 2


def run() -> int:
    try:
        settings = load(WorkerSettings, os.environ, places.config_text(os.environ), str(places.config_file(os.environ)))
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    return main(settings, broker_url(settings, os.environ), settings.token, home_directory(settings, os.environ))


if __name__ == "__main__":
    sys.exit(run())
