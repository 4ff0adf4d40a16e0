"""What goes wrong when jobd is set up. One enum; the table in docs/operating.md is generated from it."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Each member says what it means and how it is mended: `Fault.BROKER_ABSENT.means`, `.mended_by`."""

    means: str
    mended_by: str

    def __new__(cls, value: str, means: str = "", mended_by: str = "") -> Fault:
        member = str.__new__(cls, value)
        member._value_ = value
        member.means = means
        member.mended_by = mended_by
        return member

    # The ten commonest first.
    SCRIPT_MISSING = (
        "script_missing",
        "`job` or `jobd-mcp` is not in `PATH`: an agent's client can't start it.",
        "add the directory that is named to `PATH`, or give the client the whole path",
    )
    SCRIPT_OF_ANOTHER = (
        "script_of_another",
        "`PATH` finds another program of that name; an older package called `jobd` has one.",
        "uninstall that package, or give the client the whole path",
    )
    BROKER_ABSENT = "broker_absent", "No broker runs.", "`job up`"
    WORKER_ABSENT = (
        "worker_absent",
        "No worker is online, so jobs wait; if the broker starts one itself, the end of its log is shown.",
        "`job up` here, or `job worker --join URL` on another machine",
    )
    WORKERS_CLOSED = (
        "workers_closed",
        "The workers that are there take no new work, so jobs wait.",
        "`job workers resume NAME`; one that is paused has a full disk, or is ending",
    )
    SETTING_WRONG = (
        "setting_wrong",
        "A setting has an unknown name, or a value that can't be read.",
        "correct it in the environment or in `jobd.toml`",
    )
    VERSION_DIFFERS = (
        "version_differs",
        "The broker that runs is of another version than this program.",
        "`job down --keep-jobs`, then `job up`; jobs go on meanwhile",
    )
    STATE_NOT_PRIVATE = (
        "state_not_private",
        "The state directory is another user's, or others can read it.",
        "`chmod 700` it if it is yours, else set `JOBD_STATE_DIR`",
    )
    STATE_NOT_WRITABLE = (
        "state_not_writable",
        "The state directory, or where it would be made, can't be written.",
        "set `JOBD_STATE_DIR` to a directory that can",
    )
    URL_UNREACHABLE = (
        "url_unreachable",
        "`JOBD_URL` names a broker, and none answers there.",
        "correct `JOBD_URL`, start the broker there with `JOBD_LISTEN`, or open the way to it",
    )
    TOKEN_REFUSED = (
        "token_refused",
        "The broker that `JOBD_URL` names refuses `JOBD_TOKEN`, or it is not set.",
        "`job token create --scope submit` on the broker's machine, then set `JOBD_TOKEN`",
    )
    STATE_ON_NETWORK = (
        "state_on_network",
        "The state directory is on a network file system, where locks can't be trusted.",
        "set `JOBD_STATE_DIR` to a directory on this machine's own disk",
    )
    DISK_SHORT = "disk_short", "Little space is left for state and logs.", "make room"
    BROKER_STRANGER = (
        "broker_stranger",
        "What answers on the socket is not the broker of this state directory.",
        "stop that program, or set `JOBD_STATE_DIR`",
    )
    SOCKET_MISSING = (
        "socket_missing",
        "A socket of the running broker was removed.",
        "`job down --keep-jobs`, then `job up`",
    )
    SOCKET_OPEN = "socket_open", "Others may use a socket of the broker.", "`chmod 600` it"
    SHELL_MISSING = "shell_missing", "There is no bash: commands are run by sh.", "install bash, or use argv"
    CLOCK_DIFFERS = (
        "clock_differs",
        "This clock and the broker's are more than 5 s apart; nothing depends on it but what you read.",
        "set both by NTP",
    )
