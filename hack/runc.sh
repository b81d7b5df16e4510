#!/usr/bin/env bash
# Builds runc from the module in lab/runc, because Debian's runc is too old for user namespaces with
# volumes. The program is $BOWLINE_CACHE/runc/runc. "bowline-lab up --programs" starts a lab with it.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" = 0 ]; then default_cache=/var/cache/bowline; else default_cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline; fi
out=${BOWLINE_CACHE:-$default_cache}/runc
mkdir -p "$out"
stamp=$( (cat lab/runc/go.mod lab/runc/go.sum "$0"; go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
[ -x "$out/runc" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ] && exit
# runc enters namespaces in C code, before the Go runtime starts.
if ! command -v gcc >/dev/null || ! command -v pkg-config >/dev/null || ! pkg-config --exists libseccomp; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "hack/runc.sh: install gcc, pkg-config and libseccomp first (Debian: gcc libc6-dev pkg-config libseccomp-dev)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config libseccomp-dev >/dev/null
fi
CGO_ENABLED=1 go build -C lab/runc -trimpath -buildvcs=false -tags seccomp -ldflags '-s -w' -o "$out/runc" github.com/opencontainers/runc
echo "$stamp" >"$out/stamp"
