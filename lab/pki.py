"""The lab's certificate authority, certificates and tokens, created with `openssl`."""

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.network import Network
from lab.run import run

# user -> groups, for the API server's token file
USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "system:node:node1": "system:nodes",
}


@dataclass(frozen=True)
class Pki:
    """Directory with keys, certificates and tokens."""

    dir: Path

    def path(self, name: str) -> Path:
        """Return the path of a file, such as ca.crt."""
        return self.dir / name

    def token(self, user: str) -> str:
        """Return the bearer token of a user."""
        for line in self.path("tokens.csv").read_text().splitlines():
            token, name, *_ = line.split(",")
            if name == user:
                return token
        raise KeyError(user)


def folder(parent: Path, network: Network) -> Path:
    """Return the directory for these addresses."""
    return parent / f"pki-{network.number}"


def make(parent: Path, network: Network) -> Pki:
    """Create the files for these addresses, unless they exist. The directory appears only when complete."""
    final = folder(parent, network)
    if not final.exists():
        # A new directory: an openssl process of a killed `up` may still write to its old one.
        draft = Path(tempfile.mkdtemp(prefix="pki-draft-", dir=parent))
        _fill(Pki(draft), network)
        draft.rename(final)
    return Pki(final)


def _fill(pki: Pki, network: Network) -> None:
    _authority(pki)
    _key(pki, "service-accounts")
    run(
        [
            "openssl",
            "pkey",
            "-in",
            pki.path("service-accounts.key"),
            "-pubout",
            "-out",
            pki.path("service-accounts.pub"),
        ]
    )
    _issue(pki, "apiserver", "/CN=kube-apiserver", _server_names(network))
    _issue(pki, "kubelet", "/O=system:nodes/CN=system:node:node1", f"DNS:node1,IP:{network.node}")
    _issue(pki, "kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client", "DNS:apiserver")
    _tokens(pki)


def _server_names(network: Network) -> str:
    names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    addresses = ["127.0.0.1", network.node, network.kubernetes]
    return ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])


def _key(pki: Pki, name: str) -> None:
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pki.path(f"{name}.key")])


def _authority(pki: Pki) -> None:
    _key(pki, "ca")
    request = ["openssl", "req", "-x509", "-new", "-days", "3650", "-subj", "/CN=oars-lab", "-key", pki.path("ca.key")]
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"]
    run([*request, *usage, "-out", pki.path("ca.crt")])


def _issue(pki: Pki, name: str, subject: str, names: str) -> None:
    _key(pki, name)
    extensions = pki.path(f"{name}.ext")
    extensions.write_text(
        f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n"
    )
    request = run(["openssl", "req", "-new", "-subj", subject, "-key", pki.path(f"{name}.key")])
    signer = ["-CA", pki.path("ca.crt"), "-CAkey", pki.path("ca.key"), "-CAcreateserial", "-days", "3650"]
    run(["openssl", "x509", "-req", *signer, "-extfile", extensions, "-out", pki.path(f"{name}.crt")], text=request)


def _tokens(pki: Pki) -> None:
    lines = [f'{secrets.token_hex(16)},{user},{user},"{groups}"' for user, groups in USERS.items()]
    path = pki.path("tokens.csv")
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")
