"""A small real Django project: the demo, and the ground the tests stand on.

`DATABASE_URL` chooses the database (django-environ's form); without it an SQLite file in WAL mode
beside manage.py serves, as it may serve a small site for good.
"""

from pathlib import Path
from typing import Any

import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DEBUG: bool = env.bool("DEBUG", default=False)
SECRET_KEY: str = env.str("SECRET_KEY", default="for-the-demo-only-" + "0123456789abcdef" * 4)
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "gnl_django",
    "testproject.library",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def database(url: str) -> dict[str, Any]:
    """Return Django's DATABASES entry for `url`, with what each vendor needs for the queue.

    SQLite: WAL, so that readers never wait for the writer; IMMEDIATE, so that a transaction that
    will write takes the write lock at its start instead of failing half way.
    MySQL, MariaDB: READ COMMITTED, which is also Django's default.
    """
    config: dict[str, Any] = environ.Env.db_url_config(url)
    options = config.setdefault("OPTIONS", {})
    if config["ENGINE"].endswith("sqlite3"):
        options.setdefault("init_command", "PRAGMA journal_mode=WAL;")
        options.setdefault("transaction_mode", "IMMEDIATE")
        options.setdefault("timeout", 10)
    elif config["ENGINE"].endswith("mysql"):
        options.setdefault("isolation_level", "read committed")
        options.setdefault("charset", "utf8mb4")
    return config


DATABASES = {
    "default": database(env.str("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}"))
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
