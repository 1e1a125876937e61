"""The Restate server from the npm registry: one binary, in the version and with the hashes that are pinned here.

It is fetched without node, from the public registry or the one that NPM_CONFIG_REGISTRY names, as npm would; proxies
and certificates are those of Python's urllib (HTTPS_PROXY, SSL_CERT_FILE).
"""

import base64
import hashlib
import io
import os
import platform
import subprocess
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

VERSION = "1.7.12"
PLATFORMS = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
# sha512 of the packages, as `npm view @restatedev/restate-server-linux-x64 dist.integrity` says them.
INTEGRITY = {
    "linux-x64": "URotJ1AIqaSCDkRMl4OrQfTLH+NYuOZb3ZsP7wxxiuAB6pncgPhTUYSvegTF5PTrAShnNyHNpju9kjf2O3QxoA==",
    "linux-arm64": "aV7YxWvPhp88MjQtObGDhDCTwCBa68wwZOAMmJqDreO0auHYuSfOqabEx4I90coZsx3zShNusppbTPKprOa+dw==",
}
PUBLIC_REGISTRY = "https://registry.npmjs.org"
READ_SECONDS_MAX = 60


def server_in(home: Path) -> Path:
    """The pin is in the path, so that another pin is another file and nothing has to be compared."""
    return home / f"restate-server-{VERSION}"


def fetch_server(home: Path) -> None:
    """Put the binary there, unless it is. OSError or CalledProcessError: not to be had on this machine."""
    binary = server_in(home)
    if not binary.exists():
        package = verified(package_of(platform.machine()))
        aside = binary.with_suffix(".part")
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            member = archive.extractfile("package/bin/restate-server")
            assert member is not None, "the pinned package holds the binary as a file"
            aside.write_bytes(member.read())
        aside.chmod(0o755)
        subprocess.run([str(aside), "--version"], check=True, stdout=subprocess.DEVNULL)
        aside.rename(binary)  # whole, right and able to run here, or not there at all


def package_of(machine: str) -> str:
    """`linux-x64` and the like."""
    if machine not in PLATFORMS:
        raise OSError(f"Restate has no server for {machine}")
    return PLATFORMS[machine]


def verified(package: str) -> bytes:
    """The registry's tarball, if it is the pinned one."""
    name = f"restate-server-{package}"
    address = f"{registry()}/@restatedev/{name}/-/{name}-{VERSION}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=READ_SECONDS_MAX) as answer:
            content: bytes = answer.read()
    except (HTTPException, ValueError) as error:  # cut short; not an address
        raise OSError(f"{address}: {error!r}") from error
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != INTEGRITY[package]:
        raise OSError(f"{address} is not the package that is pinned: sha512-{found}")
    return content


def registry() -> str:
    """npm reads this name in any case of letters."""
    named = {name.lower(): value for name, value in os.environ.items()}.get("npm_config_registry")
    return (named or PUBLIC_REGISTRY).rstrip("/")
