"""Downloads the Restate server, one binary, from the npm registry. Version and hashes are pinned here.

Node is not needed. The registry is the public one or that of NPM_CONFIG_REGISTRY; proxies and certificates are those of
Python's urllib (HTTPS_PROXY, SSL_CERT_FILE).
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
# The sha512 of the packages, as `npm view @restatedev/restate-server-linux-x64 dist.integrity` prints it.
INTEGRITY = {
    "linux-x64": "URotJ1AIqaSCDkRMl4OrQfTLH+NYuOZb3ZsP7wxxiuAB6pncgPhTUYSvegTF5PTrAShnNyHNpju9kjf2O3QxoA==",
    "linux-arm64": "aV7YxWvPhp88MjQtObGDhDCTwCBa68wwZOAMmJqDreO0auHYuSfOqabEx4I90coZsx3zShNusppbTPKprOa+dw==",
}
PUBLIC_REGISTRY = "https://registry.npmjs.org"
READ_SECONDS_MAX = 60


def server_in(home: Path) -> Path:
    """The path of the binary. It has the version in it, so that another version is another file."""
    return home / f"restate-server-{VERSION}"


def fetch_server(home: Path) -> None:
    """Install the binary, unless it is there. Raises OSError or CalledProcessError when this machine cannot have it."""
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
        aside.rename(binary)  # only a binary that is whole and runs here gets this name


def package_of(machine: str) -> str:
    """The package's name for this kind of machine, like `linux-x64`."""
    if machine not in PLATFORMS:
        raise OSError(f"Restate has no server for {machine}")
    return PLATFORMS[machine]


def verified(package: str) -> bytes:
    """The tarball from the registry. Raises OSError when it is not the pinned one."""
    name = f"restate-server-{package}"
    address = f"{registry()}/@restatedev/{name}/-/{name}-{VERSION}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=READ_SECONDS_MAX) as answer:
            content: bytes = answer.read()
    except (HTTPException, ValueError) as error:  # the answer was cut short, or this is no address
        raise OSError(f"{address}: {error!r}") from error
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != INTEGRITY[package]:
        raise OSError(f"{address} is not the package that is pinned: sha512-{found}")
    return content


def registry() -> str:
    """The address of the registry. Like npm, this reads the variable's name in any case of letters."""
    named = {name.lower(): value for name, value in os.environ.items()}.get("npm_config_registry")
    return (named or PUBLIC_REGISTRY).rstrip("/")
