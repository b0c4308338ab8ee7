"""What a job is called with: its own arguments and, for one that waited for others, what came of those.

The results are kept as they were stored, each by the codec of whoever stored it, and are read where the body is called. An
argument that the job has of its own is left as it is: so a letter whose results are gone can be retried with others.
"""

from __future__ import annotations

from typing import Any

from rota.conversion.plain import dumps, read_json
from rota.errors import ResultsMissing
from rota.jobs.claim import ClaimedJob
from rota.jobs.codec import Codec, decoded

__all__ = ["payload_of"]


def payload_of(job: ClaimedJob, codec: Codec | None) -> Any:
    """The arguments as they were enqueued, and the one that was handed on. Raises InvalidArguments and ResultsMissing."""
    payload = decoded(codec, job.args)
    if job.inputs is None or not isinstance(payload, dict):
        return payload
    inputs = read_json(job.inputs)
    takes = inputs["takes"]
    if takes in payload:
        return payload
    if "missing" in inputs:
        raise ResultsMissing(
            f"Job {job.id} ({job.task}) cannot run: {inputs['missing']}. To run it all the same, give it the argument: "
            f"rota dead retry {job.id} --args '{{\"{takes}\": ...}}'."
        )
    if "summary" in inputs:
        return payload | {takes: inputs["summary"]}
    if "results" in inputs:
        return payload | {takes: [_read(codec, each) for each in inputs["results"]]}
    return payload | {takes: _read(codec, inputs["result"])}


def _read(codec: Codec | None, result: Any) -> Any:
    """One result as its task returned it. What no codec wrote needs no text in between."""
    return decoded(codec, dumps(result)) if isinstance(result, dict) else result
