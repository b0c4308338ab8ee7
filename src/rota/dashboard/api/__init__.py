"""`/api/v1`: what the pages show and do, as JSON. Public: what is here stays, and `openapi.json` describes it."""
