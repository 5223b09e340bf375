"""No secret stands in a log line, in an error text or on the Node, whoever has put it there."""

from __future__ import annotations

import re

HIDDEN = "***"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), HIDDEN),
    # A JSON web token, such as every service account has.
    (re.compile(r"\beyJ[\w-]{8,}(?:\.[\w-]+){1,2}"), HIDDEN),
    # The header, as urllib3 and http.client quote it, whatever its scheme.
    (
        re.compile(
            r"(?i)(authorization\b[\"']?\s*[:=,]\s*(?:b(?=[\"']))?[\"']?)(?:(?:bearer|basic|negotiate)\s+)?[^\s\"',}]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',}]{6,}"), rf"\1{HIDDEN}"),
    # What kubeconfig files and exec plugins call their secrets.
    (
        re.compile(
            # (But "the next token: ..." is what parsers say.)
            r"(?i)\b(?<!next )((?:(?:id|access|refresh|bearer)[-_]?)?token|password|client[-_]?secret"
            r"|client[-_]?(?:key|certificate)[-_]?data|certificate[-_]?authority[-_]?data)"
            r"([\"']?\s*[:=]\s*[\"']?)[^\s\"',;}&]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    # User and password of an address, such as a proxy's.
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,40}://)[^\s/@:]+:[^\s/@]+@"), rf"\1{HIDDEN}@"),
)


def redacted(text: str) -> str:
    """The text with `***` where tokens, keys, passwords and Authorization headers stood."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
