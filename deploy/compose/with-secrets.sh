#!/bin/sh
# Start `aio` with the passwords and the keys that make-secrets.sh wrote, which may thus be in no file of the host. The
# environment comes first.
set -eu
secrets=${AIO_SECRETS:-/etc/aio/secrets}
export AIO_DATABASE_URL="${AIO_DATABASE_URL:-postgresql://aio:$(cat "$secrets/postgres")@postgres/aio}"
export AIO_REDIS_URL="${AIO_REDIS_URL:-redis://:$(cat "$secrets/redis")@redis:6379/0}"
export AIO_API_KEYS="${AIO_API_KEYS:-app=$(cat "$secrets/api_key")}"
export AIO_ADMIN_KEYS="${AIO_ADMIN_KEYS:-admin=$(cat "$secrets/admin_key")}"
export AIO_VIEWER_KEYS="${AIO_VIEWER_KEYS:-prometheus=$(cat "$secrets/metrics_key")}"
unset AIO_SECRETS
exec aio "$@"
