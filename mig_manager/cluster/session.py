"""Credentials and connections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mig_manager.cluster.refusal import ApiError

if TYPE_CHECKING:
    import urllib3

_CONNECTIONS = 32


class Session:
    """The credentials as they were read at one time, and connections that use them."""

    def __init__(self, kubeconfig: Path | None, service_account: Path) -> None:
        import yaml
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader
        from kubernetes.config.kube_config import load_kube_config

        self._configuration = Configuration()
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        try:
            if kubeconfig is None:
                InClusterConfigLoader(  # type: ignore[no-untyped-call]
                    token_filename=str(service_account / "token"),
                    cert_filename=str(service_account / "ca.crt"),
                ).load_and_set(self._configuration)
            else:
                load_kube_config(  # type: ignore[no-untyped-call]
                    str(kubeconfig), client_configuration=self._configuration, persist_config=False
                )
        except (
            ConfigException,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            yaml.YAMLError,
        ) as error:
            source = (
                "the service account of this pod" if kubeconfig is None else f"the kubeconfig {kubeconfig}"
            )
            words = " ".join(str(error).split())
            raise ApiError(f"No access to the API server by {source}: {words}") from error
        self.host: str = self._configuration.host.rstrip("/")
        self.pool: urllib3.PoolManager = ApiClient(self._configuration).rest_client.pool_manager

    def credentials(self) -> dict[str, str]:
        """The headers that say who we are; a service account's token is read again once a minute."""
        bearer = self._configuration.auth_settings().get("BearerToken")
        headers = {"User-Agent": "mig-manager"}
        if bearer is not None and bearer["value"]:
            headers["Authorization"] = bearer["value"].strip()
        return headers

    def close(self) -> None:
        """Give back the idle connections."""
        self.pool.clear()
