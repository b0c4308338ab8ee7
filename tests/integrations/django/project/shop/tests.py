"""For `manage.py test`."""

from django.db import connection
from django.test import TestCase

from rota.integrations.django import app
from shop.tasks import ship


class Tests(TestCase):
    @classmethod
    def tearDownClass(cls) -> None:
        app.close_sync()  # a database that is used cannot be dropped
        super().tearDownClass()

    def test_rota_is_on_the_database_of_the_test(self) -> None:
        job = ship.on(connection).enqueue_sync(1)

        assert job.state == "queued"
        assert app.database.dsn.database == connection.settings_dict["NAME"]
        assert app.database.dsn.database.startswith("test_")
        assert app.jobs.list_sync() == []  # the job is in the transaction of this test


class Quiet(TestCase):
    def test_what_knows_nothing_of_rota_needs_not_close_it(self) -> None:
        assert not connection.closed_in_transaction
