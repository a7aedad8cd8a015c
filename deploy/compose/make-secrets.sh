#!/bin/sh
# Write a random password for each server, and keys of the API, of administration and for Prometheus, into the folder given;
# what is there stays, so that a restart finds the same. A password given as NAME_PASSWORD (API_KEY, ADMIN_KEY, METRICS_KEY for
# the keys) replaces it. Prometheus' key is also copied into the second folder, for a container that may read nothing else.
set -eu
umask 022
folder=$1

random() {
    head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'
}

keep() { # NAME GIVEN MADE
    if [ -n "$2" ]; then
        printf %s "$2" > "$folder/$1"
    elif [ ! -s "$folder/$1" ]; then
        printf %s "$3" > "$folder/$1"
    fi
}

keep postgres "${POSTGRES_PASSWORD:-}" "$(random)"
keep redis "${REDIS_PASSWORD:-}" "$(random)"
keep grafana "${GRAFANA_PASSWORD:-}" "$(random)"
keep api_key "${API_KEY:-}" "sk-aio-$(random)"
keep admin_key "${ADMIN_KEY:-}" "sk-aio-$(random)"
keep metrics_key "${METRICS_KEY:-}" "sk-aio-$(random)"
cat "$folder/metrics_key" > "$2/metrics_key"
