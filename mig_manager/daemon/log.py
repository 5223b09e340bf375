"""How the daemon logs: text for people, JSON lines for collectors."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from loguru import logger

from mig_manager.daemon.settings import Settings

if TYPE_CHECKING:
    from loguru import Message

_TEXT = "{time:YYYY-MM-DD HH:mm:ss.SSS} {level:<7} {extra[run]}{message}"


def set_up_logging(settings: Settings) -> None:
    """Send everything to stderr, in the format and from the level that the settings name."""
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    logger.remove()
    logger.configure(extra={"run": ""})
    if as_text:
        logger.add(sys.stderr, level=settings.log_level, format=_TEXT, backtrace=False, diagnose=False)
    else:
        logger.add(_json_line, level=settings.log_level, format="{message}", backtrace=False, diagnose=False)


def _json_line(message: Message) -> None:
    record = message.record
    line = {
        "time": record["time"].isoformat(timespec="milliseconds"),
        "level": record["level"].name,
        "message": str(message).rstrip("\n"),
    }
    if record["extra"].get("run"):
        line["run"] = record["extra"]["run"].strip()
    sys.stderr.write(json.dumps(line, ensure_ascii=False) + "\n")
