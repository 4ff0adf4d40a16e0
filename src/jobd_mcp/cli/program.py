"""The whole program as one exit code: never a traceback, and 125 for every failure of our own."""

from __future__ import annotations

import os
import sys

import click

from jobd_mcp.cli import colours
from jobd_mcp.cli.commands import job
from jobd_mcp.cli.failure import OWN_FAILURE, Failure
from jobd_mcp.local import LocalError

INTERRUPTED = 130
READER_GONE = 141


def run() -> int:
    """Run the command line. A command returns its exit code, or nothing for 0."""
    try:
        in_colours = None if colours.wanted(sys.stdout, os.environ) else False
        code = job.main(prog_name="job", standalone_mode=False, color=in_colours)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Failure as failure:
        return _say(failure)
    except LocalError as error:
        return _say(Failure(str(error)))
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "job"
        return _say(Failure(error.format_message(), hint=f"see {where} --help"))
    except click.ClickException as error:
        return _say(Failure(error.format_message()))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # `job logs 1 | head`: Python's own flush at exit must not complain about the reader that has gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:  # the top of the program
        return _say(Failure(f"{type(error).__name__}: {error}", hint="this is a fault of jobd; please report it"))


def _say(failure: Failure) -> int:
    for line in failure.lines():
        print(line, file=sys.stderr)
    return OWN_FAILURE
