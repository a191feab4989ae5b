"""A test broker's controls over HTTP, for tests in any language: routes.py has them, openapi.py describes them."""
