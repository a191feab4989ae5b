"""An authorization server: signed tokens for client credentials over HTTP, and its keys in a file."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

SECRET = "node-secret"


class TokenIssuer:
    """It gives any client with SECRET a token in its name."""

    def __init__(self, directory: Path, lifetime_s: int) -> None:
        self.lifetime_s = lifetime_s
        self.given: Counter[str] = Counter()  # tokens by client
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.keys = directory / "jwks.json"
        self.keys.write_text(json.dumps({"keys": [{**public, "kid": "1", "use": "sig", "alg": "ES256"}]}))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self, client: str) -> str:
        self.given[client] += 1
        now_s = int(time.time())
        claims = {"sub": client, "iat": now_s, "exp": now_s + self.lifetime_s}
        return jwt.encode(claims, self._key, "ES256", {"kid": "1"})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                _, _, encoded = self.headers["Authorization"].partition(" ")
                client, _, secret = base64.b64decode(encoded).decode().partition(":")
                is_known = secret == SECRET
                answer = {"access_token": issuer.token(client)} if is_known else {"error": "invalid_client"}
                self.send_response(200 if is_known else 401)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                """Silent."""

        return Handler
