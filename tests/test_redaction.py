"""Whatever an error text or a log line quotes, no secret is in it; and what is none stays readable."""

from __future__ import annotations

import pickle
import time

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.redaction import redacted

SECRET = "s3cr3t-Va1ue/with+odd=="
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl-_x"

QUOTED = [
    f"Invalid header value b'Bearer {SECRET}\\n'",
    f"{{'Authorization': 'Bearer {SECRET}', 'Accept': 'application/json'}}",
    f"authorization: Basic {SECRET}",
    f'("Authorization", "{SECRET}")',
    f"token: {SECRET}",
    f'{{"status": {{"token": "{SECRET}"}}}}',
    f"users:\n- name: me\n  user:\n    client-key-data: {SECRET}\n    password: {SECRET}",
    f"client_secret={SECRET}&grant_type=refresh&refresh_token={SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET} and it breaks off",
    "cannot connect to proxy http://me:s3cr3t-Va1ue@proxy:3128/",
    f"the exec plugin said {JWT} and ended",
]


@pytest.mark.parametrize("text", QUOTED)
def test_a_secret_is_hidden(text: str) -> None:
    shown = redacted(text)
    assert "s3cr3t" not in shown
    assert "eyJ" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        'GET https://10.0.0.1:443/api/v1/nodes/gpu-1: 403: nodes "gpu-1" is forbidden: User "x" cannot get',
        "small: GPUs 0-3: keep 2, destroy 1x 3g.40gb, create 3x 1g.10gb",
        "These pods are still there: ml/token-server, ml/password-reset (held by finalizers a/b)",
        "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f at 00000000:07:00.0",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_long_name_is_read_once() -> None:
    """As a key of a ConfigMap may be, which has 1 MiB."""
    began = time.process_time()
    redacted("a-" * 30_000)
    assert time.process_time() - began < 1.5


def test_no_error_carries_one_to_the_node() -> None:
    error = pickle.loads(pickle.dumps(MigManagerError(Reason.API_ERROR, f"Bearer {SECRET}")))
    assert (error.message, str(error)) == ("Bearer ***", "Bearer ***")
