#!/usr/bin/env bash
# One table: Bowline, the kubelet and the bare CRI, in turn on a lab host that is reset for each.
# See test/bench for the settings.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p bin docs
CGO_ENABLED=0 go build -o bin/bench ./test/bench

# The kernel maps a large folio of the page cache around each page that a program touches. A file
# that a linker wrote has other folios than a copy, and the same program then has up to 6 MiB more
# resident memory. All agents are therefore measured as copies.
for program in bin/bowline "${BOWLINE_CACHE:-/var/cache/bowline}/bin/bowline-kubelet" ${BOWLINE_BENCH_BASE:+"$BOWLINE_BENCH_BASE"}; do
  cp "$program" "$program.copy"
  mv "$program.copy" "$program"
done
# Without flags, the whole document is written, with the cost of scrapes of many nodes at its end.
if [ $# = 0 ]; then
  CGO_ENABLED=0 go build -o bin/scale ./test/scale
  bin/scale -bowline bin/bowline -scrapes -hosts 50 -idle 10s -out bin/scrapes.md
  set -- -with bin/scrapes.md
fi
exec bin/bench -bowline bin/bowline -out "${BOWLINE_BENCH_OUT:-docs/bench.md}" "$@"
