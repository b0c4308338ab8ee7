"""The names that OpenTelemetry's conventions give to what we tell of jobs. Those of messaging are still in development: when they
change, they change here."""

from __future__ import annotations

__all__ = [
    "BATCH_COUNT",
    "CONSUMER_OPERATION",
    "DESTINATION",
    "ERROR_TYPE",
    "EXCEPTION",
    "EXCEPTION_MESSAGE",
    "EXCEPTION_STACKTRACE",
    "EXCEPTION_TYPE",
    "JOB_ATTEMPT",
    "JOB_OUTCOME",
    "JOB_SCHEDULE",
    "JOB_TASK",
    "JOB_WAITED",
    "MESSAGE_ID",
    "OPERATION_NAME",
    "OPERATION_TYPE",
    "PRODUCER_OPERATION",
    "SETTLE_OPERATION",
    "SYSTEM",
    "SYSTEM_VALUE",
]

SYSTEM = "messaging.system"
#: PostgreSQL is no messaging system in the convention's list, so we have a name of our own
SYSTEM_VALUE = "rota"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
PRODUCER_OPERATION = "send"
CONSUMER_OPERATION = "process"
SETTLE_OPERATION = "settle"
#: the queue
DESTINATION = "messaging.destination.name"
#: the job
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

EXCEPTION = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"

#: what the convention has no name for
JOB_TASK = "rota.task"
JOB_ATTEMPT = "rota.job.attempt"
JOB_OUTCOME = "rota.job.outcome"
JOB_SCHEDULE = "rota.schedule"
JOB_WAITED = "rota.job.waited"
