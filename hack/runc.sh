#!/usr/bin/env bash
# Builds runc of its module (lab/runc), for what Debian's is too old: user namespaces with
# volumes. It goes to $BOWLINE_CACHE/runc; "bowline-lab up --programs" has a lab use it.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" = 0 ]; then default_cache=/var/cache/bowline; else default_cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline; fi
out=${BOWLINE_CACHE:-$default_cache}/runc
mkdir -p "$out"
stamp=$( (cat lab/runc/go.mod lab/runc/go.sum "$0"; go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
[ -x "$out/runc" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ] && exit
# It enters namespaces in C, before Go begins.
if ! command -v gcc >/dev/null || ! command -v pkg-config >/dev/null || ! pkg-config --exists libseccomp; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "runc is built with gcc, pkg-config and libseccomp (Debian: gcc libc6-dev pkg-config libseccomp-dev)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config libseccomp-dev >/dev/null
fi
CGO_ENABLED=1 go build -C lab/runc -trimpath -buildvcs=false -tags seccomp -ldflags '-s -w' -o "$out/runc" github.com/opencontainers/runc
echo "$stamp" >"$out/stamp"
