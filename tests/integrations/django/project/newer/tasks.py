"""Tasks of Django's own framework, which it has from version 6."""

from django.tasks import task
from shop.models import Order


@task
def ship(id, suffix=""):
    """Ships."""
    Order.objects.filter(id=id).update(shipped=True)
    return {"shipped": (id, suffix)}


@task
async def ship_async(id: str):
    await Order.objects.filter(id=id).aupdate(shipped=True)
    return id


@task(takes_context=True)
def fail_first(context):
    if context.attempt == 1:
        raise ValueError("not at first")
    return [
        context.attempt,
        context.task_result.id,
        [error.exception_class.__name__ for error in context.task_result.errors],
    ]


@task
def fail():
    raise LookupError("never")


@task(backend="patient")
def fail_slowly():
    raise LookupError("not yet")


@task(priority=7, queue_name="mail")
def note(name: int):
    Order.objects.create(name=name)


@task
def returns_no_json():
    return object()
