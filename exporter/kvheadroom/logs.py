"""Log lines on stderr, as logfmt or JSON, one event a line.

A caller names its event in the message and hands the rest over as
``extra={"fields": {...}}``, which both formats write as fields of their own.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from kvheadroom.redaction import without_credentials
from kvheadroom.settings_file import LogFormat, LogLevel

# Libraries whose own debug lines may hold a URL with a secret, or repeat what is counted.
_QUIET_LIBRARIES: Final = ("urllib3", "requests", "uvicorn", "asyncio", "apscheduler", "tzlocal")


def set_up_logs(level: LogLevel, log_format: LogFormat) -> None:
    """Send everything of *level* and above to stderr in *log_format*."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in _QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, str]:
    moment = datetime.fromtimestamp(record.created, UTC)
    fields = {
        "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name.removeprefix("kvheadroom."),
        "msg": record.getMessage(),
    }
    fields |= {key: str(value) for key, value in getattr(record, "fields", {}).items()}
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return {key: without_credentials(value) for key, value in fields.items()}


class _LogfmtFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record, self).items())


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record, self), ensure_ascii=False)


def _quoted(value: str) -> str:
    plain = value and not any(character in value for character in ' "=\n\r\t\\')
    return value if plain else json.dumps(value, ensure_ascii=False)
