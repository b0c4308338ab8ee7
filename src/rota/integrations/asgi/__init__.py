"""FastAPI, Starlette and any other ASGI application: a worker beside the requests, and an end that loses none of either."""
