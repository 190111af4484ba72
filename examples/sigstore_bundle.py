"""Adds the entry of a transparency log to a signature with X.509 certificates, as Sigstore's verifiers ask for it.

    tiebreak certify RUN --weights FOLDER --key KEY --for model-signing --certificate-chain chain.pem
    python examples/sigstore_bundle.py FOLDER/tiebreak.model.sig entry.json > model.sigstore.json
    model_signing verify sigstore FOLDER --signature model.sigstore.json --ignore-paths FOLDER/tiebreak.model.sig ...

entry.json is what Rekor (version 1) answers when the signed envelope, `dsseEnvelope` in the signature, is submitted to
it as an entry of kind `dsse`. Nothing is checked here: the verifier checks log, certificate and signature. Of the chain
only the leaf is kept: Sigstore takes the rest from its root of trust.
"""

import json
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any


def bundle(signature: bytes, response: bytes) -> bytes:
    """The bundle with the one entry in a response."""
    made: Any = json.loads(signature)
    [(_, entry)] = json.loads(response).items()
    proof, kind = entry["verification"]["inclusionProof"], json.loads(b64decode(entry["body"]))
    leaf = made["verificationMaterial"]["x509CertificateChain"]["certificates"][0]
    made["verificationMaterial"] = {"certificate": leaf, "tlogEntries": [{
        "logIndex": str(entry["logIndex"]), "logId": {"keyId": _base64(entry["logID"])},
        "kindVersion": {"kind": kind["kind"], "version": kind["apiVersion"]},
        "integratedTime": str(entry["integratedTime"]), "canonicalizedBody": entry["body"],
        "inclusionPromise": {"signedEntryTimestamp": entry["verification"]["signedEntryTimestamp"]},
        "inclusionProof": {
            "logIndex": str(proof["logIndex"]), "treeSize": str(proof["treeSize"]),
            "rootHash": _base64(proof["rootHash"]), "hashes": [_base64(one) for one in proof["hashes"]],
            "checkpoint": {"envelope": proof["checkpoint"]},
        },
    }]}  # fmt: skip
    return json.dumps(made).encode()


def _base64(digits: str) -> str:
    return b64encode(bytes.fromhex(digits)).decode()


if __name__ == "__main__":
    sys.stdout.buffer.write(bundle(*(Path(name).read_bytes() for name in sys.argv[1:3])))
