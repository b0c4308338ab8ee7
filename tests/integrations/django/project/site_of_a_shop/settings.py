import json
import os

import django
from psycopg.conninfo import conninfo_to_dict

from rota import Retry

_address = conninfo_to_dict(os.environ["SHOP_DSN"])
_NEWER = django.VERSION >= (6,)

SECRET_KEY = "no secret"
USE_TZ = True
TIME_ZONE = "Asia/Kathmandu"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["rota.integrations.django", "shop", *(["newer"] if _NEWER else [])]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.pop("dbname"),
        "OPTIONS": {**_address, "application_name": "the shop"},
    },
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
_BACKEND = "rota.integrations.django.backend.RotaBackend"
TASKS = {
    "default": {"BACKEND": _BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": {"retry": Retry(attempts=2, base=0)}},
    "patient": {"BACKEND": _BACKEND, "OPTIONS": {"retry": Retry(base="1h", cap="1h", jitter=False)}},
}

# what a test says otherwise
globals().update(json.loads(os.environ.get("SHOP_SETTINGS", "{}")))
DATABASES["default"]["CONN_MAX_AGE"] = globals().pop("SHOP_CONN_MAX_AGE", 0)
if _pool := globals().pop("SHOP_POOL", None):
    DATABASES["default"]["OPTIONS"]["pool"] = _pool
