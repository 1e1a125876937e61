"""The name of what a request over HTTP calls. The circuit of this target counts its failures (docs/circuits.md)."""

from urllib.parse import urlsplit

HTTP_REQUEST = "http.request@1"
_PORTS = {"http": 80, "https": 443}


def http_target(url: str) -> str:
    """ "<host>:<port>"; "" if the address is malformed. It has no user name, path or query, which may be secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return ""
    if not host or not port:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
