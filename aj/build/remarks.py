"""What in the code deserves a word to its owner: credentials, scripts that cannot start, more than can be sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from aj.shared.errors import CodeError
from aj.shared.model import Notice
from aj.shared.paths import shown

CREDENTIAL = 1
CRLF_SCRIPT = 2
SPECIAL = 4
_TEXTS = {
    CREDENTIAL: (
        "what looks like credentials would travel with the code",
        "list what the job does not need in `.amltignore`",
    ),
    CRLF_SCRIPT: (
        "a `#!` line that ends in CRLF names a program that Linux does not find",
        "save it with LF line endings; aj packs files as they are",
    ),
    SPECIAL: (
        "not packed, because only files, folders and links can be",
        "list it in `.amltignore` to be rid of this",
    ),
}
_NAMED_SHOWN = 10
_EXAMPLE = re.compile(rb"\.(?:example|sample|template|dist|pub)\Z")
_CREDENTIAL = re.compile(
    rb"""(?:\A|.*/)(?:
        \.env(?:\..*)? | \.envrc
      | [^/]*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|kubeconfig|publishsettings)
      | id_(?:rsa|dsa|ecdsa|ed25519)[^/]* | id_[^./]*
      | [._]netrc | \.pgpass | \.my\.cnf | \.pypirc | \.npmrc | \.dockercfg | \.git-credentials | \.htpasswd
      | \.boto | \.s3cfg | kubeconfig | kaggle\.json | azureauth\.json
      | credentials(?:\.json)? | application_default_credentials\.json
      | (?:client[-_]secrets?|service[-_]?account)[^/]*\.json
      | \.aws/config | \.kube/config | \.docker/config\.json | \.huggingface/token
      | \.azure/(?:accesstokens|azureprofile|msal_token_cache|service_principal)[^/]*
    )\Z""",
    re.DOTALL | re.VERBOSE,
)


def remarks(path: bytes, head: bytes) -> int:
    """The bits that apply to a file by its path and by its beginning (`head`, the whole of a small file)."""
    found = CREDENTIAL if _is_credential(path.lower(), head) else 0
    if head.startswith(b"#!") and head.partition(b"\n")[0].endswith(b"\r"):
        found |= CRLF_SCRIPT
    return found


def remark_notices(remarked: Sequence[tuple[bytes, int]]) -> list[Notice]:
    """One notice for each kind of remark; `remarked` is sorted by path."""
    notices = []
    for bit, (text, hint) in _TEXTS.items():
        if paths := [path for path, bits in remarked if bits & bit]:
            notices.append(Notice(f"{text}: {named(paths)}", where=shown(paths[0]), hint=hint))
    return notices


def check_size(packed: int, limit: int | None, files: Iterable[tuple[bytes, int]]) -> None:
    """`CodeError` when the archive has more bytes than its store takes in one request; `files` are paths and sizes."""
    if limit is None or packed <= limit:
        return
    largest = sorted(files, key=lambda file: file[1], reverse=True)[:_NAMED_SHOWN]
    names = ", ".join(f"`{shown(path)}` ({size / 2**20:,.0f} MiB)" for path, size in largest)
    raise CodeError(
        f"the code archive has {packed / 2**20:,.0f} MiB, but one upload takes {limit / 2**20:,.0f} MiB at most",
        where=shown(largest[0][0]) if largest else None,
        hint=f"the largest files are {names}: list what the job does not need in `.amltignore`, or mount it",
    )


def named(paths: Sequence[bytes]) -> str:
    """The first paths in backticks, and how many more there are."""
    text = ", ".join(f"`{shown(path)}`" for path in paths[:_NAMED_SHOWN])
    more = len(paths) - _NAMED_SHOWN
    return f"{text} and {more} more" if more > 0 else text


def _is_credential(path: bytes, head: bytes) -> bool:
    if _CREDENTIAL.match(path) and not _EXAMPLE.search(path):
        return True
    if path.endswith(b".json"):
        return b'"private_key"' in head and b'"service_account"' in head
    return head.startswith(b"-----BEGIN ") and b"PRIVATE KEY-----" in head[:100]
