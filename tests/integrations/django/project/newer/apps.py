from django.apps import AppConfig


class NewerConfig(AppConfig):
    name = "newer"

    def ready(self) -> None:
        from django.tasks.signals import task_enqueued, task_finished, task_started

        for signal, name in ((task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished")):
            signal.connect(heard(name), weak=False)


def heard(name):
    def receive(sender, task_result, **_):
        from shop.models import Order

        Order.objects.create(name=f"{name} {sender.__name__} {task_result.id} {task_result.status}")
        raise RuntimeError("a receiver that fails")

    return receive if name != "enqueued" else lambda sender, task_result, **_: None
